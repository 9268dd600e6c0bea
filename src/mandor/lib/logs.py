"""Log records: a line for people, or JSON for machines; both with facts, such as which instance it is about."""

import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Literal

Style = Literal["console", "json"]
_about: ContextVar[Mapping[str, object]] = ContextVar("about", default=MappingProxyType({}))
_sources: list[Callable[[], Mapping[str, object]]] = []
_always: dict[str, object] = {}
"""Facts in every record of this process, such as the node or server."""


def set_up(
    style: Style = "console", level: str = "info", also: logging.Handler | None = None, **always: object
) -> None:
    """Send log records to stderr in the given style, and to `also`; `always` are facts added to each record."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if style == "json" else _Console())
    root = logging.getLogger()
    root.handlers[:] = [handler] if also is None else [handler, also]
    _always.clear()
    _always.update(always)
    root.setLevel(level.upper())
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)


def about(**facts: object) -> None:
    """Add these facts to all log records of this task and the tasks that it starts."""
    _about.set({**_about.get(), **facts})


def ask_also(source: Callable[[], Mapping[str, object]]) -> None:
    """Add the facts that `source` returns to every record, such as the current trace."""
    if source not in _sources:
        _sources.append(source)


def facts_of(record: logging.LogRecord) -> dict[str, object]:
    """Return the facts of a record: those of its task and its own."""
    found = {**_about.get(), **_own_facts(record)}
    for source in _sources:
        found |= source()
    return found


def _own_facts(record: logging.LogRecord) -> dict[str, object]:
    facts = getattr(record, "facts", None)
    return facts if isinstance(facts, dict) else {}


class _Console(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
        facts = "".join(f" {key}={value}" for key, value in _own_facts(record).items())
        name = record.name.removeprefix("mandor.")
        text = f"{at} {record.levelname.lower():7} {name}: {record.getMessage()}{facts}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_always,
            **facts_of(record),
        }
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


@contextmanager
def silence() -> Iterator[None]:
    """Suppress Mandor's log records during the block."""
    logger = logging.getLogger("mandor")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
