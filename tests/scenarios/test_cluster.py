"""Cluster scenarios: `cluster/*.txt`, a whole control plane told what happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mandor.lib.quantity import Seconds
from mandor.model.instance import InstanceStatus
from mandor.model.node import Node
from mandor.model.phase import Phase
from tests.scenarios.make import make_workload
from tests.scenarios.script import Step, parse_value, read_script
from tests.scenarios.world import World

FILES = sorted((Path(__file__).parent / "cluster").glob("*.txt"))


class ScriptRun:
    def __init__(self, world: World) -> None:
        self.world = world

    async def do(self, step: Step) -> str:
        answer: str = await getattr(self, f"do_{step.verb}")(step)
        return answer

    async def do_nodes(self, step: Step) -> str:
        await self.world.add_nodes(*step.words, cpu=float(step.fields.get("cpu", 4)))
        return "ok"

    async def do_apply(self, step: Step) -> str:
        fields: dict[str, Any] = {key: parse_value(value) for key, value in step.fields.items()}
        await self.world.apply(make_workload(step.words[0], **fields))
        return "ok"

    async def do_delete(self, step: Step) -> str:
        await self.world.delete(self.world.workload(step.words[0]))
        return "ok"

    async def do_stop(self, step: Step) -> str:
        await self.world.stop_instance(step.words[0])
        return "ok"

    async def do_wait(self, step: Step) -> str:
        """Let time pass, and tell what there is then."""
        await self.world.run(Seconds.parse(step.words[0]))
        return self._instances()

    async def do_silence(self, step: Step) -> str:
        for name in step.words:
            self.world.nodes[name].alive = False
        return "ok"

    async def do_return(self, step: Step) -> str:
        for name in step.words:
            self.world.nodes[name].alive = True
        return "ok"

    async def do_fail(self, step: Step) -> str:
        """Let all instances on these nodes fail from now on."""
        for name in step.words:
            self.world.nodes[name].behave = lambda each: InstanceStatus(
                phase=Phase.FAILED, reason="CrashLoop", since=self.world.clock.now()
            )
        return "ok"

    async def do_cordon(self, step: Step) -> str:
        await self.world.change_node(step.words[0], cordoned=True)
        return "ok"

    async def do_status(self, step: Step) -> str:
        status = self.world.workload(step.words[0]).status
        return f"{status.phase} {status.release} {status.ready}/{status.wanted}" + (
            f" {status.message}" if status.message else ""
        )

    async def do_shownodes(self, step: Step) -> str:
        return "\n".join(f"{node.meta.name} {node.status.phase.value}" for node in self.world.all(Node))

    def _instances(self) -> str:
        said = []
        for each in self.world.instances():
            words = [each.meta.name, each.phase.value, each.node, each.spec.release]
            if each.spec.attempt:
                words.append(f"attempt {each.spec.attempt}")
            if each.spec.avoid:
                words.append(f"avoids {','.join(each.spec.avoid)}")
            said.append(" ".join(word for word in words if word))
        return "\n".join(said) or "nothing"


@pytest.mark.req("S2-16", "S2-17", "S2-18", "S2-19", "S2-50")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
async def test_cluster(path: Path) -> None:
    async with World() as world:
        world.checks = [world.check_capacity]
        story = ScriptRun(world)
        for step in read_script(path):
            assert await story.do(step) == step.expected, f"{path.name}:{step.line}: {step.command}"


def test_there_are_scenarios() -> None:
    assert len(FILES) >= 3
