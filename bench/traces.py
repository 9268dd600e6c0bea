"""How much of a cluster's GPUs a profile can give out: pods of a trace arrive one by one, until nothing fits any more.

Reads a list of nodes and a list of pods (CSV: `sn,cpu_milli,memory_mib,gpu,model` and
`name,cpu_milli,memory_mib,num_gpu,gpu_milli[,gpu_spec]`). Only nodes with GPUs count. The pods are shuffled, and drawn
again at random, until they ask for 130 % of all GPUs; each is placed by the profile, by the real deciding code, none is
removed, and one that does not fit is dropped. Told at every 5 % of arrivals: how much is given out, how much of what is
free nobody could use (fragmentation), how many were dropped; beside it, what others reached (`--reference`, CSV:
`workload,policy,arrived_pct,alloc_pct_mean`).

A share of a GPU (`gpu_milli` below 1000) is one of a certain GPU. Mandor counts devices, and does not know which is
which; so a filter of this file keeps pods off nodes whose free shares are on different GPUs, for all profiles alike.

python bench/traces.py --nodes FILE --pods FILE [--profile FILE] [--seeds N] [--reference FILE] [--json FILE]
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.machine import machine
from mandor.model.codec import from_plain
from mandor.model.group import GroupTemplate
from mandor.model.instance import Instance
from mandor.model.meta import Key, Meta
from mandor.model.node import Capabilities, Node, NodePhase, NodeSpec, NodeStatus
from mandor.model.resources import Resources
from mandor.placement.config import read_config
from mandor.placement.cycle import decide
from mandor.placement.framework.column import Mask
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.handle import Detached
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.points import FilterPlugin
from mandor.placement.framework.profile import Enabled, Profile
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.plugin_source import find_plugins
from mandor.placement.profile_factory import ProfileFactory
from mandor.placement.profiles import default_profile
from mandor.placement.table import Table

WHOLE = 1000
MOST_PERCENT = 130
FIRST_PERCENT = 50
STEP_PERCENT = 5
USUAL = 40
"""Number of most frequent requests that value free resources."""


@dataclass(frozen=True)
class Machine:
    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


@dataclass(frozen=True)
class Pod:
    cpu_milli: int
    memory_mib: int
    gpus: int
    milli: int
    """Requested thousandths of each GPU."""
    models: tuple[str, ...]

    @property
    def asked(self) -> int:
        return self.gpus * self.milli


def read_machines(path: Path) -> list[Machine]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = [
            Machine(row["sn"], int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), row["model"])
            for row in csv.DictReader(file)
        ]
    return [each for each in rows if each.gpus]


def read_pods(path: Path) -> list[Pod]:
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Pod(
                int(row["cpu_milli"]),
                int(row["memory_mib"]),
                int(row["num_gpu"]),
                int(row["gpu_milli"] or 0),
                tuple(each for each in (row.get("gpu_spec") or "").split("|") if each),
            )
            for row in csv.DictReader(file)
        ]


def arrivals(pods: list[Pod], total: int, seed: int) -> Iterator[Pod]:
    """Shuffled, and drawn again, until they ask for enough."""
    chance = random.Random(seed)
    order = list(pods)
    chance.shuffle(order)
    asked, wanted = 0, total * MOST_PERCENT // 100
    while asked < wanted:
        pod = order.pop() if order else chance.choice(pods)
        asked += pod.asked
        yield pod


class Cards(FilterPlugin):
    """Which GPU of a node has how much left."""

    name = "Cards"

    def __init__(self, machines: list[Machine]) -> None:
        most = max(each.gpus for each in machines)
        self.left = np.zeros((len(machines), most), dtype=np.int64)
        self.row = {each.name: index for index, each in enumerate(machines)}
        for index, each in enumerate(machines):
            self.left[index, : each.gpus] = WHOLE
        self._order: tuple[int, Any] = (0, None)
        self.pod: Pod | None = None
        """Request that is being placed."""

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        if self._order[0] != len(nodes):
            rows = np.zeros(len(nodes), dtype=np.int64)
            for name, slot in nodes.slots.items():
                rows[slot] = self.row[name]
            self._order = (len(nodes), rows)
        assert self.pod is not None
        found: Mask = self.fits(self.pod)[self._order[1]]
        return found

    def fits(self, pod: Pod) -> Any:
        if not pod.gpus:
            return np.ones(len(self.left), dtype=np.bool_)
        return (self.left >= pod.milli).sum(axis=1) >= pod.gpus

    def take(self, node: str, pod: Pod) -> None:
        """The fullest GPUs that still have enough."""
        cards = self.left[self.row[node]]
        enough = [index for index in np.argsort(cards, kind="stable") if cards[index] >= pod.milli]
        for index in enough[: pod.gpus]:
            cards[index] -= pod.milli


def make_table(machines: Iterable[Machine]) -> Table:
    table = Table("trace")
    for each in machines:
        table.set_node(
            Node(
                meta=Meta(name=each.name, labels={"gpu.model": each.model}),
                spec=NodeSpec(),
                status=NodeStatus(
                    phase=NodePhase.READY,
                    capacity=Resources(each.cpu_milli, each.memory_mib << 20, 1 << 50, {"gpu": each.gpus * WHOLE}),
                    engines={"docker": Capabilities(images=True)},
                ),
            )
        )
    return table


def shape_of(pod: Pod) -> Shape:
    devices = [{"kind": "gpu", "count": pod.milli}] * pod.gpus if pod.milli else []
    asked = {"cpu": f"{pod.cpu_milli}m", "memory": f"{pod.memory_mib}Mi", "devices": devices}
    where = [{"rule": f"gpu.model in [{', '.join(pod.models)}]"}] if pod.models else []
    task = {"image": "pod", "resources": asked}
    return Shape.of(from_plain({"tasks": {"main": task}, "placement": {"where": where}}, GroupTemplate))


def make_profile(path: Path | None, table: Table, cards: Cards) -> Profile:
    if path is None:
        made = default_profile()
    else:
        registry = find_plugins()
        config = read_config(path.read_text(encoding="utf-8"), registry, filename=str(path))
        made = next(iter(ProfileFactory(Detached(table.snapshot)).profiles(config, registry).values()))
    extra = Enabled(cards)
    points = {point: [*some, extra] if point == "filter" else some for point, some in made._points.items()}
    return Profile(made.name, (*made.enabled, extra), points=points)


def fragmentation(machines: list[Machine], table: Table, cards: Cards, usual: list[tuple[Pod, int]]) -> float:
    """Of the free GPUs, the share that a usual pod could not use, on average over those that want GPUs."""
    room = table.snapshot()
    slots = np.array([room.slots[each.name] for each in machines])
    cpu, memory = (room.free[room.rows[kind]][slots] for kind in ("cpu", "memory"))
    free = cards.left.sum(axis=1)
    models = np.array([each.model for each in machines])
    lost = weight = 0.0
    for pod, count in usual:
        able = (cpu >= pod.cpu_milli) & (memory >= pod.memory_mib << 20) & cards.fits(pod)
        if pod.models:
            able &= np.isin(models, pod.models)
        usable = np.where(cards.left >= pod.milli, cards.left, 0).sum(axis=1)
        lost += count * float((free - np.where(able, usable, 0)).sum())
        weight += count
    return 100 * lost / weight / max(1.0, float(free.sum()))


def run(machines: list[Machine], pods: list[Pod], profile_file: Path | None, seed: int) -> list[dict[str, float]]:
    table, cards = make_table(machines), Cards(machines)
    profile = make_profile(profile_file, table, cards)
    total = sum(each.gpus for each in machines) * WHOLE
    shapes: dict[Pod, tuple[Shape, Identity]] = {}
    usual = Counter(each for each in pods if each.gpus).most_common(USUAL)
    arrived = given = failed = 0
    points: list[dict[str, float]] = []
    due = FIRST_PERCENT
    for number, pod in enumerate(arrivals(pods, total, seed)):
        made = shapes.get(pod)
        if made is None:
            made = shapes[pod] = (shape_of(pod), Identity("default", f"shape-{len(shapes)}", "main"))
        request = PlacementRequest(Key(Instance.kind, "default", f"pod-{number}"), made[0], identity=made[1])
        cards.pod = pod
        decision = decide(profile, request, table.snapshot())
        arrived += pod.asked
        if decision.node:
            table.set_allocation(request.key, decision.node, request.shape, request.identity)
            cards.take(decision.node, pod)
            given += pod.asked
        else:
            failed += 1
        while due <= MOST_PERCENT and arrived * 100 >= due * total:
            points.append(
                {
                    "arrived_pct": due,
                    "alloc_pct": 100 * given / total,
                    "fragmentation_pct": fragmentation(machines, table, cards, usual),
                    "failed": failed,
                }
            )
            due += STEP_PERCENT
    return points


def gathered(runs: list[list[dict[str, float]]]) -> list[dict[str, float]]:
    found = []
    for several in zip(*runs, strict=True):
        each: dict[str, float] = {"arrived_pct": several[0]["arrived_pct"]}
        for key in ("alloc_pct", "fragmentation_pct", "failed"):
            each[key] = round(statistics.mean(point[key] for point in several), 3)
        each["alloc_pct_sd"] = round(statistics.pstdev(point["alloc_pct"] for point in several), 3)
        found.append(each)
    return found


def read_reference(path: Path, workload: str) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["workload"] == workload:
                found.setdefault(int(row["arrived_pct"]), {})[row["policy"]] = float(row["alloc_pct_mean"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=Path, required=True)
    parser.add_argument("--pods", type=Path, required=True)
    parser.add_argument("--profile", type=Path, help="a scheduler configuration; its first profile decides")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--workload", default="", help="its name in the reference; absent: of the file, pods_NAME.csv")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    machines, pods = read_machines(options.nodes), read_pods(options.pods)
    workload = options.workload or options.pods.stem.removeprefix("pods_")
    reference = read_reference(options.reference, workload) if options.reference else {}
    begun = time.process_time()
    runs = [run(machines, pods, options.profile, seed) for seed in range(options.seeds)]
    points = gathered(runs)
    policies = sorted({policy for each in reference.values() for policy in each})
    print("arrived%", "alloc%", "±", "fragm%", "failed", *policies, sep="\t")
    for each in points:
        others = reference.get(int(each["arrived_pct"]), {})
        told = [each["arrived_pct"], each["alloc_pct"], each["alloc_pct_sd"], each["fragmentation_pct"], each["failed"]]
        print(*told, *(others.get(policy, "") for policy in policies), sep="\t")
        if others:
            each["reference"] = others  # type: ignore[assignment]
    name = options.profile.stem if options.profile else "default"
    result = {
        "workload": workload,
        "profile": name,
        "nodes": len(machines),
        "gpus": sum(each.gpus for each in machines),
        "seeds": options.seeds,
        "cpu_seconds": round(time.process_time() - begun, 1),
        "points": points,
    }
    if options.json:
        held = json.loads(options.json.read_text(encoding="utf-8")) if options.json.exists() else {}
        results = [each for each in held.get("results", []) if (each["workload"], each["profile"]) != (workload, name)]
        written = {"bench": "traces", "machine": machine(), "results": [*results, result]}
        options.json.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
