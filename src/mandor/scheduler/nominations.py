"""Room that is held for those who have no node yet: where, for how long, and who has to go for it."""

from collections.abc import Callable

from mandor.lib.clock import Clock
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.placement.cycle import Decision, Moment
from mandor.scheduler.preempting import Preemption
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

    def moment(self, entry: Entry) -> Moment:
        """Now, and how many seconds it may still wait for others to go."""
        since = entry.patient_from
        waited = 0.0 if since is None else self._clock.monotonic() - since
        return Moment(self._clock.now(), max(0.0, entry.ask.shape.patience - waited))

    def hold(self, entry: Entry, decision: Decision) -> bool:
        """As it was decided. True: somebody has to go for it, and the order for that tells the rest."""
        if decision.nominated and entry.patient_from is None:
            entry.patient_from = self._clock.monotonic()
        self._view.nominate(entry, decision.nominated, decision.ask)
        if not decision.victims:
            return False
        order = self._order(entry, decision)
        if order is None:
            self._withdraw(entry.ask.key)
            return False
        self.displace(decision.nominated, entry.ask.priority)
        self._view.evict(order.victims, self._clock.now())
        self._orders.append(order)
        return True

    def take_orders(self) -> list[Preemption]:
        """To be carried out."""
        orders, self._orders = self._orders, []
        return orders

    def failed(self, order: Preemption) -> None:
        """Something had changed: nobody was told anything, and it is decided again."""
        self._view.look_again(each.key for each in order.victims)
        if self._view.nominated(order.instance.key) == order.node:
            self._withdraw(order.instance.key)

    def displace(self, node: str, priority: int) -> None:
        """Those of lower priority for whom room was held there look for another place."""
        for key in self._view.displaced(node, priority):
            self._withdraw(key)

    def _order(self, entry: Entry, decision: Decision) -> Preemption | None:
        """None: not everybody is there, or bound where the table has him."""
        instance, node = self._instances.get(entry.ask.key), self._view.table.node(decision.nominated)
        found = [self._instances.get(key) for key in decision.victims]
        victims = tuple(each for each in found if isinstance(each, Instance) and each.node == decision.nominated)
        if not isinstance(instance, Instance) or instance.meta.uid != entry.uid or node is None:
            return None
        if len(victims) < len(found):
            return None
        return Preemption(instance, node.meta.name, node.meta.version, victims, decision.reason, decision.message)

    def _withdraw(self, key: Key) -> None:
        entry = self._queue.entry(key)
        if entry is not None:
            self._view.nominate(entry, "")
            self._queue.wake(key, now=self._clock.monotonic())
            self._wake()
