"""Rebalancing: the few moves that gain most, by the scores of the profiles themselves; no scores of its own.

How well an instance stands is the score that its profile gives the node it is on, as if it were to be placed now; an
instance that had to do without one of its rules stands at 0. A move gains what the instance itself gains, and what
those gain or lose by it who stay on the two nodes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace

from mandor.lib.steps import FEW, TURN, WRITTEN, Steps, chosen, emptied, ordered, pieces
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.rebalance import PlannedMove, RebalanceSpec
from mandor.placement.cluster_model import ClusterModel
from mandor.placement.conversion import PlacementState, placement_state, workload_key
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.runtime import Scored, run_filters, run_scores
from mandor.placement.framework.watch import Watch
from mandor.placement.movable import may_move, relaxed, whole

LOOKED_AT_MOST = 5000
"""So many places are looked at, of which each has instances that are all alike."""
NEIGHBOURS_MOST = 50
"""So many kinds of neighbours are asked on a node."""
TOLD_MOST = 3
"""So many plugins are named that make the gain."""

_Alike = tuple[Key, str, str, int, str]
"""Workload, group, release, form and node: whoever has the same would gain the same."""


class _Chance(NamedTuple):
    """The best that one can do."""

    key: Key
    to: str
    own: int
    because: str


class MoveSearch:
    """Finds moves on a board of its own, which is changed by what is found."""

    def __init__(
        self, board: ClusterModel, profiles: Mapping[str, Profile], spec: RebalanceSpec, *, now: float, watch: Watch
    ) -> None:
        self._board, self._profiles, self._spec, self._now, self._watch = board, profiles, spec, now, watch
        self.found: list[PlannedMove] = []
        """The one that gains most first; each is worth its while after those before it."""
        self.resting = 0
        """So many may not move again yet."""
        self.staying = 0
        """So many do not move at all, or not now: see `may_move`."""

    def steps(self) -> Steps[None]:
        """The whole search; between two steps others may have their turn, and whoever has had enough may stop."""
        places = yield from self._places()
        best: list[tuple[int, int, _Chance, list[Key]]] = []
        for number, keys in enumerate(places):
            chance = self._look(keys[0])
            if chance is not None:
                best.append((-chance.own, number, chance, keys))
            yield TURN
        heapify(best)
        while best and len(self.found) < self._spec.moves:
            _, number, _, keys = heappop(best)
            chance = self._look(keys[0])  # what was found since may have changed it
            if chance is not None and best and chance.own < -best[0][0]:
                heappush(best, (-chance.own, number, chance, keys))
            elif chance is not None and self._take(chance) and keys[1:]:
                heappush(best, (-chance.own, number, chance, keys[1:]))
            yield TURN

    def _places(self) -> Steps[list[list[Key]]]:
        """Who may move, by place."""
        placed = yield from chosen(
            list(self._board.instances.values()),
            lambda piece: [each for each in piece if placement_state(each) is PlacementState.PLACED],
            each=2,
        )
        members = yield from self._members()
        places: dict[_Alike, list[Key]] = {}
        for piece in pieces((yield from ordered(placed, key=lambda each: each.key)), FEW):
            for instance in piece:
                self._file(instance, members, places)
            yield WRITTEN * len(piece)
        found = list(islice(places.values(), LOOKED_AT_MOST))
        yield from emptied(places)
        return found

    def _members(self) -> Steps[dict[Key, Counter[str]]]:
        """By workload: see `whole`."""
        found: dict[Key, Counter[str]] = {}
        for key in self._board.workloads:
            found[key] = yield from whole((yield from self._board.of_in_steps(key)))
        return found

    def _file(self, instance: Instance, members: Mapping[Key, Counter[str]], places: dict[_Alike, list[Key]]) -> None:
        spec, key = instance.spec, workload_key(instance)
        if not may_move(instance, self._board.workloads.get(key), members.get(key, {})):
            self.staying += 1
        elif spec.pin and instance.meta.created_at + self._spec.rest > self._now:
            self.resting += 1  # it was sent there not long ago
        else:
            alike = key, spec.group, spec.release, spec.variant, spec.node
            places.setdefault(alike, []).append(instance.key)

    def _ask(self, key: Key) -> tuple[Profile, PlacementRequest] | None:
        """As it would be placed now, in the form it has."""
        instance = self._board.instances[key]
        request = self._board.request(instance)
        profile = self._profiles.get(request.profile) if request is not None else None
        if request is None or profile is None or profile.consults:
            return None  # others cannot be asked about what is only tried
        forms = request.forms
        return profile, replace(forms[min(instance.spec.variant, len(forms) - 1)], pin="", avoid=frozenset())

    def _look(self, key: Key) -> _Chance | None:
        """Where it would stand best, beside itself: it ends only when the other one serves."""
        asked, table = self._ask(key), self._board.table
        allocation = table.allocation(key)
        if asked is None or allocation is None:
            return None
        profile, request = asked
        beside = run_filters(profile, CycleState(), request, table.snapshot(), self._watch).feasible
        with table.trial():
            table.drop_allocation(key)
            view = self._view(profile, request)
        here = view.totals.get(allocation.node)
        if here is None and not relaxed(self._board.instances[key]):
            return None  # it would not be let in where it is, and nobody has said that it has to go
        slots = table.snapshot().slots
        there = [node for node in view.totals if node != allocation.node and beside[slots[node]]]
        if not there:
            return None
        to = max(there, key=lambda node: (view.totals[node], node))
        own = view.totals[to] - (here or 0)
        if own < self._spec.min_gain:
            return None
        return _Chance(key, to, own, view.why(allocation.node, to) if here is not None else "all its rules are kept")

    def _take(self, chance: _Chance) -> bool:
        """If the two nodes gain as a whole."""
        table, instance = self._board.table, self._board.instances[chance.key]
        allocation = table.allocation(chance.key)
        assert allocation is not None
        source = allocation.node
        beside = [*self._neighbours(source, chance.key), *self._neighbours(chance.to, chance.key)]
        before = sum(self._stands(key) * many for key, many in beside)
        with table.trial() as trial:
            table.set_allocation(chance.key, chance.to, allocation.shape, allocation.identity, allocation.terms)
            gain = chance.own + sum(self._stands(key) * many for key, many in beside) - before
            if gain >= self._spec.min_gain:
                trial.keep()
        if gain < self._spec.min_gain:
            return False
        self.found.append(
            PlannedMove(
                instance=instance.meta.name,
                namespace=instance.meta.namespace,
                uid=instance.meta.uid,
                workload=instance.spec.workload,
                source=source,
                to=chance.to,
                gain=gain,
                own=chance.own,
                because=chance.because,
            )
        )
        return True

    def _neighbours(self, node: str, but: Key) -> list[tuple[Key, int]]:
        """One of each kind on the node, and how many there are of it."""
        kinds: dict[object, list[Key]] = {}
        for key in sorted(self._board.table.keys_on(node)):
            instance = self._board.instances.get(key)
            if instance is not None and key != but:
                spec = instance.spec
                kinds.setdefault((workload_key(instance), spec.group, spec.release, spec.variant), []).append(key)
        return [(keys[0], len(keys)) for keys in list(kinds.values())[:NEIGHBOURS_MOST]]

    def _stands(self, key: Key) -> int:
        """How well, where it is."""
        asked, table = self._ask(key), self._board.table
        allocation = table.allocation(key)
        if asked is None or allocation is None:
            return 0
        with table.trial():
            table.drop_allocation(key)
            return self._view(*asked).totals.get(allocation.node, 0)

    def _view(self, profile: Profile, request: PlacementRequest) -> "_View":
        nodes, state = self._board.table.snapshot(), CycleState()
        parts: list[Scored] = []
        try:
            feasible = run_filters(profile, state, request, nodes, self._watch).feasible
            among = feasible.nonzero()[0]
            totals = run_scores(profile, state, request, nodes, feasible, among, self._watch, parts)
        finally:
            self._watch.end()
        names = [nodes.nodes[int(slot)].meta.name for slot in among]
        return _View(dict(zip(names, totals.tolist(), strict=True)), names, parts)


class _View(NamedTuple):
    """How one would stand on each node that takes it."""

    totals: dict[str, int]
    names: Sequence[str]
    parts: Sequence[Scored]

    def why(self, source: str, to: str) -> str:
        """`NodeResourcesFit +48, ImageLocality -5`"""
        here, there = self.names.index(source), self.names.index(to)
        gains = {each.plugin.name: each.weight * int(each.scores[there] - each.scores[here]) for each in self.parts}
        most = sorted((name for name in gains if gains[name]), key=lambda name: -abs(gains[name]))
        return ", ".join(f"{name} {gains[name]:+d}" for name in most[:TOLD_MOST])
