"""Scrollable text of the dashboard (description, explanation, log); only visible lines are drawn."""

from collections import deque
from collections.abc import Iterable
from typing import ClassVar

from click import unstyle
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from mandor.cli.tables import printable
from mandor.cli.top.rows import matcher

LINES_MOST = 5000
"""Number of lines of a log that are kept."""


class TextView(ScrollView, can_focus=True):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("k", "scroll_up", show=False),
        Binding("j", "scroll_down", show=False),
        Binding("ctrl+b", "page_up", show=False),
        Binding("ctrl+f", "page_down", show=False),
        Binding("g", "scroll_home", show=False),
        Binding("G", "scroll_end", show=False),
    ]

    def __init__(self, *, follow: bool) -> None:
        super().__init__()
        self._lines: deque[str] = deque(maxlen=LINES_MOST)
        self._drawn: list[str] = []
        self.follow = follow
        """Whether the view stays at the end of the text."""
        self.wrap = False
        self.wanted = ""

    @property
    def text(self) -> str:
        """The whole text, visible or not."""
        return "\n".join(self._drawn)

    def write(self, lines: Iterable[str], *, anew: bool = False) -> None:
        if anew:
            self._lines.clear()
        self._lines.extend(printable(unstyle(line).expandtabs()) for line in lines)
        self.lay_out()

    def lay_out(self) -> None:
        fits = matcher(self.wanted)
        kept = [line for line in self._lines if not self.wanted or fits(line)]
        self._drawn = wrapped(kept, max(1, self.size.width)) if self.wrap else kept
        self.virtual_size = Size(max((cell_len(line) for line in self._drawn), default=0), len(self._drawn))
        if self.follow:
            self.scroll_end(animate=False, immediate=True)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        left, top = self.scroll_offset
        at = top + y
        line = self._drawn[at] if at < len(self._drawn) else ""
        return Strip([Segment(line, Style())]).crop_extend(left, left + self.size.width, None)

    def on_resize(self) -> None:
        if self.wrap or self.follow:
            self.lay_out()


def wrapped(lines: Iterable[str], width: int) -> list[str]:
    return [line[start : start + width] for line in lines for start in range(0, max(1, len(line)), width)]
