"""The reservation controller: opens and closes reservations, and says on which nodes their places are."""

from collections.abc import Iterable, Mapping

from mandor.controllers.base import Controller
from mandor.controllers.reservation_plan import NodeRoom, phase_at, plan_reservation
from mandor.controllers.writer import Writer
from mandor.lib.clock import Clock
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Node, NodePhase
from mandor.model.reservation import Reservation
from mandor.model.resources import Resources
from mandor.model.rule import Rule, parse_rule
from mandor.model.volume import Volume
from mandor.model.workload import Release, Workload
from mandor.placement.board import Board
from mandor.placement.framework.ask import CPU, DISK, MEMORY
from mandor.placement.framework.node_rule import engine_rule
from mandor.placement.framework.snapshot import Engines, node_facts
from mandor.store.base import Change, Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder

_BOARD = (Volume.kind, Node.kind, Release.kind, Workload.kind, Instance.kind)


class ReservationController(Controller[Key]):
    name = "reservation"
    watches = (Reservation.kind, *_BOARD)
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
        rooms = self._rooms(reservation) if phase_at(reservation, now) == "Active" else ()
        draft = plan_reservation(reservation, rooms, now)
        conflicts = await self._writer.commit_each(draft.writes) if draft.writes else 0
        for note in draft.notes:
            self._recorder.note(note.about, note.reason, note.message, type="warning" if note.warning else "normal")
        return 0.5 if conflicts else draft.again_seconds

    def _rooms(self, reservation: Reservation) -> list[NodeRoom]:
        nodes = [each for each in self._mirrors[Node.kind].items() if isinstance(each, Node)]
        able = [each for each in nodes if _may_hold(reservation, each)]
        held = reservation.status.held
        if sum(held.values()) == reservation.spec.count and {each.meta.name for each in able} >= held.keys():
            return [NodeRoom(each.meta.name, Resources(), Resources()) for each in able]  # nothing is to be found
        table = Board(each for kind in _BOARD for each in self._mirrors[kind].items()).table
        others = self._held_by_others(reservation)
        return [
            NodeRoom(
                each.meta.name,
                _resources(table.free(each.meta.name)) - others.get(each.meta.name, Resources()),
                each.allocatable - others.get(each.meta.name, Resources()),
            )
            for each in able
        ]

    def _held_by_others(self, reservation: Reservation) -> dict[str, Resources]:
        found: dict[str, Resources] = {}
        for other in self._mirrors[Reservation.kind].items():
            if isinstance(other, Reservation) and other.key != reservation.key:
                for node, places in other.status.held.items():
                    for _ in range(places):
                        found[node] = found.get(node, Resources()) + other.spec.resources.request
        return found


def _may_hold(reservation: Reservation, node: Node) -> bool:
    spec = reservation.spec
    if (
        node.closed
        or node.status.phase is not NodePhase.READY
        or (spec.pool is not None and node.spec.pool != spec.pool)
    ):
        return False
    return all(_keeps(node, rule) for rule in map(parse_rule, spec.where))


def _keeps(node: Node, rule: Rule) -> bool:
    if rule.fact == "engine":
        return engine_rule(rule, Engines.of(node.status.engines))
    return rule.test(node_facts(node).get(rule.fact))


def _resources(free: Mapping[str, int]) -> Resources:
    devices = {name: amount for name, amount in free.items() if name not in {CPU, MEMORY, DISK}}
    return Resources(free.get(CPU, 0), free.get(MEMORY, 0), free.get(DISK, 0), devices)
