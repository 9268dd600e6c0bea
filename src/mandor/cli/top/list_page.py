"""A page with a table: the objects of a kind, or those that belong to one object."""

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from mandor.cli.kinds import Kind, find_kind
from mandor.cli.top.page import Page
from mandor.cli.top.rows import Order, RowCache, Scope
from mandor.cli.top.table import Table
from mandor.cli.top.view import SORTS, View, view_of
from mandor.errors import MandorError

if TYPE_CHECKING:
    from mandor.cli.top.rows import Row

TICKS_PER_AGE = 4
"""Ticks between redraws of ages while nothing changes."""


class ListPage(Page):
    HINTS = ":view /filter ⏎:open d:describe l:logs e:explain s:shell ^d:delete ?:help q:quit"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", "app.describe", show=False),
        Binding("y", "app.data", show=False),
        Binding("l", "app.logs", show=False),
        Binding("e,x", "app.explain", show=False),
        Binding("v", "app.events", show=False),
        Binding("s", "app.shell", show=False),
        Binding("c", "app.cordon(True)", show=False),
        Binding("u", "app.cordon(False)", show=False),
        Binding("ctrl+d", "app.delete", show=False),
        Binding("ctrl+w", "wide", show=False),
        Binding("0", "app.everywhere", show=False),
        *(Binding(key, f"sort('{key}')", show=False) for key in SORTS),
    ]

    def __init__(self, kind: Kind, scope: Scope | None = None) -> None:
        super().__init__()
        self.kind, self.scope = kind, scope
        self._wide = False
        self._row_cache = RowCache(view_of(kind))
        self._order: Order | None = None
        self._seen = -1
        self._ticks = 0
        self._shown = 0

    @property
    def table(self) -> Table:
        return self.query_one(Table)

    @property
    def view(self) -> View:
        return self._row_cache.view

    @property
    def chosen(self) -> "Row | None":
        return self.table.chosen

    @property
    def order(self) -> Order:
        return self._order or Order(self.view.order)

    def body(self) -> Widget:
        return Table()

    def on_mount(self) -> None:
        self._lay_out()
        self.table.focus()

    def heading(self) -> str:
        here = self.top.feed.namespace
        where = "" if not self.kind.namespaced else f" in {here}" if here else " in all namespaces"
        of = f" of {self.scope}" if self.scope else ""
        count = f"({self._shown})" if self.top.feed.complete(self.kind.name) else "…"
        return f"{self.kind.plural} {count}{of}{where}"

    def trouble(self) -> MandorError | None:
        return self.top.feed.error(self.kind.name)

    def tick(self) -> None:
        self.top.feed.open(self.kind)
        self._ticks += 1
        if self._seen != self.top.feed.changed:
            self.refresh_content()
        elif self._ticks % TICKS_PER_AGE == 0:
            self.table.refresh()
        super().tick()

    def refresh_content(self) -> None:
        feed = self.top.feed
        self._seen = feed.changed
        rows = self._row_cache.rows(
            feed.items(self.kind.name),
            scope=self.scope,
            wanted=self.wanted,
            order=self.order,
            counts=feed.instances_by_node() if self.kind.name == "node" else None,
        )
        self._shown = len(rows)
        self.table.show(self.view.fields, rows, self.order)

    def _lay_out(self) -> None:
        namespaces = self.top.feed.namespace is None
        self._row_cache = RowCache(view_of(self.kind, wide=self._wide, namespaces=namespaces))
        self.refresh_content()

    def on_screen_resume(self) -> None:
        """Lay out the table again, because the namespace may have changed."""
        if self.is_mounted:
            self._lay_out()

    def action_sort(self, key: str) -> None:
        title = self.view.keys.get(key)
        if title is None:
            self.show_message(f"{self.kind.plural} cannot be sorted by {SORTS[key]}")
            return
        self._order = self.order.toggled(title)
        self.refresh_content()

    def action_wide(self) -> None:
        self._wide = not self._wide
        self._lay_out()

    def on_table_chosen(self) -> None:
        """Open the instances of a node or workload, the log of an instance, or the description of any other object."""
        row = self.chosen
        if row is None:
            return
        if self.kind.name in {"node", "workload"}:
            self.top.enter(ListPage(find_kind("instance"), row.subject))
        elif self.kind.name == "instance":
            self.top.action_logs()
        elif self.kind.name == "namespace":
            self.top.run_command(self, f"ns {row.place[1]}")
        else:
            self.top.action_describe()
