"""What the agent says about its own work, kept for those who ship it."""

import logging
from collections import deque

from mandor.agent.shipping.line import Line, clean_text, flat
from mandor.lib.logs import facts_of

LINES_MOST = 5000
"""So many wait between two looks; older ones are left out, and counted."""

_formatter = logging.Formatter()


class AgentLogHandler(logging.Handler):
    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node
        self._lines: deque[Line] = deque(maxlen=LINES_MOST)
        self._left_out = 0

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + _formatter.formatException(record.exc_info)
        if len(self._lines) == LINES_MOST:
            self._left_out += 1
        level = record.levelname.lower()
        facts = {"logger": record.name, **flat(facts_of(record))}
        for part in text.splitlines() or [""]:
            shown = clean_text(part.encode(errors="replace"))
            self._lines.append(
                Line(at=record.created, text=shown, node=self._node, stream="agent", level=level, facts=facts)
            )

    def take(self) -> tuple[list[Line], int]:
        """What came since the last time, and how many lines more there were."""
        found, self._lines = list(self._lines), deque(maxlen=LINES_MOST)
        left_out, self._left_out = self._left_out, 0
        return found, left_out
