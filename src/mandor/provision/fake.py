"""A provisioner without real machines, for tests, the simulator, and dry runs."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from msgspec import Struct

from mandor.errors import Unavailable
from mandor.provision.base import MachineOrder, Made, NotMade, Provisioner


class FakeOptions(Struct, frozen=True, forbid_unknown_fields=True):
    pass


class FakeProvisioner(Provisioner):
    name: ClassVar[str] = "fake"
    options: ClassVar[type[Struct]] = FakeOptions

    def __init__(self) -> None:
        self.orders: dict[str, MachineOrder] = {}
        self.states: dict[str, Made] = {}
        self.calls: list[tuple[str, str]] = []
        self.trouble = ""
        """Error message for `create`; empty: it succeeds."""
        self.unreachable = ""
        """Error message for all calls; empty: they succeed."""
        self.made: Callable[[MachineOrder], None] = lambda order: None
        self.taken: Callable[[MachineOrder], None] = lambda order: None

    async def create(self, order: MachineOrder) -> None:
        self._check_reachable()
        self.calls.append(("create", order.id))
        if self.trouble:
            raise Unavailable(self.trouble)
        if order.id not in self.orders:
            self.orders[order.id] = order
            self.states[order.id] = Made(id=order.id, state="there")
            self.made(order)

    def _check_reachable(self) -> None:
        if self.unreachable:
            raise NotMade(self.unreachable)

    async def list(self, cluster: str) -> Sequence[Made]:
        self._check_reachable()
        return [self.states[each.id] for each in self.orders.values() if each.cluster == cluster]

    async def delete(self, cluster: str, machine: str) -> None:
        self._check_reachable()
        self.calls.append(("delete", machine))
        order = self.orders.get(machine)
        if order is not None and order.cluster == cluster:
            del self.orders[machine], self.states[machine]
            self.taken(order)
