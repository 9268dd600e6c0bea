"""Numbers of instances that a rule selects, by node and by topology domain (zone, rack or another fact).

The counts of a rule are computed at its first use; each later placement updates the count of one node and of its
domains. Memory grows with the nodes that have such instances; arrays over all nodes exist for the last used rules.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mandor.placement.framework.column import Column, Mask
from mandor.placement.framework.identity import NO_IDENTITY, AffinityTerm, Identity, Selector
from mandor.placement.framework.read_only import ReadOnly, Writable
from mandor.placement.framework.request import Shape

Counts = NDArray[np.int64]
T = TypeVar("T", bound=np.generic)
Fact = Callable[[str], Column[tuple[str | None]]]

NODE = "node"
_ARRAYS_MOST = 24
_SELECTORS_MOST = 4096


@dataclass(frozen=True, slots=True)
class Domains:
    """Number of selected instances in each domain of a fact; `counts[codes[slot]]` is that of a node's domain."""

    column: Column[tuple[str | None]] | None
    """Column of the fact; None: each node is its own domain."""
    counts: Counts
    """Number by domain; nodes without the fact are not counted."""
    by_node: Counts
    """Number by node."""

    @property
    def codes(self) -> NDArray[np.intp] | None:
        return None if self.column is None else self.column.codes

    @property
    def at_nodes(self) -> Counts:
        """Number in the domain of each node; 0 for nodes without the fact."""
        return self.spread_out(self.counts)

    def spread_out(self, by_domain: NDArray[T]) -> NDArray[T]:
        """Return values by domain as values by node."""
        return by_domain if self.column is None else by_domain.take(self.column.codes)

    @property
    def present(self) -> Mask | None:
        """Mask of the domains that have nodes, including the one without the fact; None: all have."""
        return None if self.column is None else self.column.present

    def among(self, nodes: Mask) -> tuple[Counts, Mask]:
        """Return the numbers by domain counting only these nodes, and a mask of the domains of these nodes."""
        if self.column is None:
            return np.where(nodes, self.counts, 0), nodes
        codes, size = self.column.codes[nodes], len(self.counts)
        counts = np.bincount(codes, weights=self.by_node[nodes], minlength=size).astype(np.int64)
        return counts, np.bincount(codes, minlength=size) > 0


class Counter:
    """Number of some instances by node."""

    __slots__ = ("by_node", "dense", "domains", "shown", "total")

    def __init__(self) -> None:
        self.by_node: dict[str, int] = {}
        self.total = 0
        self.dense: Counts | None = None
        self.shown: Counts | None = None
        """Read-only view of `dense`."""
        self.domains: dict[str, tuple[int, Counts, Counts]] = {}
        """By fact: version of the column, numbers by code, and a read-only view of them."""

    def add(self, node: str, count: int) -> None:
        now = self.by_node.get(node, 0) + count
        if now:
            self.by_node[node] = now
        else:
            del self.by_node[node]
        self.total += count


class TopologyCounts(ReadOnly):
    """Number of instances that a rule selects, by node and by domain (zone, rack or another fact)."""

    terms_version: int
    """Number of times that a rule of placed instances came or went."""
    _slots: Mapping[str, int]
    _fact: Fact
    _placed: dict[Identity, Counter]
    _by_handle: dict[Hashable, set[Identity]]
    _selected: dict[Selector, Counter]
    _selectors: dict[Hashable, dict[Selector, Counter]]
    _terms: dict[AffinityTerm, Counter]
    _terms_by_handle: dict[Hashable, dict[AffinityTerm, Counter]]
    _dense: dict[int, Counter]

    def domains(self, selector: Selector, over: str) -> Domains:
        """Return the number of selected instances by domain."""
        return self._domains(self._counter(selector), over)

    def terms_matching(self, identity: Identity) -> list[AffinityTerm]:
        """Return the affinity terms of placed instances whose selectors match an identity."""
        if not self._terms or identity is NO_IDENTITY:
            return []
        found: list[AffinityTerm] = []
        for handle in identity.handles:
            found += [term for term in self._terms_by_handle.get(handle, ()) if term.selector.matches(identity)]
        return found

    def avoided(self, identity: Identity) -> bool:
        """Return whether a placed instance has a `should` rule to be apart from it."""
        terms = self.terms_matching(identity)
        return any(term.kind == "apart" and term.strength == "should" and term.limit == 1 for term in terms)

    def owners(self, term: AffinityTerm, over: str = "") -> Domains:
        """Number of placed instances that have the rule, by domain; the rule is one of `terms_matching`.

        `over`: other domains than those of the rule.
        """
        return self._domains(self._terms[term], over or term.over)

    def known(self, over: str) -> Mask:
        """Return a mask of the nodes that have the fact."""
        return self._fact(over).where("known", _is_known)

    def of_group(self, namespace: str, workload: str, group: str) -> list[Identity]:
        """Return the placed identities of a group; more than one only while labels change."""
        return [
            each
            for each in self._by_handle.get(workload, ())
            if (each.namespace, each.workload, each.group) == (namespace, workload, group)
        ]

    def _counter(self, selector: Selector) -> Counter:
        found = self._selected.get(selector)
        if found is None:
            if len(self._selected) >= _SELECTORS_MOST:
                self._drop_selector(next(iter(self._selected)))
            found = Counter()
            for identity in self._by_handle.get(selector.handle, ()):
                if selector.matches(identity):
                    for node, count in self._placed[identity].by_node.items():
                        found.add(node, count)
            self._selected[selector] = found
            self._selectors.setdefault(selector.handle, {})[selector] = found
        return found

    def _drop_selector(self, selector: Selector) -> None:
        self._dense.pop(id(self._selected.pop(selector)), None)
        of_handle = self._selectors[selector.handle]
        del of_handle[selector]
        if not of_handle:
            del self._selectors[selector.handle]

    def _domains(self, counter: Counter, over: str) -> Domains:
        dense = self._array(counter)
        if over == NODE:
            return Domains(None, dense, dense)
        column = self._fact(over)
        none = column.code((None,))
        known = counter.domains.get(over)
        if known is None or known[0] != column.version:
            counts = np.bincount(column.codes, weights=dense, minlength=column.codes_most).astype(np.int64)
            if none is not None:
                counts[none] = 0
            known = counter.domains[over] = (column.version, counts, _read_only(counts))
        return Domains(column, known[2], dense)

    def _array(self, counter: Counter) -> Counts:
        # Least recently used order: a used array moves to the end.
        self._dense.pop(id(counter), None)
        if counter.dense is None:
            dense = np.zeros(len(self._slots), dtype=np.int64)
            dense[[self._slots[node] for node in counter.by_node]] = list(counter.by_node.values())
            counter.dense, counter.shown = dense, _read_only(dense)
            counter.domains.clear()
            while len(self._dense) >= _ARRAYS_MOST:
                old = self._dense.pop(next(iter(self._dense)))
                old.dense = old.shown = None
                old.domains.clear()
        self._dense[id(counter)] = counter
        assert counter.shown is not None
        return counter.shown


class MutableTopologyCounts(Writable, TopologyCounts):
    """The counts as the table keeps them; the table reports when slots change (`renumbered`)."""

    def __init__(self, slots: Mapping[str, int], fact: Fact) -> None:
        """`slots` and `fact` are the table's own."""
        self.terms_version = 0
        self._slots = slots
        self._fact = fact
        self._placed = {}
        self._by_handle = {}
        self._selected = {}
        self._selectors = {}
        self._terms = {}
        self._terms_by_handle = {}
        self._dense = {}

    def add(self, node: str, shape: Shape, identity: Identity, sign: int) -> None:
        """Count one instance more (`sign` 1) or less (-1) on a node of the table."""
        if identity is NO_IDENTITY:
            return
        placed = self._counter_of(identity)
        self._change(placed, node, sign)
        if self._selected:
            for counter in self._selecting(identity):
                self._change(counter, node, sign)
        for term in shape.affinity_terms(identity):
            self._change_term(term, node, sign)
        if not placed.total:
            self._forget(identity)

    def add_all(self, nodes: Sequence[str], identity: Identity) -> None:
        """Count one instance more on each of these nodes; its shape has no affinity terms."""
        if identity is NO_IDENTITY:
            return
        for counter in (self._counter_of(identity), *self._selecting(identity)):
            for node in nodes:
                self._change(counter, node, 1)

    def _counter_of(self, identity: Identity) -> Counter:
        placed = self._placed.get(identity)
        if placed is None:
            placed = self._placed[identity] = Counter()
            for handle in identity.handles:
                self._by_handle.setdefault(handle, set()).add(identity)
        return placed

    def _selecting(self, identity: Identity) -> list[Counter]:
        """Return the counters of the selectors that match an identity."""
        return [
            counter
            for handle in (identity.handles if self._selected else ())
            for selector, counter in self._selectors.get(handle, {}).items()
            if selector.matches(identity)
        ]

    def renumbered(self) -> None:
        """Drop all arrays, after the numbers of slots changed."""
        for counter in self._dense.values():
            counter.dense = counter.shown = None
            counter.domains.clear()
        self._dense.clear()

    def _change_term(self, term: AffinityTerm, node: str, sign: int) -> None:
        counter = self._terms.get(term)
        if counter is None:
            counter = self._terms[term] = Counter()
            self.terms_version += 1
            self._terms_by_handle.setdefault(term.selector.handle, {})[term] = counter
        self._change(counter, node, sign)
        if not counter.total:
            del self._terms[term]
            self.terms_version += 1
            self._dense.pop(id(counter), None)
            of_handle = self._terms_by_handle[term.selector.handle]
            del of_handle[term]
            if not of_handle:
                del self._terms_by_handle[term.selector.handle]

    def _change(self, counter: Counter, node: str, sign: int) -> None:
        counter.add(node, sign)
        if counter.dense is None:
            return
        slot = self._slots[node]
        counter.dense[slot] += sign
        for over, (version, counts, _) in list(counter.domains.items()):
            column = self._fact(over)
            if column.version != version:
                del counter.domains[over]
                continue
            code = int(column.codes[slot])
            if code != column.code((None,)):
                counts[code] += sign

    def _forget(self, identity: Identity) -> None:
        del self._placed[identity]
        for handle in identity.handles:
            same = self._by_handle[handle]
            same.discard(identity)
            if not same:
                del self._by_handle[handle]


def _read_only(array: Counts) -> Counts:
    view = array.view()
    view.flags.writeable = False
    return view


def _is_known(value: tuple[str | None]) -> bool:
    return value[0] is not None
