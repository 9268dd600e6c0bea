"""Rebalancing: finds the moves that gain most by the scores of the scheduler profiles.

The value of an instance's node is the score that its profile gives it now, as for a new placement; the value is 0 if a
rule of the instance was given up. The gain of a move is the gain of the instance, plus the gains and losses of the
instances that stay on the two nodes. With `prefer`, only the scores of `prefer` rules count.
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
from mandor.placement.plugins.inter_pod_affinity import InterPodAffinity
from mandor.placement.plugins.node_affinity import NodeAffinity
from mandor.placement.plugins.pod_topology_spread import PodTopologySpread

LOOKED_AT_MOST = 5000
"""Groups of equal instances on a node that are examined."""
NEIGHBOURS_MOST = 50
"""Kinds of neighbours on a node whose gain is computed."""
PREFERENCES = frozenset({NodeAffinity.name, InterPodAffinity.name, PodTopologySpread.name})
"""Plugins whose scores come from `prefer` rules."""
TOLD_MOST = 3
"""Plugins named in the reason of a move."""

_Place = tuple[Key, str, str, int, str]
"""Workload, group, release, form and node; equal instances would gain the same."""


class _Move(NamedTuple):
    """The best move of an instance."""

    key: Key
    to: str
    own: int
    because: str


class MoveSearch:
    """Finds moves on its own cluster model, to which found moves are applied."""

    def __init__(
        self, model: ClusterModel, profiles: Mapping[str, Profile], spec: RebalanceSpec, *, now: float, watch: Watch
    ) -> None:
        self._model, self._profiles, self._spec, self._now, self._watch = model, profiles, spec, now, watch
        self.found: list[PlannedMove] = []
        """Found moves, the largest gain first; each is computed after those before it."""
        self.resting = 0
        """Number of instances that were moved too recently."""
        self.staying = 0
        """Number of instances that may not move (`may_move`)."""

    def steps(self) -> Steps[None]:
        """Run the search in steps; it can be stopped between two of them."""
        places = yield from self._places()
        best: list[tuple[int, int, _Move, list[Key]]] = []
        for number, keys in enumerate(places):
            move = self._look(keys[0])
            if move is not None:
                best.append((-move.own, number, move, keys))
            yield TURN
        heapify(best)
        while best and len(self.found) < self._spec.moves:
            _, number, _, keys = heappop(best)
            move = self._look(keys[0])  # moves found since may have changed it
            if move is not None and best and move.own < -best[0][0]:
                heappush(best, (-move.own, number, move, keys))
            elif move is not None and self._take(move) and keys[1:]:
                heappush(best, (-move.own, number, move, keys[1:]))
            yield TURN

    def _places(self) -> Steps[list[list[Key]]]:
        """Return the keys of movable instances, grouped by equal instances on a node."""
        placed = yield from chosen(
            list(self._model.instances.values()),
            lambda piece: [each for each in piece if placement_state(each) is PlacementState.PLACED],
            each=2,
        )
        members = yield from self._members()
        places: dict[_Place, list[Key]] = {}
        for piece in pieces((yield from ordered(placed, key=lambda each: each.key)), FEW):
            for instance in piece:
                self._classify(instance, members, places)
            yield WRITTEN * len(piece)
        found = list(islice(places.values(), LOOKED_AT_MOST))
        yield from emptied(places)
        return found

    def _members(self) -> Steps[dict[Key, Counter[str]]]:
        """Return the result of `whole` by workload."""
        found: dict[Key, Counter[str]] = {}
        for key in self._model.workloads:
            found[key] = yield from whole((yield from self._model.of_in_steps(key)))
        return found

    def _classify(
        self, instance: Instance, members: Mapping[Key, Counter[str]], places: dict[_Place, list[Key]]
    ) -> None:
        spec, key = instance.spec, workload_key(instance)
        movable = may_move(instance, self._model.workloads.get(key), members.get(key, {}))
        if not movable or (self._spec.prefer and not self._prefers(instance)):
            self.staying += 1
        elif spec.pin and instance.meta.created_at + self._spec.rest > self._now:
            self.resting += 1  # moved recently
        else:
            place = key, spec.group, spec.release, spec.variant, spec.node
            places.setdefault(place, []).append(instance.key)

    def _prefers(self, instance: Instance) -> bool:
        request = self._model.request(instance)
        return request is not None and bool(request.shape.prefer)

    def _ask(self, key: Key) -> tuple[Profile, PlacementRequest] | None:
        """Return the request of an instance in its current form; None: it cannot be decided here."""
        instance = self._model.instances[key]
        request = self._model.request(instance)
        profile = self._profiles.get(request.profile) if request is not None else None
        if request is None or profile is None or profile.consults:
            return None  # no consultation in a search
        forms = request.forms
        return profile, replace(forms[min(instance.spec.variant, len(forms) - 1)], pin="", avoid=frozenset())

    def _look(self, key: Key) -> _Move | None:
        """Return the best move of an instance; it stays on its node until the new one serves."""
        asked, table = self._ask(key), self._model.table
        allocation = table.allocation(key)
        if asked is None or allocation is None:
            return None
        profile, request = asked
        beside = run_filters(profile, CycleState(), request, table.snapshot(), self._watch).feasible
        with table.trial():
            table.drop_allocation(key)
            scores = self._scores(profile, request)
        here = scores.totals.get(allocation.node)
        if here is None and not relaxed(self._model.instances[key]):
            return None  # its node would refuse it now, but it does not have to leave
        slots = table.snapshot().slots
        there = [node for node in scores.totals if node != allocation.node and beside[slots[node]]]
        if not there:
            return None
        to = max(there, key=lambda node: (scores.totals[node], scores.all_totals[node], node))
        own = scores.totals[to] - (here or 0)
        if own < self._spec.min_gain:
            return None
        return _Move(key, to, own, scores.why(allocation.node, to) if here is not None else "all its rules are kept")

    def _take(self, move: _Move) -> bool:
        """Apply a move if the two nodes gain in total; return whether it was applied."""
        table, instance = self._model.table, self._model.instances[move.key]
        allocation = table.allocation(move.key)
        assert allocation is not None
        source = allocation.node
        beside = [*self._neighbours(source, move.key), *self._neighbours(move.to, move.key)]
        before = sum(self._value(key) * many for key, many in beside)
        with table.trial() as trial:
            table.set_allocation(move.key, move.to, allocation.shape, allocation.identity, allocation.terms)
            gain = move.own + sum(self._value(key) * many for key, many in beside) - before
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
                to=move.to,
                gain=gain,
                own=move.own,
                because=move.because,
            )
        )
        return True

    def _neighbours(self, node: str, but: Key) -> list[tuple[Key, int]]:
        """Return one instance of each kind on a node, with the number of equal ones."""
        kinds: dict[object, list[Key]] = {}
        for key in sorted(self._model.table.keys_on(node)):
            instance = self._model.instances.get(key)
            if instance is not None and key != but:
                spec = instance.spec
                kinds.setdefault((workload_key(instance), spec.group, spec.release, spec.variant), []).append(key)
        return [(keys[0], len(keys)) for keys in list(kinds.values())[:NEIGHBOURS_MOST]]

    def _value(self, key: Key) -> int:
        """Return the score of an instance's current node."""
        asked, table = self._ask(key), self._model.table
        allocation = table.allocation(key)
        if asked is None or allocation is None:
            return 0
        with table.trial():
            table.drop_allocation(key)
            return self._scores(*asked).totals.get(allocation.node, 0)

    def _scores(self, profile: Profile, request: PlacementRequest) -> "_NodeScores":
        nodes, state = self._model.table.snapshot(), CycleState()
        parts: list[Scored] = []
        try:
            feasible = run_filters(profile, state, request, nodes, self._watch).feasible
            among = feasible.nonzero()[0]
            totals = run_scores(profile, state, request, nodes, feasible, among, self._watch, parts)
        finally:
            self._watch.end()
        names = [nodes.nodes[int(slot)].meta.name for slot in among]
        everything = dict(zip(names, totals.tolist(), strict=True))
        if not self._spec.prefer:
            return _NodeScores(everything, everything, names, parts)
        kept = [each for each in parts if each.plugin.name in PREFERENCES]
        preferred = {name: sum(each.weight * int(each.scores[i]) for each in kept) for i, name in enumerate(names)}
        return _NodeScores(preferred, everything, names, kept)


class _NodeScores(NamedTuple):
    """The scores of an instance on each node that fits."""

    totals: dict[str, int]
    """The scores that count."""
    all_totals: dict[str, int]
    names: Sequence[str]
    parts: Sequence[Scored]

    def why(self, source: str, to: str) -> str:
        """Return the gain by plugin, as in `NodeResourcesFit +48, ImageLocality -5`."""
        here, there = self.names.index(source), self.names.index(to)
        gains = {each.plugin.name: each.weight * int(each.scores[there] - each.scores[here]) for each in self.parts}
        most = sorted((name for name in gains if gains[name]), key=lambda name: -abs(gains[name]))
        return ", ".join(f"{name} {gains[name]:+d}" for name in most[:TOLD_MOST])
