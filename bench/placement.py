"""How many decisions a second: from the head of the queue to the node that is chosen and counted; no store, no HTTP.

The default profile, every node scored, one process. What counts is the time of the CPU; what else a machine does makes
it longer, too, if not as much as that of the clock, and so the best tenth is told beside it.

python bench/placement.py [--json FILE] [CASE …]
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.machine import machine
from mandor.model.codec import from_plain
from mandor.model.group import GroupTemplate
from mandor.model.instance import Instance
from mandor.model.meta import Key, Meta
from mandor.model.node import Capabilities, Node, NodePhase, NodeSpec, NodeStatus
from mandor.model.resources import Resources
from mandor.placement.cycle import decide
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.occupancy import AllocationTerms, Rank
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.gang import GangDecision, GangTrial
from mandor.placement.profiles import default_profile
from mandor.placement.table import Table
from mandor.scheduler.queue import SchedulingQueue

GI = 1024**3
ZONES = 10
NODES = 5_000
BATCH = 25
STEP = 150
"""Members of a gang decided in one step, as the scheduler does with 100 nodes."""
INSTANCES_A_NODE = 20
BYTES_WANTED = 1024


def make_table(count: int, *, own_devices: bool = False) -> Table:
    """`own_devices`: each node has a device of a kind of its own."""
    table = Table("bench")
    for index in range(count):
        table.set_node(
            Node(
                meta=Meta(name=f"node-{index}", labels={"zone": f"z{index % ZONES}", "rack": f"r{index // 40}"}),
                spec=NodeSpec(),
                status=NodeStatus(
                    phase=NodePhase.READY,
                    capacity=Resources(32_000, 256 * GI, 1000 * GI, {f"kind-{index}": 1} if own_devices else {}),
                    engines={"docker": Capabilities(images=True)},
                ),
            )
        )
    return table


def shape(cpu: str = "100m", memory: str = "500Mi", **placement: Any) -> Shape:
    task = {"image": "web:1", "resources": {"cpu": cpu, "memory": memory}}
    return Shape.of(from_plain({"tasks": {"main": task}, "placement": placement}, GroupTemplate))


def releases(count: int) -> Iterator[tuple[str, Shape]]:
    """One instance of each, again and again."""
    made = [(f"web{index}", shape(f"{100 + index % 50}m", f"{500 + index // 50}Mi")) for index in range(count)]
    while True:
        yield from made


def all_different() -> Iterator[tuple[str, Shape]]:
    index = 0
    while True:
        index += 1
        yield f"web{index}", shape(cpu=f"{100 + index % 397}m", memory=f"{200 + index % 499}Mi")


def own_devices() -> Iterator[tuple[str, Shape]]:
    """Each instance takes the device of another kind."""
    plain, index = shape(), 0
    while True:
        yield f"web{index}", replace(plain, wanted=(*plain.wanted, (f"kind-{index}", 1)))
        index += 1


def one_rule(**placement: Any) -> Iterator[tuple[str, Shape]]:
    made = shape(**placement)
    while True:
        yield "web", made


@dataclass(frozen=True)
class Case:
    requests: Callable[[], Iterator[tuple[str, Shape]]]
    wanted: int
    """Decisions in a second of CPU; 0: no more than in proportion."""
    nodes: int = NODES
    count: int = 3000
    warm: int = 100
    """Instances placed before the measurement, because the first of a class costs more."""
    own_devices: bool = False
    """Each node has a device of a kind of its own."""


CASES = {
    "one release": Case(lambda: releases(1), 60_000, count=10_000),
    "50 releases": Case(lambda: releases(50), 30_000, count=10_000),
    "1,000 releases": Case(lambda: releases(1000), 10_000, warm=1500),
    "all different": Case(all_different, 5_000),
    "spread must": Case(partial(one_rule, spread=[{"over": "zone", "max_skew": 1}]), 4_000),
    "spread prefer": Case(
        partial(one_rule, spread=[{"over": "zone", "strength": "prefer"}, {"over": "node", "strength": "prefer"}]),
        4_000,
    ),
    "apart must": Case(partial(one_rule, apart=[{"workload": "self", "over": "node"}]), 4_000),
    "near prefer": Case(
        partial(one_rule, near=[{"workload": "self", "over": "zone", "strength": "prefer", "weight": 10}]), 4_000
    ),
    "near must": Case(partial(one_rule, near=[{"workload": "self", "over": "zone"}]), 4_000),
    "5,000 device kinds": Case(own_devices, 3_000, own_devices=True),
    "50 releases, 50,000 nodes": Case(lambda: releases(50), 15_000, nodes=50_000, count=5_000),
    "all different, 50,000 nodes": Case(all_different, 0, nodes=50_000, count=500, warm=20),
}

GANG = "a gang of 100 that evicts 1,000"
GANG_WANTED = 100
PREEMPTION = {"preemption": 1, "cascade": 3}
"""Number of priorities."""
PREEMPTION_WANTED = 500
PREEMPTION_COUNT = 500


def run(case: Case) -> dict[str, float]:
    table, profile = make_table(case.nodes, own_devices=case.own_devices), default_profile()
    queue = SchedulingQueue(profile.queue_sort)
    known: dict[str, Identity] = {}
    for index, (workload, made) in zip(range(case.count + case.warm), case.requests(), strict=False):
        identity = known.setdefault(workload, Identity("default", workload, "main"))
        request = PlacementRequest(Key(Instance.kind, "default", f"{workload}-{index}"), made, identity=identity)
        queue.add(request, str(index), float(index))
    _place(queue, table, profile, case.warm)
    return {**measured(partial(_place, queue, table, profile), case.count), "wanted": case.wanted}


def measured(work: Callable[[int], None], count: int) -> dict[str, float]:
    """`work(n)` makes so many decisions."""
    gc.collect()
    gc.freeze()  # what was there before is no part of it
    begin, begin_cpu, times = time.perf_counter(), time.process_time(), []
    for _ in range(count // BATCH):
        before = time.process_time()
        work(BATCH)
        times.append(time.process_time() - before)
    by_clock, by_cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
    gc.unfreeze()
    times.sort()
    best = times[: max(1, len(times) // 10)]
    return {
        "a_second": round(count / by_clock),
        "a_cpu_second": round(count / by_cpu),
        "a_cpu_second_best_tenth": round(BATCH * len(best) / sum(best)),
    }


def _place(queue: SchedulingQueue, table: Table, profile: Profile, count: int) -> None:
    for _ in range(count):
        entry = queue.pop()
        assert entry is not None
        request = entry.request
        decision = decide(profile, request, table.snapshot())
        if not decision.node:
            raise SystemExit(decision.message)
        table.set_allocation(request.key, decision.node, request.shape, request.identity)


def preempt(priorities: int) -> dict[str, float]:
    """Full nodes: each decision finds who has to go, they go, and the next decision takes their place. With several
    priorities on each node, those who have to go would take the place of others, and that is played through."""
    table, profile = make_table(NODES), default_profile()
    low, high = shape(cpu="8", memory="64Gi"), shape(cpu="20", memory="100Gi")
    lowly, lofty = Identity("default", "low", "main"), Identity("default", "high", "main")
    for index in range(4 * NODES):
        terms = AllocationTerms(Rank(priority=index % priorities), born=float(index))
        table.set_allocation(Key(Instance.kind, "default", f"low-{index}"), f"node-{index // 4}", low, lowly, terms)
    count = PREEMPTION_COUNT + BATCH
    requests = iter(
        [
            PlacementRequest(Key(Instance.kind, "default", f"high-{index}"), high, 1000, identity=lofty)
            for index in range(count)
        ]
    )

    def work(some: int) -> None:
        for _ in range(some):
            _preempt(table, profile, next(requests))

    work(BATCH)
    return {**measured(work, PREEMPTION_COUNT), "wanted": PREEMPTION_WANTED}


def _preempt(table: Table, profile: Profile, request: PlacementRequest) -> None:
    made = decide(profile, request, table.snapshot())
    if not made.victims:
        raise SystemExit(made.message)
    for key in made.victims:
        table.drop_allocation(key)
    decision = decide(profile, request, table.snapshot(), nominated=made.nominated)
    if decision.node != made.nominated:
        raise SystemExit(decision.message)
    table.set_allocation(
        request.key, decision.node, request.shape, request.identity, AllocationTerms(Rank(request.priority))
    )


def gangs() -> dict[str, float]:
    """Full nodes: a gang evicts ten instances on each of 100 nodes, and is placed when they are gone."""
    table, profile, members = make_table(100), default_profile(), 100
    low, high = shape(cpu="3", memory="20Gi"), shape(cpu="30", memory="200Gi")
    lowly, lofty = Identity("default", "low", "main"), Identity("default", "mpi", "main")
    requests = [
        PlacementRequest(Key(Instance.kind, "default", f"mpi-{index}"), high, 1000, identity=lofty)
        for index in range(members)
    ]

    def work(_: int) -> None:
        for index in range(10 * members):
            key = Key(Instance.kind, "default", f"low-{index}")
            table.set_allocation(key, f"node-{index % members}", low, lowly, AllocationTerms(Rank(0), float(index)))
        for victim in (victim for each in _decide_gang(profile, requests, table).nominated for victim in each.victims):
            table.drop_allocation(victim)
        if table.allocations or len(_decide_gang(profile, requests, table).placed) < members:
            raise SystemExit("the gang is not placed")

    work(0)
    made = measured(work, 4 * BATCH)
    return {**{name: value * members // BATCH for name, value in made.items()}, "wanted": GANG_WANTED}


def _decide_gang(profile: Profile, requests: list[PlacementRequest], table: Table) -> GangDecision:
    trial, decision = GangTrial(profile, requests, table, least=len(requests)), None
    while decision is None:
        decision = trial.step(STEP)
    return decision


def memory() -> dict[str, float]:
    """Return the memory of the table per node, without the node object, and per instance."""
    tracemalloc.start()
    table = make_table(NODES)
    empty = tracemalloc.get_traced_memory()[0]
    made = [(Identity("default", f"web{index}", "main"), shape(f"{100 + index}m")) for index in range(50)]
    count = NODES * INSTANCES_A_NODE
    keys = [Key(Instance.kind, "default", f"web-{index}") for index in range(count)]
    before = tracemalloc.get_traced_memory()[0]
    for index, key in enumerate(keys):
        identity, wanted = made[index % len(made)]
        table.set_allocation(key, f"node-{index % NODES}", wanted, identity)
    loaded = tracemalloc.get_traced_memory()[0]
    objects = list(table.snapshot().nodes)
    del table, keys
    gc.collect()
    without = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(objects) == NODES
    return {
        "bytes_a_node": round((empty - without) / NODES),
        "bytes_a_node_wanted": BYTES_WANTED,
        "bytes_an_instance": round((loaded - before) / count),
    }


def main() -> None:
    measures: dict[str, Callable[[], dict[str, float]]] = {
        **{name: partial(run, case) for name, case in CASES.items()},
        **{name: partial(preempt, priorities) for name, priorities in PREEMPTION.items()},
        GANG: gangs,
    }
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(measures))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {"memory": memory()}
    print(result["memory"])
    for name in options.cases or measures:
        result[name] = said = measures[name]()
        print(
            f"{name:28} {said['a_cpu_second']:8,} decisions a CPU second, best tenth"
            f" {said['a_cpu_second_best_tenth']:8,}, wanted {said['wanted']:7,}; {said['a_second']:8,} a second",
            flush=True,
        )
    few, many = result.get("all different"), result.get("all different, 50,000 nodes")
    if few and many:
        result["cost of ten times the nodes"] = round(few["a_cpu_second"] / many["a_cpu_second"], 2)
        print(f"ten times the nodes: {result['cost of ten times the nodes']} times the cost")
    if options.json:
        report = {"bench": "placement", "machine": machine(), "result": result}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
