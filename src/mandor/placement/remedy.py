"""Remedies: the smallest changes that would let a pending instance run, each tried by a decision."""

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
"""Changes tried for one instance."""
SHOWN = 5
"""Remedies shown."""
TOGETHER = frozenset({"uncordon", "return", "tolerate", "rule", "pool", "engine", "less"})
"""Kinds of changes that are tried in pairs if no single change is enough."""


OF_FORM = frozenset({"less", "engine", "port", "end"})
"""Kinds of changes that concern one form of an instance only."""


class Remedy(Struct, frozen=True, omit_defaults=True):
    """A change with which the instance fits."""

    kind: str
    text: str
    node: str
    """The node that the instance would get."""
    cost: float
    """Only for the order: less is better."""
    relaxed: tuple[str, ...] = ()
    """Soft rules that would still be given up."""


def remedies(
    profile: Profile,
    request: PlacementRequest,
    table: Table,
    *,
    stopping: Sequence[Key] = (),
    may_end: Callable[[Key], bool] = lambda key: True,
    watch: Watch | None = None,
) -> list[Remedy]:
    """Return remedies, the cheapest first; empty: no tried change is enough. The table is unchanged afterwards.

    `may_end` returns whether stopping an instance may be proposed.
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
            continue  # only the cheapest of each kind is shown
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
