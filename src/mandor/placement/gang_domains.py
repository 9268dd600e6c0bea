"""Domains in which a gang has to be placed as a whole, because of `near` rules that select its own members.

The first member of such a gang determines the domain of the others. The number of members that each domain has room for
is counted before any member is decided; a trial then shows whether the members really fit.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mandor.placement.framework.column import Mask
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Amounts, Snapshot
from mandor.placement.framework.topology_counts import NODE

DOMAINS_MOST = 64
"""Domains tried in one stage of a decision."""

Places = NDArray[np.int64]
"""Number of members by node."""


class ClassPlaces(NamedTuple):
    """Equal members of a gang, and how many of them fit on each node."""

    members: int
    by_node: Places


@dataclass(frozen=True, slots=True)
class Domain:
    """Nodes with equal values of the facts that the rules name."""

    facts: tuple[str, ...]
    values: tuple[str, ...]
    nodes: Mask = field(compare=False)
    places: int
    """Upper bound of the members that fit."""

    @property
    def kind(self) -> str:
        """The facts, for messages: `rack`."""
        return " and ".join(self.facts)


def common_facts(requests: Sequence[PlacementRequest], nodes: Snapshot) -> tuple[str, ...]:
    """Return the facts in which all nodes of the gang have to be equal; empty: no rule demands that.

    Such a rule must hold, selects members of the gang, and selects no placed instance yet: with placed instances, the
    domains of the rule are known.
    """
    identities = {each.identity for each in requests}
    facts: dict[str, None] = {}
    for request in {(each.shape, each.identity, each.dropped): each for each in requests}.values():
        for term in request.rules.near:
            if any(term.selector.matches(each) for each in identities):
                if nodes.topology.domains(term.selector, term.over).counts.any():
                    return ()
                facts[term.over] = None
    return tuple(sorted(facts))


def tied_to(others: Iterable[PlacementRequest], members: Sequence[PlacementRequest]) -> list[PlacementRequest]:
    """Return those of other requests whose rules demand the domain of these members, in the order of their names."""
    identities = {each.identity for each in members}
    found = [
        each
        for each in others
        if any(term.selector.matches(identity) for term in each.rules.near for identity in identities)
    ]
    return sorted(found, key=lambda each: (each.key.namespace, len(each.key.name), each.key.name))


def follows(request: PlacementRequest, facts: Sequence[str], placed: Iterable[Identity]) -> bool:
    """Return whether the rules of a member keep it in the domain of the placed members."""
    terms = request.rules.near
    return {term.over for term in terms if any(term.selector.matches(each) for each in placed)}.issuperset(facts)


def places_by_node(request: PlacementRequest, nodes: Snapshot, gone: Sequence[Amounts], most: int) -> Places:
    """Return how many members like this one fit on each node by their amounts, at most `most`.

    `gone`: amounts that count as free, by stored row.
    """
    shape = request.shape
    found = np.full(len(nodes), most, dtype=np.int64)
    for resource, amount in shape.wanted:
        if resource not in nodes.rows:
            return np.zeros_like(found)
        row, free = nodes.stored_row(resource), nodes.free[nodes.rows[resource]]
        np.minimum(found, np.maximum(free + sum(taken[row] for taken in gone), 0) // amount, out=found)
    own_node = any(term.over == NODE and term.selector.matches(request.identity) for term in request.rules.apart)
    if own_node or shape.host_ports:
        np.minimum(found, 1, out=found)
    return found


def domains(
    facts: Sequence[str],
    nodes: Snapshot,
    least: int,
    places: Sequence[ClassPlaces],
    beside: Sequence[ClassPlaces] = (),
    now: Sequence[ClassPlaces] | None = None,
) -> list[Domain]:
    """Return the domains that may have room for `least` members, in the order in which they are tried.

    The tightest domain with room for all members comes first; domains with room for fewer follow, the largest first.
    `beside`: members of other gangs that have to be in the same domain; domains with room for them come first.
    `now`: the places without preemption; domains that need fewer preemptions come first then. If no domain has room for
    `least` members, the largest one is returned, which shows how many fit.
    """
    known = np.ones(len(nodes), dtype=np.bool_)
    for fact in facts:
        known &= nodes.topology.known(fact)
    slots = known.nonzero()[0]
    if not len(slots):
        return []
    columns = [nodes.fact(fact) for fact in facts]
    codes = np.stack([column.codes[slots] for column in columns])
    _, first, numbers = np.unique(codes, axis=1, return_index=True, return_inverse=True)
    numbers = numbers.reshape(-1)
    wanted = sum(each.members for each in places)
    others = _fitting(beside, slots, numbers) if beside else np.zeros(len(first), dtype=np.int64)
    room, free = _fitting(places, slots, numbers), _fitting(now or places, slots, numbers)
    total = np.sum([np.bincount(numbers, weights=each.by_node[slots]) for each in places], axis=0)
    found: list[tuple[tuple[object, ...], Domain]] = []
    for number, slot in enumerate(slots[first].tolist()):
        values = tuple(column[slot][0] or "" for column in columns)
        fits, size = int(room[number]), int(total[number])
        tightness = size if fits >= wanted else 0
        order = (-fits, -int(others[number]), 0 if now is None else -int(free[number]), tightness, values)
        members = np.zeros(len(nodes), dtype=np.bool_)
        members[slots[numbers == number]] = True
        found.append((order, Domain(tuple(facts), values, members, fits)))
    found.sort(key=lambda each: each[0])
    fitting = [domain for _, domain in found if domain.places >= least]
    return fitting[:DOMAINS_MOST] or [domain for _, domain in found[:1]]


def _fitting(places: Sequence[ClassPlaces], slots: NDArray[np.intp], numbers: NDArray[np.intp]) -> NDArray[np.int64]:
    """Return an upper bound of the members that fit in each domain."""
    by_class = [
        np.minimum(np.bincount(numbers, weights=each.by_node[slots]).astype(np.int64), each.members) for each in places
    ]
    found: NDArray[np.int64] = np.sum(by_class, axis=0)
    return found
