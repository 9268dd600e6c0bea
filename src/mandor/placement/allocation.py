"""The allocation of one instance on a node, and trials of allocations."""

from dataclasses import dataclass

from msgspec import Struct

from mandor.placement.framework.identity import NO_IDENTITY, Identity
from mandor.placement.framework.occupancy import SETTLED, AllocationTerms
from mandor.placement.framework.ports import HostPort
from mandor.placement.framework.request import Shape


class Allocation(Struct, frozen=True, gc=False):
    """The resources and ports of a node that one instance takes."""

    node: str
    shape: Shape
    identity: Identity = NO_IDENTITY
    terms: AllocationTerms = SETTLED
    ports: tuple[int, ...] = ()
    """Chosen ports of the node, in the order of the shape."""

    @property
    def chosen(self) -> list[HostPort]:
        return [HostPort(number, each.protocol) for number, each in zip(self.ports, self.shape.any_ports, strict=False)]


@dataclass(slots=True)
class Trial:
    """A trial of changes to the table; see `Table.trial`."""

    kept: bool = False

    def keep(self) -> None:
        self.kept = True
