"""The table of the dashboard; only visible rows are drawn."""

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from mandor.cli.output import colour
from mandor.cli.top.rows import Order, Place, Row
from mandor.cli.top.view import Field

GAP = 2
CELL_MOST = 120
"""Maximum width of a cell; longer ones are cut, and `d` shows them in full."""
TITLE = Style(bold=True)
CHOSEN = Style(reverse=True)


class Table(ScrollView, can_focus=True):
    """Rows with a cursor, which stays on its object while rows are added, removed and sorted."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup,ctrl+b", "page(-1)", show=False),
        Binding("pagedown,ctrl+f", "page(1)", show=False),
        Binding("home,g", "move(-1000000000)", show=False),
        Binding("end,G", "move(1000000000)", show=False),
        Binding("left", "aside(-8)", show=False),
        Binding("right", "aside(8)", show=False),
        Binding("enter", "choose", show=False),
    ]

    class Chosen(Message):
        """Sent on enter, or on a click on the row under the cursor."""

    def __init__(self) -> None:
        super().__init__()
        self._fields: Sequence[Field] = ()
        self._rows: Sequence[Row] = ()
        self._widths: list[int] = []
        self._order = Order("")
        self._at = 0

    def show(self, fields: Sequence[Field], rows: Sequence[Row], order: Order) -> None:
        place = self._place
        if [field.title for field in fields] != [field.title for field in self._fields]:
            self._widths = [len(field.title) + 1 for field in fields]
        self._fields, self._rows, self._order = fields, rows, order
        if place is not None:
            found = next((at for at, row in enumerate(rows) if row.place == place), None)
            self._at = self._at if found is None else found
        self._at = max(0, min(self._at, len(rows) - 1))
        self._measure()
        self.refresh()

    @property
    def chosen(self) -> Row | None:
        return self._rows[self._at] if self._rows else None

    @property
    def _place(self) -> Place | None:
        return self._rows[self._at].place if self._at < len(self._rows) else None

    # Drawing.

    def _measure(self) -> None:
        """Widen columns to fit visible cells; columns never shrink, so that the table does not jump."""
        top = self.scroll_offset.y
        for row in self._rows[top : top + max(1, self.size.height)]:
            for at, cell in enumerate(row.cells(self._fields)):
                self._widths[at] = max(self._widths[at], min(cell_len(cell), CELL_MOST))
        width = sum(self._widths) + GAP * len(self._widths)
        self.virtual_size = Size(width, len(self._rows) + 1)

    def render_line(self, y: int) -> Strip:
        left, top = self.scroll_offset
        width = self.size.width
        if y == 0:
            return self._titles().crop_extend(left, left + width, TITLE)
        at = top + y - 1
        if at >= len(self._rows):
            return Strip.blank(width)
        strip = self._line(self._rows[at], chosen=at == self._at)
        return strip.crop_extend(left, left + width, CHOSEN if at == self._at else None)

    def _titles(self) -> Strip:
        arrow = "↓" if self._order.reverse else "↑"
        titles = [field.title + (arrow if field.title == self._order.title else "") for field in self._fields]
        return Strip([Segment(_padded(title, width), TITLE) for title, width in zip(titles, self._widths, strict=True)])

    def _line(self, row: Row, *, chosen: bool) -> Strip:
        segments = []
        for cell, width in zip(row.cells(self._fields), self._widths, strict=True):
            style = CHOSEN if chosen else Style(color=colour(cell) or None)
            segments.append(Segment(_padded(cell, width), style))
        return Strip(segments)

    def on_resize(self) -> None:
        self._measure()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if self._fields:
            self._measure()
            self.refresh()

    # Moving.

    def action_move(self, rows: int) -> None:
        if self._rows:
            self._at = max(0, min(self._at + rows, len(self._rows) - 1))
            self.scroll_to_region(Region(self.scroll_offset.x, self._at, 1, 2), animate=False, force=True)
            self.refresh()

    def action_page(self, pages: int) -> None:
        self.action_move(pages * max(1, self.size.height - 2))

    def action_aside(self, columns: int) -> None:
        self.scroll_relative(x=columns, animate=False)

    def action_choose(self) -> None:
        if self._rows:
            self.post_message(self.Chosen())

    def on_click(self, event: events.Click) -> None:
        at = self.scroll_offset.y + event.y - 1
        if event.y == 0 or at >= len(self._rows):
            return
        again, self._at = at == self._at, at
        self.refresh()
        if again:
            self.action_choose()


def _padded(cell: str, width: int) -> str:
    cut = cell if cell_len(cell) <= width else set_cell_size(cell, width - 1) + "…"
    return set_cell_size(cut, width + GAP)
