"""Compares a replay with its recording: shares of time on the same nodes, and instances that were placed elsewhere."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from mandor.sim.history import RunInterval
from mandor.sim.recorded import Recorded
from mandor.sim.result import RunResult

ELSEWHERE_MOST = 100


def agreement(recorded: Recorded, run: RunResult) -> dict[str, Any]:
    """Return the shares of recorded running time: on the same node, and with the same number of instances per node."""
    really = sum(each.end - each.begin for each in recorded.stays)
    return {
        "same_node_percent": _percent(_same_node(recorded.stays, run.stays), really),
        "same_count_percent": _percent(_same_count(recorded.stays, run.stays), really),
        "recorded_seconds": round(really, 3),
        "replayed_seconds": round(sum(each.end - each.begin for each in run.stays), 3),
        "elsewhere": _elsewhere(recorded.stays, run.stays),
    }


def _percent(part: float, whole: float) -> float:
    return round(100 * part / whole, 1) if whole else 100.0


def _same_node(recorded: Sequence[RunInterval], replayed: Sequence[RunInterval]) -> float:
    there: dict[tuple[str, str], list[RunInterval]] = {}
    for each in replayed:
        there.setdefault((each.instance, each.node), []).append(each)
    return sum(
        max(0.0, min(each.end, other.end) - max(each.begin, other.begin))
        for each in recorded
        for other in there.get((each.instance, each.node), ())
    )


def _same_count(recorded: Sequence[RunInterval], replayed: Sequence[RunInterval]) -> float:
    """Return the seconds with as many instances of a workload on a node; equal instances are interchangeable."""
    places = dict.fromkeys((each.workload, each.node) for each in recorded)
    total = 0.0
    for workload, node in places:
        mine = [
            [each for each in stays if (each.workload, each.node) == (workload, node)] for stays in (recorded, replayed)
        ]
        cuts = sorted({at for stays in mine for each in stays for at in (each.begin, each.end)})
        for left, right in pairwise(cuts):
            counts = [sum(each.begin <= left and right <= each.end for each in stays) for stays in mine]
            total += min(counts) * (right - left)
    return total


def _elsewhere(recorded: Sequence[RunInterval], replayed: Sequence[RunInterval]) -> list[dict[str, str]]:
    """Return the instances that ran mostly on another node than in the recording."""
    homes = [_main_nodes(stays) for stays in (recorded, replayed)]
    return [
        {"instance": name, "recorded": node, "replayed": homes[1][name]}
        for name, node in sorted(homes[0].items())
        if name in homes[1] and homes[1][name] != node
    ][:ELSEWHERE_MOST]


def _main_nodes(stays: Sequence[RunInterval]) -> dict[str, str]:
    spent: dict[str, Counter[str]] = {}
    for each in stays:
        spent.setdefault(each.instance, Counter())[each.node] += each.end - each.begin  # type: ignore[assignment]
    return {name: max(sorted(nodes), key=lambda node: nodes[node]) for name, nodes in spent.items()}
