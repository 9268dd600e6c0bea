"""The restore controller: moves instances that were placed without a `should` rule, or not in their main form, to a
node that satisfies it."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from mandor.controllers.base import Controller
from mandor.controllers.cluster_model_cache import ClusterModelCache
from mandor.controllers.restore_plan import destination, second_best
from mandor.controllers.writer import Writer
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.lib.turns import in_turns
from mandor.model.instance import Instance, Move
from mandor.model.meta import Key, Object
from mandor.model.node import Node
from mandor.model.priority import PriorityClass
from mandor.model.quota import Quota
from mandor.model.record import Namespace
from mandor.model.reservation import Reservation
from mandor.model.volume import Volume
from mandor.model.workload import Release, Workload
from mandor.placement.cluster_model import ClusterModel
from mandor.placement.conversion import workload_key
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.watch import Guard, Overrun, Unguarded
from mandor.placement.movable import may_move, relaxed, whole
from mandor.store.base import Change, Put, Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder

log = logging.getLogger(__name__)

ONLY_KEY = "all"
PLAN_SECONDS = 10.0  # between two searches
AFTER_SECONDS = 60.0
"""Seconds for which a rule must be satisfiable in every search before an instance moves."""
MOVES_MOST = 10
"""Instances that move at the same time in the whole cluster."""
EVALUATED_MOST = 100
"""Instances evaluated per search; the others follow in the next one."""

Profiles = Callable[[ClusterModel], Mapping[str, Profile]]
"""Returns the scheduler's profiles, made for a cluster model."""


class RestoreController(Controller[str]):
    """Decides with the scheduler's library on a cluster model of its own, which exists only while an instance could
    move. It orders moves; the workload controller carries them out, start-first."""

    name = "restore"
    watches = (
        Namespace.kind,
        PriorityClass.kind,
        Quota.kind,
        Reservation.kind,
        Volume.kind,
        Node.kind,
        Release.kind,
        Workload.kind,
        Instance.kind,
    )
    workers = 1

    def __init__(
        self,
        store: Store,
        clock: Clock,
        recorder: Recorder,
        profiles: Profiles,
        *,
        after_seconds: float = AFTER_SECONDS,
        guard: Callable[[], Guard] = Unguarded,
    ) -> None:
        """`guard`: interrupts plugins that exceed their time limit."""
        self._store, self._clock, self._recorder, self._profiles = store, clock, recorder, profiles
        self._after, self._guard = after_seconds, guard
        self._pause = Backoff(after_seconds, 60 * after_seconds)
        self._relaxed: dict[Key, Instance] = {}
        """Instances that could move; the one evaluated longest ago comes first."""
        self._moving: set[Key] = set()
        self._since: dict[str, float] = {}
        """Time since which the rules can be satisfied, by uid."""
        self._tries: dict[str, int] = {}
        self._not_before: dict[str, float] = {}
        self._models = ClusterModelCache(self.watches)
        self._answers: dict[str, str] = {}
        """Destinations by uid, valid until the cluster model or the profiles change."""
        self._answered_at = 0
        """Version of the model's table for which the destinations were computed."""
        self._stale = False
        """Whether an object changed that does not change that version."""
        self._answered_with: Mapping[str, Profile] | None = None
        self._resting = False
        """Whether no instance could move, so that no search is scheduled."""

    def begin(self, mirrors: Mapping[str, Mirror]) -> None:
        self._mirrors = mirrors
        self._writer = Writer(self._store, mirrors)

    def first(self) -> Iterable[str]:
        return (ONLY_KEY,)

    def observe_all(self, changes: Sequence[Change]) -> Iterable[str]:
        self._models.see(changes)
        if self._models.board is None and isinstance(changes[0].value, Instance):
            changes = [each for each in changes if each.after is None or _noted(each.after) or _noted(each.before)]
        return super().observe_all(changes)

    def observe(self, change: Change) -> Iterable[str]:
        before, after = change.before, change.after
        if isinstance(after, Instance):
            self._note(change.key, after)
        elif isinstance(before, Instance):
            self._note(change.key, None)
        in_table = isinstance(change.value, Instance | Node) or (isinstance(after, Workload) and change.status_only)
        if self._models.board is not None and not in_table:
            self._stale = True
        return (ONLY_KEY,) if self._resting and self._relaxed else ()

    def _note(self, key: Key, instance: Instance | None) -> None:
        live = instance is not None and instance.spec.stop is None and not instance.phase.over
        if instance is not None and live and second_best(instance):
            self._relaxed[key] = instance
        else:
            gone = self._relaxed.pop(key, None)
            if gone is not None:
                self._forget(gone.meta.uid)
        if instance is not None and instance.spec.move is not None:
            self._moving.add(key)
        else:
            self._moving.discard(key)

    def _forget(self, uid: str) -> None:
        for known in (self._since, self._tries, self._not_before, self._answers):
            known.pop(uid, None)

    async def reconcile(self, key: str) -> float | None:
        if not self._relaxed:
            self._resting = True
            await in_turns(self._models.drop())
            return None
        if self._resting:
            self._resting = False
            return PLAN_SECONDS
        stale, self._stale = self._stale, False
        await in_turns(self._models.catch_up(self._mirrors))
        assert self._models.board is not None
        if stale or self._models.board.table.version != self._answered_at:
            self._answers, self._answered_at = {}, self._models.board.table.version
        if len(self._moving) < MOVES_MOST:
            for candidate, node in await self._found(self._models.board):
                await self._move(candidate, node)
        return PLAN_SECONDS

    async def _found(self, board: ClusterModel) -> list[tuple[Instance, str]]:
        """Return instances and their destinations, at most one per workload."""
        profiles = self._profiles(board)
        if profiles is not self._answered_with:
            self._answers, self._answered_with = {}, profiles
        found: dict[Key, tuple[Instance, str]] = {}
        members: dict[Key, Counter[str]] = {}
        with self._guard() as guard:
            for key in list(self._relaxed)[:EVALUATED_MOST]:
                await asyncio.sleep(0)
                candidate = self._relaxed.pop(key, None)
                if candidate is None:
                    continue  # deleted meanwhile
                self._relaxed[key] = candidate
                owner = workload_key(candidate)
                if owner not in members:
                    members[owner] = await in_turns(whole(await in_turns(board.of_in_steps(owner))))
                node = self._where(candidate, board, members[owner], profiles, guard)
                if node:
                    found.setdefault(owner, (candidate, node))
        return list(found.values())[: MOVES_MOST - len(self._moving)]

    def _where(
        self,
        instance: Instance,
        board: ClusterModel,
        members: Mapping[str, int],
        profiles: Mapping[str, Profile],
        guard: Guard,
    ) -> str:
        """Return the node to move to now; empty if there is none, or not yet."""
        key, uid, now = workload_key(instance), instance.meta.uid, self._clock.monotonic()
        request = board.request(instance)
        if request is None or not may_move(instance, board.workloads.get(key), members):
            self._since.pop(uid, None)
            return ""
        if now < self._not_before.get(uid, 0.0):
            return ""
        node = self._answers.get(uid)
        if node is None:
            try:
                node = guard.run(lambda: destination(instance, request, board.table, profiles, guard))
            except Overrun:
                node = ""
            self._answers[uid] = node
        if not node:
            self._since.pop(uid, None)
            return ""
        due = self._since.setdefault(uid, now) + self._after
        return node if now >= due else ""

    async def _move(self, instance: Instance, node: str) -> None:
        """Order the move. Further attempts wait longer each time."""
        uid = instance.meta.uid
        self._tries[uid] = self._tries.get(uid, 0) + 1
        self._not_before[uid] = self._clock.monotonic() + self._pause.pause(self._tries[uid])
        self._since.pop(uid, None)
        order = Move(to=node, reason=_reason(instance, node), at=self._clock.now())
        await self._writer.commit([Put(instance.changed(spec=replace(instance.spec, move=order)))])
        self._recorder.note(instance, "Moving", f"moving from {instance.spec.node} to {node}: {order.reason}")
        log.info("%s moves from %s to %s: %s", instance.key, instance.spec.node, node, order.reason)


def _reason(instance: Instance, node: str) -> str:
    rules = ", ".join(f"`{rule}`" for rule in relaxed(instance))
    return f"{rules} can be satisfied on {node}" if rules else f"a preferred alternative fits on {node}"


def _noted(value: Object | None) -> bool:
    """Return whether the instance can matter: it has another form, a relaxed rule or a move."""
    return value is not None and bool((spec := value.spec).variant or spec.relaxed or spec.move)
