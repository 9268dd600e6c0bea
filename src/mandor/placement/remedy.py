"""The smallest change that would let a pending instance run: changes are tried, cheapest first, by really deciding."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations

from msgspec import Struct

from mandor.model.meta import Key
from mandor.placement.candidate import Candidate, candidates
from mandor.placement.cycle import decide
from mandor.placement.decision import Decision
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.watch import Watch
from mandor.placement.table import Table

TRIES_MOST = 96
"""So many changes are tried for one instance."""
SHOWN = 5
TOGETHER = frozenset({"uncordon", "return", "tolerate", "rule", "pool", "engine", "less"})
"""Where no single change is enough, two of these are tried."""


OF_FORM = frozenset({"less", "engine", "port", "end"})
"""What helps one form of an instance, and need not help another."""


class Remedy(Struct, frozen=True, omit_defaults=True):
    """A change with which it was tried, and fits."""

    kind: str
    text: str
    node: str
    """Where it would go."""
    cost: float
    """Of no meaning but that less is better."""
    relaxed: tuple[str, ...] = ()
    """The soft rules that would be given up even so."""


def remedies(
    profile: Profile,
    request: PlacementRequest,
    table: Table,
    *,
    stopping: Sequence[Key] = (),
    may_end: Callable[[Key], bool] = lambda key: True,
    watch: Watch | None = None,
) -> list[Remedy]:
    """The cheapest first; empty: nothing that was tried is enough. The table is as before afterwards.

    `may_end`: whether ending this instance may be proposed.
    """
    known = [
        each
        for each in candidates(profile, request, table, tuple(stopping))
        if each.kind == "wait" or all(may_end(key) for key in each.ends)
    ]
    known.sort(key=lambda each: each.cost)
    found = list(_working(profile, request, table, ((each,) for each in known), watch))
    for form in request.forms[1:]:
        own = [each for each in candidates(profile, form, table, ()) if each.kind in OF_FORM]
        allowed = [_named(each, form) for each in own if all(may_end(key) for key in each.ends)]
        found += _working(
            profile, form, table, ((each,) for each in sorted(allowed, key=lambda each: each.cost)), watch
        )
    found = sorted(found, key=lambda each: each.cost)[:SHOWN]
    if not found:
        pairs = combinations([each for each in known if each.kind in TOGETHER], 2)
        by_cost = sorted(pairs, key=lambda pair: pair[0].cost + pair[1].cost)
        found = list(_working(profile, request, table, by_cost, watch))
    return found


def _named(change: Candidate, form: PlacementRequest) -> Candidate:
    return change if change.ends else replace(change, text=f"{change.text} in {form.shape.form_name}")


def _working(
    profile: Profile,
    request: PlacementRequest,
    table: Table,
    tries: "Iterator[tuple[Candidate, ...]] | Sequence[tuple[Candidate, ...]]",
    watch: Watch | None,
) -> Iterator[Remedy]:
    kinds: set[tuple[str, ...]] = set()
    for number, changes in enumerate(tries):
        kind = tuple(each.kind for each in changes)
        if number >= TRIES_MOST or len(kinds) >= SHOWN:
            return
        if kind in kinds:
            continue  # the cheapest of its kind is enough
        decision = _tried(profile, request, table, changes, watch)
        if decision.node:
            kinds.add(kind)
            text = ", and ".join(each.text for each in changes)
            cost = round(sum(each.cost for each in changes), 1)
            yield Remedy("+".join(kind), text, decision.node, cost, decision.relaxed)


def _tried(
    profile: Profile, request: PlacementRequest, table: Table, changes: Sequence[Candidate], watch: Watch | None
) -> Decision:
    for each in changes:
        request = each.request(request)
    with _changed(table, changes):
        return decide(profile, request, table.snapshot(), watch=watch)


@contextmanager
def _changed(table: Table, changes: Sequence[Candidate]) -> Iterator[None]:
    before = {node.meta.name: table.node(node.meta.name) for each in changes for node in each.nodes}
    try:
        for each in changes:
            for node in each.nodes:
                table.set_node(node)
        with table.trial():
            for each in changes:
                for key in each.ends:
                    table.drop_allocation(key)
            yield
    finally:
        for name, was in before.items():
            if was is None:
                table.remove_node(name)
            else:
                table.set_node(was)
