"""The fast way to decide: answers from cached scores and cached refusals.

Each answer equals the one of the plain way (`cycle.find_plain`), which calls every plugin for every node. A method that
has no answer returns None, and the caller takes the plain way.
"""

from collections.abc import Mapping

from msgspec import structs

from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.placement.decision import Decision
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.framework.watch import Watch
from mandor.placement.score_row import best_slot, first_slot, fits_slot, foreseeable, next_slots

FEW_NODES = 5
"""Nodes up to which the plain way is faster than looking for cached scores."""
_NO_KEY = Key(Instance.kind, "", "")
"""The key of cached requests: a refusal holds for all instances of a class."""


class FastDecider:
    """Uses the score rows in the snapshot's cache, and keeps the refusals of one version of the table."""

    __slots__ = ("_refusals", "_refused_at", "few_nodes")

    def __init__(self, *, few_nodes: int = 0) -> None:
        """`few_nodes`: number of nodes up to which the plain way is taken."""
        self.few_nodes = few_nodes
        self._refusals: dict[PlacementRequest, Decision] = {}
        """By request without key."""
        self._refused_at = -1
        """The version of the table for which the refusals hold."""

    # Whole decisions.

    def decide(
        self,
        profile: Profile,
        request: PlacementRequest,
        nodes: Snapshot,
        watch: Watch,
        *,
        nominated: str = "",
        consulted: Mapping[str, object] | None = None,
    ) -> Decision | None:
        """Decide a request that fits with all its rules, while no room is held for pending instances."""
        if nominated or nodes.occupancy.lowest_held() is not None:
            return None
        state = CycleState(consulted)
        best = best_slot(profile, state, request, nodes, watch)
        if best < 0:
            return None
        return Decision(request.key, nodes.nodes[best].meta.name, request=request, state=state)

    def refusal(self, request: PlacementRequest, version: int) -> Decision | None:
        """Return the cached refusal of a replica. `version`: the current one of the table."""
        if self._refused_at != version:
            self._refusals.clear()
            self._refused_at = version
        if not self._refusals:
            return None
        known = self._refusals.get(structs.replace(request, key=_NO_KEY))
        return None if known is None else structs.replace(known, key=request.key)

    def remember(self, profile: Profile, request: PlacementRequest, decision: Decision, version: int) -> None:
        """Cache a decision made on this version of the table, if it is a refusal that holds for all replicas."""
        if decision.node or decision.fault or decision.nominated or self._refused_at != version:
            return
        # Replicas may differ in their volumes, though all else is the same.
        if profile.by_class and not request.shape.volumes:
            self._refusals[structs.replace(request, key=_NO_KEY)] = decision

    def forget(self) -> None:
        """Drop the refusals, because the plugins were replaced."""
        self._refusals.clear()

    # Steps of a decision.

    def find(
        self,
        profile: Profile,
        state: CycleState,
        request: PlacementRequest,
        nodes: Snapshot,
        watch: Watch,
        *,
        nominated: str = "",
    ) -> str | None:
        """Return the best node with the rules that are left in the request, or the nominated one if it fits there.

        Empty: no node fits."""
        if not profile.local:
            return None
        slot = nodes.slots.get(nominated) if nominated else None
        if slot is not None and fits_slot(profile, state, request, nodes, slot, watch):
            return nominated
        best = best_slot(profile, state, request, nodes, watch)
        return nodes.nodes[best].meta.name if best >= 0 else ""

    def first(
        self, profile: Profile, state: CycleState, request: PlacementRequest, nodes: Snapshot, watch: Watch
    ) -> int:
        """Return the slot of the first of the best nodes, for dry runs; negative: no answer."""
        return first_slot(profile, state, request, nodes, watch)

    # Replicas of an instance that has just been decided.

    def foresees(self, profile: Profile, request: PlacementRequest, nodes: Snapshot) -> bool:
        """Return whether `replicas` has an answer."""
        return foreseeable(profile, request, nodes)

    def replicas(
        self, profile: Profile, request: PlacementRequest, nodes: Snapshot, count: int, watch: Watch
    ) -> list[int]:
        """Return the slots that the next `count` replicas get, each counted before the next; fewer if no more fit."""
        return next_slots(profile, request, nodes, count, watch)


FAST = FastDecider()
"""A shared decider that caches no refusals."""
