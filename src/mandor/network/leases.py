"""Addresses of instances in the part of a network that one node hands out: pure.

No address belongs to two live instances, and an instance gets the address that the last instance of its name had, if it
is free. Otherwise it gets one that was never used, or else the one that has been free for the longest time.
"""

from collections.abc import Container, Iterable, Mapping
from ipaddress import ip_address, ip_network

from msgspec import Struct
from msgspec.structs import replace

FIRST_OFFSET = 2
"""Position of the first address of instances in a range; the bridge has the one before it."""


class Lease(Struct, frozen=True):
    """The last instance that had an address."""

    uid: str
    name: str
    """Namespace and name of the instance; empty: unknown."""
    since: int
    """Number of the lease: a later lease has a larger one."""


class LeaseTable(Struct, frozen=True):
    """Leases of one network on one node."""

    slice4: str
    leases: dict[int, Lease] = {}
    """Leases by position of the address in the range."""
    latest: int = 0
    """Number of the latest lease."""

    def position(self, uid: str) -> int | None:
        """Return the position of the address of an instance; None: it has none."""
        return next((place for place, each in self.leases.items() if each.uid == uid), None)


def room_of(slice4: str) -> int:
    """Return the number of instances that can have an address in a range."""
    return ip_network(slice4).num_addresses - FIRST_OFFSET - 1


def address_at(text: str, position: int) -> str:
    """Return the address of a range at a position."""
    return str(ip_network(text)[position])


def with_lease(table: LeaseTable, uid: str, name: str, live: Container[str]) -> LeaseTable | None:
    """Return the table with an address for the instance; None: all addresses belong to live instances.

    `live`: uids of the instances that may still run on the node.
    """
    if table.position(uid) is not None:
        return table
    free = {place: each for place, each in table.leases.items() if each.uid not in live}
    place = next((place for place, each in free.items() if name and each.name == name), None)
    if place is None and len(table.leases) < room_of(table.slice4):
        last = FIRST_OFFSET + room_of(table.slice4)
        place = next(each for each in range(FIRST_OFFSET, last) if each not in table.leases)
    if place is None:
        place = min(free, key=lambda each: free[each].since, default=None)
    return None if place is None else _leased(table, place, uid, name)


def with_seen(table: LeaseTable, seen: Iterable[tuple[str, str]]) -> LeaseTable:
    """Return the table with the addresses that running instances have, should their leases have been lost.

    `seen`: uids and addresses.
    """
    whole = ip_network(table.slice4)
    for uid, text in seen:
        address = ip_address(text)
        place = int(address) - int(whole.network_address) if address in whole else 0
        if place >= FIRST_OFFSET and (place not in table.leases or table.leases[place].uid != uid):
            table = _leased(table, place, uid, "")
    return table


def _leased(table: LeaseTable, place: int, uid: str, name: str) -> LeaseTable:
    number = table.latest + 1
    leases: Mapping[int, Lease] = {each: lease for each, lease in table.leases.items() if lease.uid != uid}
    return replace(table, leases={**leases, place: Lease(uid, name, number)}, latest=number)
