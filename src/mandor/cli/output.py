"""Output of objects: tables for people, JSON and YAML for programs."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

PARTS = ("kind", "meta", "spec", "status")

_COLOURS = {
    "Running": "green",
    "Ready": "green",
    "Succeeded": "green",
    "Pending": "yellow",
    "Starting": "yellow",
    "Reserved": "yellow",
    "Stopping": "yellow",
    "Updating": "yellow",
    "Suspect": "yellow",
    "Failed": "red",
    "Lost": "red",
    "Down": "red",
    "warning": "yellow",
}


def ordered(value: dict[str, Any]) -> dict[str, Any]:
    """Return an object with its parts in the usual order: kind, meta, spec, status."""
    return {part: value[part] for part in PARTS if part in value} | value


def show_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def show_yaml(value: Any) -> None:
    from mandor.lib.yaml12 import dump

    click.echo(dump(value), nl=False)


def show_data(value: Any, output: str) -> None:
    (show_yaml if output == "yaml" else show_json)(value)


def show_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print aligned columns; on a terminal with colours and fitted to its width."""
    found = [tuple(str(cell) for cell in row) for row in rows]
    if sys.stdout.isatty():
        _show_rich(titles, found)
        return
    for line in aligned([tuple(titles), *found]):
        click.echo(line)


def widths(rows: Iterable[Sequence[str]]) -> list[int]:
    return [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]


def aligned(rows: Sequence[Sequence[str]], least: Sequence[int] = ()) -> list[str]:
    if not rows:
        return []
    sizes = [max(size, low) for size, low in zip(widths(rows), least or [0] * len(rows[0]), strict=True)]
    return ["  ".join(cell.ljust(size) for cell, size in zip(row, sizes, strict=True)).rstrip() for row in rows]


def _show_rich(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, title in enumerate(titles):
        table.add_column(title, overflow="fold", no_wrap=number == 0)
    for row in rows:
        table.add_row(*(Text(cell, style=colour(cell)) for cell in row))
    Console().print(table)


def colour(cell: str) -> str:
    """Return the colour of a phase; empty if it has none."""
    return _COLOURS.get(cell.partition(",")[0], "")


def age(since: float, now: float) -> str:
    """Format the time since a moment: `5s`, `3m`, `2h`, `4d`."""
    if not since:
        return "-"
    seconds = max(0, int(now - since))
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
