"""Logging handler that keeps the agent's own log records for log sinks."""

import logging
from collections import deque

from mandor.agent.shipping.line import Line, clean_text, flat
from mandor.lib.logs import facts_of

LINES_MOST = 5000
"""Largest number of lines kept between two calls of `take`; older ones are dropped and counted."""

_formatter = logging.Formatter()


class AgentLogHandler(logging.Handler):
    """Collects the agent's log records as lines."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node
        self._lines: deque[Line] = deque(maxlen=LINES_MOST)
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + _formatter.formatException(record.exc_info)
        if len(self._lines) == LINES_MOST:
            self._dropped += 1
        level = record.levelname.lower()
        facts = {"logger": record.name, **flat(facts_of(record))}
        for part in text.splitlines() or [""]:
            shown = clean_text(part.encode(errors="replace"))
            self._lines.append(
                Line(at=record.created, text=shown, node=self._node, stream="agent", level=level, facts=facts)
            )

    def take(self) -> tuple[list[Line], int]:
        """Return the lines since the last call, and the number of dropped ones."""
        found, self._lines = list(self._lines), deque(maxlen=LINES_MOST)
        dropped, self._dropped = self._dropped, 0
        return found, dropped
