"""Rows of a view: filtered, sorted, and computed only when they are displayed."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from mandor.cli.top.view import Field, Item, View, natural, shown
from mandor.model.codec import to_plain
from mandor.model.meta import Object

Place = tuple[str, str]
"""Namespace and name."""


NAME = Field("NAME", lambda item: item["meta"]["name"])


class Order(NamedTuple):
    """Column and direction of a sort order."""

    title: str
    reverse: bool = False

    def toggled(self, title: str) -> "Order":
        """Return the order after a column key is pressed; the same column again reverses it."""
        return Order(title, not self.reverse if title == self.title else False)


@dataclass(frozen=True, slots=True)
class Scope:
    """Restricts a view to one object: the instances of a node or workload, or the events about an object."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"

    def holds(self, value: Any) -> bool:
        if value.kind == "event":
            return bool(value.spec.about == str(self))
        if self.kind == "node":
            return bool(value.node == self.name)
        return bool(value.spec.workload == self.name and value.meta.namespace == self.namespace)

    @classmethod
    def read(cls, about: str) -> "Scope":
        """Parse the object of an event: `instance default/web-0`, `node n1`."""
        kind, _, full = about.partition(" ")
        namespace, slash, name = full.partition("/")
        return cls(kind, namespace, name) if slash else cls(kind, "", full)


class Row:
    """One object in a table. Objects are immutable, so computed values are cached."""

    __slots__ = ("_orders", "_text", "count", "place", "value")

    def __init__(self, value: Object, count: int = 0) -> None:
        self.value = value
        self.count = count
        self.place: Place = (value.meta.namespace, value.meta.name)
        self._text: str | None = None
        self._orders: dict[str, Any] = {}

    @property
    def subject(self) -> Scope:
        """The object that the row stands for: the object itself, or the one that the event is about."""
        value: Any = self.value
        return Scope.read(value.spec.about) if value.kind == "event" else Scope(value.kind, *self.place)

    @property
    def item(self) -> Item:
        """The object as plain data; not cached, because only a screenful of rows is displayed."""
        item: Item = to_plain(self.value)
        return item | {"instances": self.count} if self.count else item

    def cells(self, fields: Iterable[Field]) -> tuple[str, ...]:
        """Return the cells as of now; a column may be an age."""
        item = self.item
        return tuple(shown(field, item) for field in fields)

    def text(self, fields: Iterable[Field]) -> str:
        """Return the text that filters search: cells without ages, and labels."""
        if self._text is None:
            labels = (f"{key}={value}" for key, value in self.value.labels.items())
            self._text = " ".join((*self.cells(field for field in fields if field.since is None), *labels))
        return self._text

    @property
    def rank(self) -> Any:
        """Key that orders rows with equal cells."""
        return self.place[0], self.order(NAME)

    def order(self, field: Field) -> Any:
        if field.title not in self._orders:
            self._orders[field.title] = self._order(field)
        return self._orders[field.title]

    def _order(self, field: Field) -> Any:
        if field.title in {"NAMESPACE", "NAME"}:
            return natural(self.place[field.title == "NAME"])
        if field.since is not None:
            return -field.since(self.item)
        return field.order(self.item) if field.order is not None else natural(shown(field, self.item))


class RowCache:
    """The rows of one view, reused while their objects are unchanged."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._rows: dict[Place, Row] = {}

    def rows(
        self,
        values: Iterable[Object],
        *,
        scope: Scope | None = None,
        wanted: str = "",
        order: Order | None = None,
        counts: Mapping[str, int] | None = None,
    ) -> list[Row]:
        """Return the rows in the scope that match the filter, sorted; `counts` are the instances of each node."""
        kept: dict[Place, Row] = {}
        for value in values:
            if scope is None or scope.holds(value):
                row = self._row(value, counts.get(value.meta.name, 0) if counts else 0)
                kept[row.place] = row
        self._rows = kept
        fits = matcher(wanted)
        fields = self.view.fields
        found = [row for row in kept.values() if not wanted or fits(row.text(fields))]
        return self._ordered(found, order or Order(self.view.order))

    def _row(self, value: Object, count: int) -> Row:
        known = self._rows.get((value.meta.namespace, value.meta.name))
        return known if known is not None and known.value is value and known.count == count else Row(value, count)

    def _ordered(self, rows: list[Row], order: Order) -> list[Row]:
        field = next((field for field in self.view.fields if field.title == order.title), self.view.fields[0])
        rows.sort(key=lambda row: row.rank)
        rows.sort(key=lambda row: row.order(field), reverse=order.reverse)
        return rows


def matcher(wanted: str) -> Callable[[str], bool]:
    """Return a matcher for a case-insensitive regular expression; `!` inverts it, an invalid expression is plain
    text.
    """
    inverse, text = wanted.startswith("!"), wanted.removeprefix("!")
    try:
        pattern = re.compile(text, re.IGNORECASE)
    except re.error:
        pattern = re.compile(re.escape(text), re.IGNORECASE)
    return lambda line: (pattern.search(line) is None) is inverse
