"""Who waits for whom to begin: names that mean something, and no two that wait for each other."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mandor.model.meta import Misfit, check_name

if TYPE_CHECKING:
    from mandor.model.workload import Group, Workload

Condition = Literal["started", "healthy", "completed"]
DEPENDENCIES_MOST = 32
WORDS: Mapping[Condition, str] = {"started": "to start", "healthy": "to be healthy", "completed": "to complete"}
HINT = "leave one of these `depends_on` out"

Place = tuple[str, str, str]
"""Namespace, workload, group."""


def check_depends_on(groups: "Mapping[str, Group]", *, ends: bool) -> None:
    """`ends`: it is a batch."""
    for group, spec in groups.items():
        if len(spec.depends_on) > DEPENDENCIES_MOST:
            raise ValueError(f"group {group} depends on {len(spec.depends_on)} others; at most {DEPENDENCIES_MOST}")
        for name, condition in spec.depends_on.items():
            check_name(name, "name of a group or workload")
            if name in groups and condition == "completed" and not ends:
                raise Misfit(
                    f"group {group}: it waits for {name} to complete, and no group of a service or daemon ever does",
                    "groups",
                    group,
                    "depends_on",
                    name,
                    hint="`healthy`, or `started`; what runs to its end is a workload of its own, with `type: batch`",
                )


@dataclass(frozen=True, slots=True)
class Circle:
    """A group that could never begin."""

    workload: "Workload"
    group: str
    name: str
    """What it names under `depends_on`."""
    chain: tuple[str, ...]
    """Who waits for whom: the last waits for the first."""

    @property
    def message(self) -> str:
        return f"a cycle of `depends_on`: {' → '.join((*self.chain, self.chain[0]))}; none of them could begin"


STEPS_MOST = 200_000
"""Steps from group to group in the search for cycles; after that the cycles found so far are returned."""


def find_circles(workloads: "Iterable[Workload]") -> list[Circle]:
    """Each once, where its first member stands."""
    known = {(each.meta.namespace, each.meta.name): each for each in workloads}
    waits = {place: edges for place, edges in _waits(known).items() if edges}
    waited_by: dict[Place, list[Place]] = {}
    for place, edges in waits.items():
        for other in edges:
            waited_by.setdefault(other, []).append(place)
    left = {place: sum(other in waits for other in edges) for place, edges in waits.items()}
    free = [place for place, count in left.items() if not count]
    for place in free:  # whoever waits for nobody who waits can begin
        del waits[place]
        for other in waited_by.get(place, ()):
            left[other] -= 1
            if not left[other]:
                free.append(other)
    found: dict[frozenset[Place], Circle] = {}
    steps = 0
    for place in waits:
        if steps > STEPS_MOST:
            break
        path, more = _way_back(place, waits)
        steps += more
        if path:
            found.setdefault(frozenset(path), _circle(path, known, waits))
    return list(found.values())


def _waits(known: "Mapping[tuple[str, str], Workload]") -> dict[Place, dict[Place, str]]:
    """For each group those it waits for, with the name that it gives them."""
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
    """The shortest way from a group back to itself (empty: there is none), and the steps it took to find it."""
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


def _circle(
    path: list[Place], known: "Mapping[tuple[str, str], Workload]", waits: dict[Place, dict[Place, str]]
) -> Circle:
    first, second = path[0], path[1 % len(path)]
    owners = [known[place[:2]] for place in path]
    names = tuple(
        place[1] if len(owner.spec.groups) == 1 else f"{place[1]}/{place[2]}"
        for place, owner in zip(path, owners, strict=True)
    )
    return Circle(owners[0], first[2], waits[first][second], names)
