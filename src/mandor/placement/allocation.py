"""What one instance takes on its node, and what is tried out with it."""

from dataclasses import dataclass

from msgspec import Struct

from mandor.placement.framework.identity import NO_IDENTITY, Identity
from mandor.placement.framework.occupancy import SETTLED, AllocationTerms
from mandor.placement.framework.ports import HostPort
from mandor.placement.framework.request import Shape


class Allocation(Struct, frozen=True, gc=False):
    """What one instance takes on its node."""

    node: str
    shape: Shape
    identity: Identity = NO_IDENTITY
    terms: AllocationTerms = SETTLED
    ports: tuple[int, ...] = ()
    """The ports of the node that were chosen for it, in the order of the shape."""

    @property
    def chosen(self) -> list[HostPort]:
        return [HostPort(number, each.protocol) for number, each in zip(self.ports, self.shape.any_ports, strict=False)]


@dataclass(slots=True)
class Trial:
    """What is tried out in the table; see `Table.trial`."""

    kept: bool = False

    def keep(self) -> None:
        self.kept = True
