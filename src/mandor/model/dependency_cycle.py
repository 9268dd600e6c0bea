"""Cycles of `depends_on` between the groups of workloads."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mandor.model.workload import Workload

HINT = "leave one of these `depends_on` out"

Place = tuple[str, str, str]
"""Namespace, workload and group."""


@dataclass(frozen=True, slots=True)
class DependencyCycle:
    """A cycle of dependencies: none of its groups can start."""

    workload: Workload
    group: str
    name: str
    """The entry under `depends_on` that closes the cycle."""
    chain: tuple[str, ...]
    """Groups of the cycle: each waits for the next, the last for the first."""

    @property
    def message(self) -> str:
        return f"`depends_on` has a cycle: {' → '.join((*self.chain, self.chain[0]))}; none of these groups could start"


STEPS_MOST = 200_000
"""Steps from group to group in the search for cycles; after that the cycles found so far are returned."""


def find_cycles(workloads: Iterable[Workload]) -> list[DependencyCycle]:
    """Find dependency cycles; each is reported once, for its first member."""
    known = {(each.meta.namespace, each.meta.name): each for each in workloads}
    waits = {place: edges for place, edges in _waits(known).items() if edges}
    waited_by: dict[Place, list[Place]] = {}
    for place, edges in waits.items():
        for other in edges:
            waited_by.setdefault(other, []).append(place)
    left = {place: sum(other in waits for other in edges) for place, edges in waits.items()}
    free = [place for place, count in left.items() if not count]
    for place in free:  # groups that depend on no waiting group can start
        del waits[place]
        for other in waited_by.get(place, ()):
            left[other] -= 1
            if not left[other]:
                free.append(other)
    found: dict[frozenset[Place], DependencyCycle] = {}
    steps = 0
    for place in waits:
        if steps > STEPS_MOST:
            break
        path, more = _way_back(place, waits)
        steps += more
        if path:
            found.setdefault(frozenset(path), _cycle(path, known, waits))
    return list(found.values())


def _waits(known: Mapping[tuple[str, str], Workload]) -> dict[Place, dict[Place, str]]:
    """Map each group to the groups that it waits for, with the names used under `depends_on`."""
    found: dict[Place, dict[Place, str]] = {}
    for (namespace, name), workload in known.items():
        for group, spec in workload.spec.groups.items():
            edges: dict[Place, str] = {}
            for other in spec.depends_on:
                if other in workload.spec.groups:
                    edges[namespace, name, other] = other
                elif (namespace, other) in known:
                    groups = known[namespace, other].spec.groups
                    edges.update(dict.fromkeys(((namespace, other, each) for each in groups), other))
            found[namespace, name, group] = edges
    return found


def _way_back(start: Place, waits: dict[Place, dict[Place, str]]) -> tuple[list[Place], int]:
    """Return the shortest path from a group back to itself (empty if none) and the number of steps searched."""
    came: dict[Place, Place] = {}
    queue = [start]
    steps = 0
    for here in queue:
        for other in waits[here]:
            steps += 1
            if other == start:
                path = [here]
                while path[-1] != start:
                    path.append(came[path[-1]])
                return path[::-1], steps
            if other in waits and other not in came:
                came[other] = here
                queue.append(other)
    return [], steps


def _cycle(
    path: list[Place], known: Mapping[tuple[str, str], Workload], waits: dict[Place, dict[Place, str]]
) -> DependencyCycle:
    first, second = path[0], path[1 % len(path)]
    owners = [known[place[:2]] for place in path]
    names = tuple(
        place[1] if len(owner.spec.groups) == 1 else f"{place[1]}/{place[2]}"
        for place, owner in zip(path, owners, strict=True)
    )
    return DependencyCycle(owners[0], first[2], waits[first][second], names)
