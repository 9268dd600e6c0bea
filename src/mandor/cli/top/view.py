"""Columns and sort keys of each view of the dashboard."""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from mandor.cli import tables
from mandor.cli.commands.events import when
from mandor.cli.kinds import KINDS, Kind, find_kind
from mandor.cli.output import age

Item = dict[str, Any]


class Field(NamedTuple):
    """A column of a view."""

    title: str
    cell: Callable[[Item], Any]
    order: Callable[[Item], Any] | None = None
    """Sort key of a row; None sorts by the text, with numbers by value."""
    since: Callable[[Item], float] | None = None
    """For ages: start of the age; sorts the youngest first."""


@dataclass(frozen=True, slots=True)
class View:
    kind: Kind
    fields: tuple[Field, ...]
    keys: Mapping[str, str]
    """Titles of the sort columns, by key."""
    order: str
    """Title of the initial sort column."""


NARROW: dict[str, tuple[str, ...]] = {
    "node": ("NAME", "PHASE", "INST", "CPU", "CPU%", "MEMORY", "MEM%", "POOL", "ENGINES", "AGE"),
    "workload": ("NAME", "TYPE", "PHASE", "READY", "ROLLOUT", "PENDING", "FAILED", "AGE"),
    "instance": ("NAME", "PHASE", "READY", "RESTARTS", "NODE", "AGE", "REASON"),
}
"""Columns that fit into 80 characters; other kinds show the columns of `mandor get`."""

SORTS: dict[str, str] = {
    "N": "NAME",
    "A": "AGE",
    "S": "PHASE",
    "C": "CPU%",
    "M": "MEM%",
    "I": "INST",
    "O": "NODE",
    "R": "READY",
    "T": "RESTARTS",
    "P": "PENDING",
    "F": "FAILED",
}
"""Sort keys, shift and a letter as in k9s; for events, `A` sorts by LAST."""


def view_of(kind: Kind, *, wide: bool = False, namespaces: bool = False) -> View:
    known = {field.title: field for field in map(_field, tables.columns(kind.name, wide=True))} | _OWN.get(
        kind.name, {}
    )
    usual = NARROW.get(kind.name) or tuple(column.title for column in tables.columns(kind.name))
    titles = (*usual, *(title for title in known if title not in usual)) if wide else usual
    fields = tuple(known[title] for title in titles)
    order = "LAST" if "LAST" in titles else titles[0]
    if namespaces and kind.namespaced:
        fields = (Field("NAMESPACE", lambda item: item["meta"].get("namespace") or "-"), *fields)
        order = "LAST" if order == "LAST" else "NAMESPACE"
    keys = {key: title for key, title in SORTS.items() if title in titles}
    if "LAST" in titles:
        keys["A"] = "LAST"
    return View(kind, fields, keys, order)


def _field(column: tables.Column) -> Field:
    if column.title == "AGE":
        return Field("AGE", column.cell, since=lambda item: float(item["meta"].get("created_at", 0.0)))
    if column.title == "LAST":
        return Field("LAST", column.cell, since=when)
    return Field(column.title, column.cell)


def _share(name: str) -> Callable[[Item], float | None]:
    """Return the usage of a node's capacity in percent; None if it is not measured."""

    def found(item: Item) -> float | None:
        status = item["status"]
        usage, capacity = status.get("usage"), status.get("capacity", {}).get(name, 0)
        return None if usage is None or not capacity else 100 * usage.get(name, 0) / capacity

    return found


def _percent(title: str, name: str) -> Field:
    share = _share(name)

    def cell(item: Item) -> str:
        found = share(item)
        return "-" if found is None else f"{found:.0f}%"

    return Field(title, cell, order=lambda item: -(share(item) or 0.0))


def _most(title: str, cell: Callable[[Item], Any], number: Callable[[Item], float]) -> Field:
    """A column sorted by the largest number first."""
    return Field(title, cell, order=lambda item: -number(item))


def _of_capacity(title: str, name: str, show: Callable[[int], str]) -> Field:
    def number(item: Item) -> int:
        return int(item["status"].get("capacity", {}).get(name, 0))

    return _most(title, lambda item: show(number(item)), number)


def _count(title: str, name: str) -> Field:
    def number(item: Item) -> int:
        return int(item["status"].get(name) or 0)

    return _most(title, number, number)


_OWN: dict[str, dict[str, Field]] = {
    "node": {
        "INST": _most("INST", lambda item: item.get("instances", 0), lambda item: item.get("instances", 0)),
        "CPU": _of_capacity("CPU", "cpu_milli", tables.cores),
        "CPU%": _percent("CPU%", "cpu_milli"),
        "MEMORY": _of_capacity("MEMORY", "memory_bytes", tables.amount),
        "MEM%": _percent("MEM%", "memory_bytes"),
    },
    "workload": {"PENDING": _count("PENDING", "pending"), "FAILED": _count("FAILED", "failed")},
    "instance": {"RESTARTS": _count("RESTARTS", "restarts")},
}

_NUMBERS = re.compile(r"(\d+)")


def natural(text: str) -> tuple[Any, ...]:
    """Sort key that compares numbers within text by value: `web-9` before `web-10`."""
    return tuple(int(part) if at % 2 else part for at, part in enumerate(_NUMBERS.split(text.lower())))


def shown(field: Field, item: Item) -> str:
    """Return the current cell of a column."""
    if field.since is not None:
        return age(field.since(item), time.time())
    return tables.one_line(field.cell(item))


# Names of views.

_FOREIGN = {
    "po": "instance",
    "pod": "instance",
    "pods": "instance",
    "alloc": "instance",
    "deploy": "workload",
    "dp": "workload",
    "job": "workload",
    "jobs": "workload",
}
"""Names used by other tools."""


def kind_words() -> dict[str, Kind]:
    """Return all names of kinds."""
    own = {word: kind for kind in KINDS for word in (kind.name, kind.plural, *kind.short)}
    return {word: find_kind(name) for word, name in _FOREIGN.items()} | own
