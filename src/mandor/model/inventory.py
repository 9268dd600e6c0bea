"""Inventory: the machines that another system knows, and how fresh what we know of them is."""

from typing import ClassVar

from msgspec import Struct, field

from mandor.model.meta import Object


class InventorySpec(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    source: str
    """Where the list comes from: a URL, or a file."""


class InventoryStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Written after each look at the source."""

    refreshed_at: float = 0.0
    """When the list that is used was asked for; 0: there has been none yet."""
    machines: int = 0
    failures: int = 0
    """So many looks in a row have failed since; the last good list is used on."""
    error: str = ""
    """Why the last one failed."""


class Inventory(Object, frozen=True, tag="inventory"):
    """The machines for virtual machines, as read from the node API or file of `inventory`."""

    kind: ClassVar[str] = "inventory"
    plural: ClassVar[str] = "inventories"
    namespaced: ClassVar[bool] = False

    spec: InventorySpec
    status: InventoryStatus = field(default_factory=InventoryStatus)
