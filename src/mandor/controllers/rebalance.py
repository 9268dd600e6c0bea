"""The rebalance controller: searches the moves that gain most, and orders them one after another."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

from mandor.controllers.base import Controller
from mandor.controllers.draft import Draft
from mandor.controllers.rebalance_plan import RebalanceInputs, cancelled, due, found, plan_rebalance
from mandor.controllers.restore import Profiles
from mandor.controllers.writer import Writer
from mandor.lib.clock import Clock
from mandor.lib.steps import Steps, pieces
from mandor.lib.turns import in_turns
from mandor.model.instance import Instance
from mandor.model.meta import Key, Object
from mandor.model.node import Node
from mandor.model.priority import PriorityClass
from mandor.model.quota import Quota
from mandor.model.rebalance import PlannedMove, Rebalance
from mandor.model.record import Namespace
from mandor.model.reservation import Reservation
from mandor.model.volume import Volume
from mandor.model.workload import Release, Workload
from mandor.placement.cluster_model import ClusterModel
from mandor.placement.conversion import workload_key
from mandor.placement.framework.runtime import PluginFault
from mandor.placement.framework.watch import Guard, Overrun, Unguarded
from mandor.placement.movable import may_move, whole
from mandor.placement.rebalance import MoveSearch
from mandor.store.base import Change, Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder

log = logging.getLogger(__name__)

_BOARD = (
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


class RebalanceController(Controller[str]):
    """A key is the name of a rebalance, which may have been deleted. The controller orders moves; the workload
    controller carries them out, start-first and within the disruption budget."""

    name = "rebalance"
    watches = (*_BOARD, Rebalance.kind)
    workers = 1

    def __init__(
        self,
        store: Store,
        clock: Clock,
        recorder: Recorder,
        profiles: Profiles,
        *,
        guard: Callable[[], Guard] = Unguarded,
    ) -> None:
        """`guard`: interrupts plugins that exceed their time limit."""
        self._store, self._clock, self._recorder, self._profiles, self._guard = store, clock, recorder, profiles, guard
        self._sent: dict[Key, Instance] = {}
        """Instances that move for a rebalance."""
        self._replacements: dict[str, Key] = {}
        """Replacements by the uid of the instance that they replace."""

    def begin(self, mirrors: Mapping[str, Mirror]) -> None:
        self._mirrors = mirrors
        self._writer = Writer(self._store, mirrors)

    def observe_all(self, changes: Sequence[Change]) -> Iterable[str]:
        if isinstance(changes[0].value, Instance) and not self._sent:
            changes = [
                each for each in changes if each.after is None or _on_the_way(each.after) or _on_the_way(each.before)
            ]
        return super().observe_all(changes)

    def observe(self, change: Change) -> Iterable[str]:
        if isinstance(change.value, Rebalance):
            return (change.value.meta.name,)
        if isinstance(change.value, Instance):
            return self._note(change)
        return ()

    def _note(self, change: Change) -> Iterable[str]:
        before, after = change.before, change.after
        if isinstance(after, Instance):
            if after.spec.instead_of:
                self._replacements[after.spec.instead_of] = change.key
        elif isinstance(before, Instance) and self._replacements.get(before.spec.instead_of) == change.key:
            del self._replacements[before.spec.instead_of]
        known = self._sent.pop(change.key, None) if self._sent else None
        if isinstance(after, Instance) and after.spec.move is not None and after.spec.move.by:
            self._sent[change.key] = after
            return (after.spec.move.by,)
        return (known.spec.move.by,) if known is not None and known.spec.move is not None else ()

    async def reconcile(self, key: str) -> float | None:
        order = self._mirrors[Rebalance.kind].get(Key(Rebalance.kind, "", key))
        now, draft = self._clock.now(), Draft()
        if not isinstance(order, Rebalance):
            for each in self._sent.values():
                if each.spec.move is not None and each.spec.move.by == key:
                    cancelled(draft, each)
        elif due(order, now):
            moves, problem = await self._search(order)
            found(draft, order, moves, now, problem)
        else:
            ready = await in_turns(self._ready(order))
            draft = plan_rebalance(order, RebalanceInputs(self._instance, self._replacement, ready), now)
        conflicts = await self._writer.commit_each(draft.writes) if draft.writes else 0
        for note in draft.notes:
            self._recorder.note(note.about, note.reason, note.message, type="warning" if note.warning else "normal")
        return 0.5 if conflicts else draft.again_seconds

    async def _search(self, order: Rebalance) -> tuple[list[PlannedMove], str]:
        """Search on a separate cluster model in small steps; other tasks run in between."""
        board = ClusterModel()
        await in_turns(board.put_all(list(chain.from_iterable(self._mirrors[kind].items() for kind in _BOARD))))
        try:
            return await self._search_on(board, order)
        finally:
            await in_turns(board.dismantle())

    async def _search_on(self, board: ClusterModel, order: Rebalance) -> tuple[list[PlannedMove], str]:
        with self._guard() as guard:
            search = MoveSearch(board, self._profiles(board), order.spec, now=self._clock.now(), watch=guard)
            steps = search.steps()
            try:
                for _ in iter(lambda: guard.run(lambda: next(steps, self)), self):
                    await asyncio.sleep(0)
            except Overrun:
                return [], f"the plugin {guard.last} exceeded its time limit and was interrupted"
            except PluginFault as fault:
                return [], str(fault)
        return search.found, ""

    def _instance(self, move: PlannedMove) -> Instance | None:
        found = self._mirrors[Instance.kind].get(move.key)
        return found if isinstance(found, Instance) and found.meta.uid == move.uid else None

    def _replacement(self, move: PlannedMove) -> Instance | None:
        key = self._replacements.get(move.uid)
        found = self._mirrors[Instance.kind].get(key) if key is not None else None
        return found if isinstance(found, Instance) else None

    def _ready(self, order: Rebalance) -> Steps[Callable[[Instance], bool]]:
        """Return a function that tells whether a waiting instance may move now."""
        waiting = [each for each in order.status.moves if each.state == "Waiting"]
        owners = {Key(Workload.kind, each.namespace, each.workload) for each in waiting}
        members: dict[Key, list[Instance]] = {}
        for piece in pieces(list(self._mirrors[Instance.kind].items())) if owners else ():
            for each in piece:
                if isinstance(each, Instance) and (key := workload_key(each)) in owners:
                    members.setdefault(key, []).append(each)
            yield 3 * len(piece)
        counted: dict[Key, Counter[str]] = {}
        for key, those in members.items():
            counted[key] = yield from whole(those)

        def ready(instance: Instance) -> bool:
            key = workload_key(instance)
            workload = self._mirrors[Workload.kind].get(key)
            return may_move(instance, workload if isinstance(workload, Workload) else None, counted[key])

        return ready


def _on_the_way(value: Object | None) -> bool:
    """Return whether the instance moves or is a replacement."""
    return value is not None and bool(value.spec.move or value.spec.instead_of)
