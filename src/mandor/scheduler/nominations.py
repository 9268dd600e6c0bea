"""Room that is held for those who have no node yet: where, for how long, and who has to go for it."""

from collections.abc import Callable, Sequence

from mandor.lib.clock import Clock
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.placement.cycle import Decision, Moment
from mandor.scheduler.preempting import Claim, Preemption
from mandor.scheduler.queue import Entry, SchedulingQueue
from mandor.scheduler.view import View
from mandor.store.mirror import Mirror


class Nominations:
    """Of the instances in the queue; the table has the room itself."""

    def __init__(
        self, view: View, queue: SchedulingQueue, instances: Mirror, clock: Clock, *, wake: Callable[[], None]
    ) -> None:
        self._view = view
        self._queue = queue
        self._instances = instances
        self._clock = clock
        self._wake = wake
        self._orders: list[Preemption] = []

    def moment(self, *entries: Entry) -> Moment:
        """Now, and how many seconds they may still wait for others to go: the least patient counts for all."""
        now = self._clock.monotonic()
        waited = [0.0 if each.patient_from is None else now - each.patient_from for each in entries]
        left = min(each.request.shape.patience - long for each, long in zip(entries, waited, strict=True))
        return Moment(self._clock.now(), max(0.0, left))

    def hold(self, *held: tuple[Entry, Decision]) -> bool:
        """As it was decided, for one or for all of a gang. True: somebody has to go for it, and the order for that
        tells the rest."""
        for entry, decision in held:
            if decision.nominated and entry.patient_from is None:
                entry.patient_from = self._clock.monotonic()
            self._view.nominate(entry, decision.nominated, decision.request)
        if not any(decision.victims for _, decision in held):
            return False
        order = self._order(held)
        if order is None:
            for entry, _ in held:
                self._withdraw(entry.request.key)
            return False
        for entry, decision in held:
            if decision.nominated:
                self.displace(decision.nominated, entry.request.priority)
        self._view.evict(order.victims, self._clock.now())
        self._orders.append(order)
        return True

    def take_orders(self) -> list[Preemption]:
        """To be carried out."""
        orders, self._orders = self._orders, []
        return orders

    def failed(self, order: Preemption) -> None:
        """Something had changed: it is decided again."""
        self._view.look_again(each.key for each in order.victims)
        for claim in order.claims:
            if self._view.nominated(claim.instance.key) == claim.node:
                self._withdraw(claim.instance.key)

    def displace(self, node: str, priority: int) -> None:
        """Those of lower priority for whom room was held there look for another place."""
        for key in self._view.displaced(node, priority):
            self._withdraw(key)

    def _order(self, held: Sequence[tuple[Entry, Decision]]) -> Preemption | None:
        """None: not everybody is there, or bound where the table has him."""
        claims: list[Claim] = []
        victims: list[Instance] = []
        for entry, decision in held:
            if not decision.nominated:
                continue
            instance, node = self._instances.get(entry.request.key), self._view.table.node(decision.nominated)
            if not isinstance(instance, Instance) or instance.meta.uid != entry.uid or node is None:
                return None
            found = [self._instances.get(key) for key in decision.victims]
            there = [each for each in found if isinstance(each, Instance) and each.node == decision.nominated]
            if len(there) < len(found):
                return None
            claims.append(Claim(instance, node.meta.name, node.meta.version))
            victims += there
        told = held[0][1]
        return Preemption(tuple(claims), tuple(victims), told.reason, told.message)

    def _withdraw(self, key: Key) -> None:
        """It, and whoever speaks for its gang, is decided again."""
        entry = self._queue.entry(key)
        if entry is None:
            return
        self._view.nominate(entry, "")
        member = entry.request.member
        for each in self._queue.fellows(member.gang) if member is not None else [entry]:
            self._queue.wake(each.request.key, now=self._clock.monotonic())
        self._wake()
