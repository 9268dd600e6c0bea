"""How many decisions a second: one instance after the other, each counted in the table at once; no store, no HTTP.

python bench/placement.py [--nodes 5000] [--count 2000] [CASE …]
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.machine import machine
from mandor.model.codec import from_plain
from mandor.model.instance import Instance
from mandor.model.meta import Key, Meta
from mandor.model.node import Capabilities, Node, NodePhase, NodeSpec, NodeStatus
from mandor.model.resources import Resources
from mandor.model.workload import GroupTemplate
from mandor.placement.cycle import decide
from mandor.placement.framework.ask import Ask, Shape
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.lodging import Rank, Tenure
from mandor.placement.profiles import default_profile
from mandor.placement.table import Table

GI = 1024**3
ZONES = 10


def make_table(count: int) -> Table:
    table = Table("bench")
    for index in range(count):
        table.set_node(
            Node(
                meta=Meta(name=f"node-{index}", labels={"zone": f"z{index % ZONES}", "rack": f"r{index // 40}"}),
                spec=NodeSpec(),
                status=NodeStatus(
                    phase=NodePhase.READY,
                    capacity=Resources(32_000, 256 * GI, 1000 * GI),
                    engines={"docker": Capabilities(images=True)},
                ),
            )
        )
    return table


def shape(cpu: str = "100m", memory: str = "500Mi", **placement: Any) -> Shape:
    task = {"image": "web:1", "resources": {"cpu": cpu, "memory": memory}}
    return Shape.of(from_plain({"tasks": {"main": task}, "placement": placement}, GroupTemplate))


def one_release() -> Iterator[tuple[str, Shape]]:
    made = shape()
    while True:
        yield "web", made


def fifty_releases() -> Iterator[tuple[str, Shape]]:
    made = [(f"web{index}", shape(cpu=f"{100 + index}m")) for index in range(50)]
    while True:
        yield from made


def all_different() -> Iterator[tuple[str, Shape]]:
    index = 0
    while True:
        index += 1
        yield f"web{index}", shape(cpu=f"{100 + index % 397}m", memory=f"{200 + index % 499}Mi")


def one_rule(**placement: Any) -> Callable[[], Iterator[tuple[str, Shape]]]:
    def asks() -> Iterator[tuple[str, Shape]]:
        made = shape(**placement)
        while True:
            yield "web", made

    return asks


CASES: dict[str, Callable[[], Iterator[tuple[str, Shape]]]] = {
    "one release": one_release,
    "50 releases": fifty_releases,
    "all different": all_different,
    "spread must": one_rule(spread=[{"over": "zone", "max_skew": 1}]),
    "spread prefer": one_rule(spread=[{"over": "zone", "strength": "prefer"}, {"over": "node", "strength": "prefer"}]),
    "apart must": one_rule(apart=[{"workload": "self", "over": "node"}]),
    "near prefer": one_rule(near=[{"workload": "self", "over": "zone", "strength": "prefer", "weight": 10}]),
    "near must": one_rule(near=[{"workload": "self", "over": "zone"}]),
}


PREEMPTION = {"preemption": 1, "cascade": 3}
"""With so many priorities."""


def run(asks: Iterator[tuple[str, Shape]], nodes: int, count: int) -> tuple[float, float]:
    """Decisions a second, by the clock and by the CPU's: what else the machine does makes only the first slower."""
    table, profile = make_table(nodes), default_profile()
    known: dict[str, Identity] = {}
    todo = []
    for index, (workload, made) in zip(range(count + 20), asks, strict=False):
        who = known.setdefault(workload, Identity("default", workload, "main"))
        todo.append(Ask(Key(Instance.kind, "default", f"{workload}-{index}"), made, who=who))
    for ask in todo[:20]:
        _place(table, profile, ask)
    begin, begin_cpu = time.perf_counter(), time.process_time()
    for ask in todo[20:]:
        _place(table, profile, ask)
    return count / (time.perf_counter() - begin), count / (time.process_time() - begin_cpu)


def preempt(nodes: int, count: int, priorities: int) -> tuple[float, float]:
    """Full nodes: each decision finds who has to go, they go, and the next decision takes their place. With several
    priorities on each node, those who have to go would take the place of others, and that is played through."""
    table, profile = make_table(nodes), default_profile()
    low, high = shape(cpu="8", memory="64Gi"), shape(cpu="20", memory="100Gi")
    lowly, lofty = Identity("default", "low", "main"), Identity("default", "high", "main")
    for index in range(4 * nodes):
        tenure = Tenure(Rank(priority=index % priorities), born=float(index))
        table.set_charge(Key(Instance.kind, "default", f"low-{index}"), f"node-{index // 4}", low, lowly, tenure)
    asks = [Ask(Key(Instance.kind, "default", f"high-{index}"), high, 1000, who=lofty) for index in range(count + 5)]
    for ask in asks[:5]:
        _preempt(table, profile, ask)
    begin, begin_cpu = time.perf_counter(), time.process_time()
    for ask in asks[5:]:
        _preempt(table, profile, ask)
    return count / (time.perf_counter() - begin), count / (time.process_time() - begin_cpu)


def _preempt(table: Table, profile: Any, ask: Ask) -> None:
    made = decide(profile, ask, table.snapshot())
    if not made.victims:
        raise SystemExit(made.message)
    for key in made.victims:
        table.drop_charge(key)
    decision = decide(profile, ask, table.snapshot(), nominated=made.nominated)
    if decision.node != made.nominated:
        raise SystemExit(decision.message)
    table.set_charge(ask.key, decision.node, ask.shape, ask.who, Tenure(Rank(ask.priority)))


def _place(table: Table, profile: Any, ask: Ask) -> None:
    decision = decide(profile, ask, table.snapshot())
    if not decision.node:
        raise SystemExit(decision.message)
    table.set_charge(ask.key, decision.node, ask.shape, ask.who)


def bytes_a_node(nodes: int) -> float:
    """What the columns take, without the node objects themselves."""
    tracemalloc.start()
    table = make_table(nodes)
    with_objects = tracemalloc.get_traced_memory()[0]
    objects = list(table.snapshot().nodes)
    del table
    gc.collect()
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return (with_objects - kept) / len(objects)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join((*CASES, *PREEMPTION)))
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--count", type=int, default=2000)
    asked = parser.parse_args()
    print(machine())
    print(f"{bytes_a_node(asked.nodes):.0f} bytes a node in the table")
    for name in asked.cases or (*CASES, *PREEMPTION):
        if name in PREEMPTION:
            by_clock, by_cpu = preempt(asked.nodes, min(asked.count, asked.nodes // 2), PREEMPTION[name])
        else:
            by_clock, by_cpu = run(CASES[name](), asked.nodes, asked.count)
        print(f"{name:16} {by_clock:10,.0f} decisions/s {by_cpu:10,.0f} per CPU second")


if __name__ == "__main__":
    main()
