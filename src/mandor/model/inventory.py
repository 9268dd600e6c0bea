"""Inventory: machines listed by another system, and the age of that list."""

from typing import Annotated, ClassVar

from msgspec import Struct, field

from mandor.model.features import needs
from mandor.model.meta import Object


class InventorySpec(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    source: str
    """URL or file that the list is read from."""


class InventoryStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Result of the last read of the source."""

    refreshed_at: float = 0.0
    """Unix time at which the list in use was requested; 0 if no list has been read yet."""
    machines: int = 0
    failures: int = 0
    """Number of consecutive failed reads since then; the last good list stays in use."""
    error: str = ""
    """Error of the last failed read."""
    unknown: Annotated[tuple[str, ...], needs("inventory-keys")] = ()
    """Keys of the list that are not understood, each with the number of machines that have it. They are ignored."""


class Inventory(Object, frozen=True, tag="inventory"):
    """The machines for virtual machines, as read from the node API or file of `inventory`."""

    kind: ClassVar[str] = "inventory"
    plural: ClassVar[str] = "inventories"
    namespaced: ClassVar[bool] = False

    spec: InventorySpec
    status: InventoryStatus = field(default_factory=InventoryStatus)
