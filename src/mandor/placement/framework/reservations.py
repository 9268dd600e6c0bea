"""Reservations: room on nodes that is held for certain instances."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from mandor.placement.framework.identity import Identity, Selector
from mandor.placement.framework.read_only import ReadOnly, Writable


@dataclass(frozen=True, slots=True)
class ActiveReservation:
    """A reservation that is active now."""

    key: str
    whom: str
    """Owner, for messages."""
    until: str
    selector: Selector
    priority_class: str
    each: Mapping[str, int]
    """Amounts of one place by resource."""
    places: Mapping[str, int]
    """Number of places by node."""

    def shown_to(self, namespace: str) -> str:
        """Return the owner as a message in this namespace may name it."""
        return self.whom if self.selector.namespaces == frozenset({namespace}) else "work of another namespace"

    def is_for(self, identity: Identity) -> bool:
        return self.selector.matches(identity) and self.priority_class in {"", identity.priority_class}

    def left(self, node: str, lodged: Iterable[tuple[Identity, Mapping[str, int]]]) -> dict[str, int]:
        """Return the amounts that are still held on a node, less what its placed owners take."""
        total = {resource: amount * self.places.get(node, 0) for resource, amount in self.each.items()}
        for identity, taken in lodged:
            if self.is_for(identity):
                total = {resource: max(0, left - taken.get(resource, 0)) for resource, left in total.items()}
        return total


class Reservations(ReadOnly):
    """The reservations that are active now."""

    _held: dict[str, ActiveReservation]

    def __bool__(self) -> bool:
        return bool(self._held)

    def __iter__(self) -> Iterator[ActiveReservation]:
        return iter(self._held.values())

    def not_for(self, identity: Identity) -> list[ActiveReservation]:
        return [each for each in self._held.values() if not each.is_for(identity)]


class MutableReservations(Writable, Reservations):
    """The reservations as the table's owner sets them."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """`changed` is called before every change."""
        self._changed = changed
        self._held = {}

    def set(self, held: ActiveReservation) -> None:
        self._changed()
        each, places = MappingProxyType(dict(held.each)), MappingProxyType(dict(held.places))
        self._held[held.key] = replace(held, each=each, places=places)

    def drop(self, key: str) -> bool:
        """Remove a reservation; return whether it existed."""
        self._changed()
        return self._held.pop(key, None) is not None
