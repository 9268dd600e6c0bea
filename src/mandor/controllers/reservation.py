"""The reservation controller: opens and closes reservations, and chooses the nodes that they hold."""

from collections.abc import Iterable, Mapping
from itertools import chain

from mandor.controllers.base import Controller
from mandor.controllers.reservation_plan import plan_reservation
from mandor.controllers.writer import Writer
from mandor.lib.clock import Clock
from mandor.lib.steps import FEW, WRITTEN, Steps, pieces
from mandor.lib.turns import in_turns
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.model.reservation import Reservation
from mandor.model.resources import Resources
from mandor.model.volume import Volume
from mandor.model.workload import Release, Workload
from mandor.placement.cluster_model import ClusterModel
from mandor.placement.reserved_room import ReservableNode, may_hold, phase_at, reservable_nodes
from mandor.store.base import Change, Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder


class ReservationController(Controller[Key]):
    name = "reservation"
    watches = (Reservation.kind, Volume.kind, Node.kind, Release.kind, Workload.kind, Instance.kind)
    workers = 1

    def __init__(self, store: Store, clock: Clock, recorder: Recorder) -> None:
        self._store, self._clock, self._recorder = store, clock, recorder

    def begin(self, mirrors: Mapping[str, Mirror]) -> None:
        self._mirrors = mirrors
        self._writer = Writer(self._store, mirrors)

    def observe(self, change: Change) -> Iterable[Key]:
        return (change.key,) if isinstance(change.value, Reservation) else ()

    async def reconcile(self, key: Key) -> float | None:
        reservation = self._mirrors[Reservation.kind].get(key)
        if not isinstance(reservation, Reservation):
            return None
        now = self._clock.now()
        rooms = await self._rooms(reservation) if phase_at(reservation, now) == "Active" else ()
        draft = await in_turns(plan_reservation(reservation, rooms, now))
        conflicts = await self._writer.commit_each(draft.writes) if draft.writes else 0
        for note in draft.notes:
            self._recorder.note(note.about, note.reason, note.message, type="warning" if note.warning else "normal")
        return 0.5 if conflicts else draft.again_seconds

    async def _rooms(self, reservation: Reservation) -> list[ReservableNode]:
        able = await in_turns(self._able(reservation))
        held = reservation.status.held
        if sum(held.values()) == reservation.spec.count and held.keys() <= set(able):
            return [ReservableNode(name, Resources(), Resources()) for name in able]  # no node has to be chosen
        board = ClusterModel()
        await in_turns(board.put_all(list(chain.from_iterable(self._mirrors[kind].items() for kind in self.watches))))
        found = await in_turns(reservable_nodes(reservation, board))
        await in_turns(board.dismantle())
        return found

    def _able(self, reservation: Reservation) -> Steps[list[str]]:
        """Return the nodes that may hold the reservation."""
        found: list[str] = []
        for piece in pieces(list(self._mirrors[Node.kind].items()), FEW):
            found += [each.meta.name for each in piece if isinstance(each, Node) and may_hold(reservation, each)]
            yield WRITTEN * len(piece)
        return found
