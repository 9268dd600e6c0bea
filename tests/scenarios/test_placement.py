"""Placement scenarios: `placement/*.txt`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mandor.lib.quantity import Cpu, Size
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import NodePhase, Taint
from mandor.placement.cycle import decide
from mandor.placement.explain import node_verdicts, score_table, steps_of
from mandor.placement.framework.identity import NO_IDENTITY, Identity
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.profiles import default_profile
from mandor.placement.remedy import remedies
from mandor.placement.table import Table
from tests.scenarios.make import GI, make_node, make_template
from tests.scenarios.script import Step, parse_value, read_script

FILES = sorted((Path(__file__).parent / "placement").glob("*.txt"))


class Board:
    """A table one talks to in words."""

    def __init__(self) -> None:
        self.table = Table()
        self.profile = default_profile()

    def do(self, step: Step) -> str:
        answer: str = getattr(self, f"do_{step.verb.replace('-', '_')}")(step)
        return answer

    def do_nodes(self, step: Step) -> str:
        for index in range(int(step.words[0])):
            self._add(f"n{index}", step.fields)
        return "ok"

    def do_node(self, step: Step) -> str:
        self._add(step.words[0], step.fields)
        return "ok"

    def _add(self, name: str, fields: dict[str, str]) -> None:
        labels = {key.removeprefix("label."): value for key, value in fields.items() if key.startswith("label.")}
        key, _, rest = fields.get("taint", "").partition("=")
        value, _, effect = rest.partition(":")
        self.table.set_node(
            make_node(
                name,
                cpu=Cpu.parse(fields.get("cpu", "4")) / 1000,
                memory=Size.parse(fields.get("memory", str(8 * GI))),
                phase=NodePhase(fields.get("phase", "Ready")),
                cordoned=fields.get("cordoned") == "yes",
                pool=fields.get("pool", "default"),
                taints=(Taint(key, value, effect or "NoSchedule"),) if key else (),  # type: ignore[arg-type]
                labels=labels,
            )
        )

    def do_remove(self, step: Step) -> str:
        self.table.remove_node(step.words[0])
        return "ok"

    def _asks(self, step: Step) -> list[PlacementRequest]:
        fields: dict[str, Any] = {key: parse_value(value) for key, value in step.fields.items()}
        fields |= {key: step.fields[key] for key in ("cpu", "memory", "disk") if key in step.fields}
        avoid = frozenset(str(fields.pop("avoid", "")).split(",")) - {""}
        workload = str(fields.pop("workload", ""))
        namespace, release = str(fields.pop("namespace", "default")), str(fields.pop("release", ""))
        labels, there = fields.pop("labels", {}), fields.pop("namespace_labels", {})
        identity = Identity(namespace, workload, "main", labels, "", release, there) if workload else NO_IDENTITY
        if isinstance(fields.get("where"), dict):
            fields["where"] = [fields["where"]]
        shape = Shape.of(make_template(**fields))
        return [
            PlacementRequest(Key(Instance.kind, namespace, name), shape, avoid=avoid, identity=identity)
            for name in step.words
        ]

    def do_place(self, step: Step) -> str:
        said = []
        for request in self._asks(step):
            name = request.key.name
            decision = decide(self.profile, request, self.table.snapshot())
            if decision.node:
                self.table.set_allocation(request.key, decision.node, request.shape, request.identity)
                without = "".join(f", without `{rule}`" for rule in decision.relaxed)
                said.append(f"{name} -> {decision.node}{without}")
            else:
                said.append(f"{name} waits: {decision.message}")
        return "\n".join(said)

    def do_remedies(self, step: Step) -> str:
        """Return the changes that would let an instance run, smallest first."""
        [request] = self._asks(step)
        found = remedies(self.profile, request, self.table)
        return "\n".join(f"{each.text} -> {each.node}" for each in found) or "nothing that was tried"

    def do_steps(self, step: Step) -> str:
        """Return the relaxed rules and the filters that still refuse."""
        [request] = self._asks(step)
        steps, verdict, last = steps_of(self.profile, request, self.table.snapshot())
        said = [f"{each.gives_up or 'all rules'}: {each.fits} fit" for each in steps]
        nodes = node_verdicts(verdict, last, self.table.snapshot(), 100)
        return "\n".join([*said, *(f"{each.node} {each.plugin} ({each.why})" for each in nodes if not each.fits)])

    def do_scores(self, step: Step) -> str:
        [request] = self._asks(step)
        said = []
        for each in score_table(self.profile, request, self.table.snapshot()):
            parts = " + ".join(f"{part.weight}x{part.score} {part.plugin}" for part in each.parts)
            said.append(f"{each.node} {each.total} = {parts}")
        return "\n".join(said) or "none fits"

    def do_end(self, step: Step) -> str:
        return "ok" if self.table.drop_allocation(Key(Instance.kind, "default", step.words[0])) else "it had no place"

    def do_free(self, step: Step) -> str:
        names = step.words or sorted(node.meta.name for node in self.table.snapshot().nodes)
        rooms = {name: self.table.free(name) for name in names}
        return "\n".join(f"{name} cpu {Cpu(room['cpu'])} memory {Size(room['memory'])}" for name, room in rooms.items())


@pytest.mark.req("S2-13", "S2-14", "S0-35")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_placement(path: Path) -> None:
    board = Board()
    for step in read_script(path):
        assert board.do(step) == step.expected, f"{path.name}:{step.line}: {step.command}"


def test_there_are_scenarios() -> None:
    assert len(FILES) >= 3
