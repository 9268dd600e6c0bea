"""Finds groups that wait for each other: cycles of `must` near-rules that no first instance can satisfy."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from mandor.model.placement import EVERY, EVERYWHERE, SELF, Near
from mandor.model.workload import Workload


@dataclass(frozen=True, slots=True)
class Deadlock:
    """A group that can never be placed, and the rule that blocks it."""

    workload: Workload
    group: str
    rule: int
    """Index of the rule under `near`."""
    chain: tuple[str, ...]
    """Groups of the cycle: each waits for the next, the last for the first."""

    @property
    def message(self) -> str:
        pairs = pairwise((*self.chain, self.chain[0]))
        waits = ", ".join(f"{one} waits for {other}" for one, other in pairs)
        return f"`must` near-rules form a cycle: {waits}; none of these groups can be placed first"


PAIRS_MOST = 200_000
"""Maximum number of comparisons of a rule with a group; rules beyond that are not examined."""
STEPS_MOST = 200_000
"""Maximum number of steps from group to group in the search for cycles; after that the cycles found so far are
returned.
"""
HINT = "set `strength: should` on one of these rules"

_Place = tuple[str, str, str]
"""Namespace, workload and group."""
_Waits = dict[_Place, list[tuple[int, set[_Place]]]]
"""For each group and rule, the groups of which one must be placed first."""


def find_deadlocks(workloads: Iterable[Workload]) -> list[Deadlock]:
    """Find groups that can never be placed because of `must` near-rules.

    A group can be placed when each of these rules selects the group itself, selects a group that can be placed, or
    selects no known group. All other groups are deadlocked.
    """
    known = {(each.meta.namespace, each.meta.name, group): each for each in workloads for group in each.spec.groups}
    by_name: dict[str, list[_Place]] = {}
    for place in known:
        by_name.setdefault(place[1], []).append(place)
    waits: _Waits = {}
    pairs = 0
    for place, workload in known.items():
        rules = []
        for index, rule in enumerate(workload.spec.groups[place[2]].placement.near):
            candidates = known if rule.workload in {None, EVERY} else by_name.get(rule.workload, ())
            pairs += len(candidates)
            if rule.strength == "must" and pairs <= PAIRS_MOST:
                rules.append((index, _named(rule, place, known, candidates)))
        waits[place] = [(index, named) for index, named in rules if named and place not in named]
    free = _free(waits)
    return [_deadlock(path, known, waits, free) for path in _paths(waits, free)]


def _paths(waits: _Waits, free: set[_Place]) -> list[list[_Place]]:
    """Return the shortest cycle of each group that lies on one, limited by `STEPS_MOST`."""
    found, left = list[list[_Place]](), STEPS_MOST
    for place in waits:
        if place not in free and left > 0:
            path, steps = _path(place, waits, free)
            left -= steps
            if path:
                found.append(path)
    return found


def _free(waits: _Waits) -> set[_Place]:
    """Return the groups that can be placed: each of their rules is satisfied by a group that can be placed."""
    named_by: dict[_Place, list[tuple[_Place, int]]] = {}
    for place, rules in waits.items():
        for index, named in rules:
            for other in named:
                named_by.setdefault(other, []).append((place, index))
    kept: set[tuple[_Place, int]] = set()
    left = {place: len(rules) for place, rules in waits.items()}
    free = [place for place, count in left.items() if not count]
    for place in free:
        for rule in named_by.get(place, ()):
            if rule not in kept:
                kept.add(rule)
                left[rule[0]] -= 1
                if not left[rule[0]]:
                    free.append(rule[0])
    return set(free)


def _named(rule: Near, place: _Place, known: Mapping[_Place, Workload], candidates: Iterable[_Place]) -> set[_Place]:
    if rule.workload == SELF:
        return {place}
    # More groups than selected do no harm: a cycle is then not found.
    spaces = {EVERYWHERE} if rule.namespace_labels else set(rule.namespaces) or {place[0]}
    return {
        other
        for other in candidates
        if (EVERYWHERE in spaces or other[0] in spaces)
        and (rule.group is None or rule.group == other[2])
        and rule.selects(known[other].meta.labels)
    }


def _blocking(place: _Place, waits: _Waits, free: set[_Place]) -> list[tuple[int, _Place]]:
    return [(index, other) for index, named in waits[place] if not named & free for other in sorted(named)]


def _path(start: _Place, waits: _Waits, free: set[_Place]) -> tuple[list[_Place], int]:
    """Return the shortest path from a group back to itself (empty if it is not part of a cycle) and the number of steps
    searched.
    """
    came: dict[_Place, _Place] = {}
    queue = [start]
    steps = 0
    for here in queue:
        for _, other in _blocking(here, waits, free):
            steps += 1
            if other == start:
                path = [here]
                while path[-1] != start:
                    path.append(came[path[-1]])
                return path[::-1], steps
            if other not in came:
                came[other] = here
                queue.append(other)
    return [], steps


def _deadlock(path: list[_Place], known: dict[_Place, Workload], waits: _Waits, free: set[_Place]) -> Deadlock:
    place, following = path[0], path[1 % len(path)]
    rule = next(index for index, other in _blocking(place, waits, free) if other == following)
    names = tuple(each[1] if len(known[each].spec.groups) == 1 else f"{each[1]}/{each[2]}" for each in path)
    return Deadlock(known[place], place[2], rule, names)
