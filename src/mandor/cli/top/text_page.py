"""Pages with text: a description, an explanation, the help, a log."""

from collections.abc import Awaitable, Callable
from typing import ClassVar

import aiohttp
from textual.binding import Binding, BindingType
from textual.widget import Widget

from mandor.cli.top.page import Page
from mandor.cli.top.text_view import TextView
from mandor.client.aio import Query
from mandor.errors import MandorError

Load = Callable[[], Awaitable[list[str]]]

TAIL = 500
LINE_BYTES_MOST = 64 << 10
"""Maximum length of a line in bytes; longer lines are broken."""


class TextPage(Page):
    """Text returned by `load`; `r` reloads it."""

    HINTS = "/filter w:wrap r:reload esc:back ?:help q:quit"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w", "wrap", show=False),
        Binding("r,ctrl+r", "again", show=False),
    ]
    FOLLOW = False

    def __init__(self, title: str, load: Load | None = None) -> None:
        super().__init__()
        self._title = title
        self._load = load

    @property
    def view(self) -> TextView:
        return self.query_one(TextView)

    def body(self) -> Widget:
        return TextView(follow=self.FOLLOW)

    def heading(self) -> str:
        return self._title

    def on_mount(self) -> None:
        self.view.focus()
        self.action_again()

    def refresh_content(self) -> None:
        self.view.wanted = self.wanted
        self.view.lay_out()

    def action_wrap(self) -> None:
        self.view.wrap = not self.view.wrap
        self.view.lay_out()

    def action_again(self) -> None:
        self.run_worker(self._fill(), exclusive=True)

    async def _fill(self) -> None:
        try:
            await self.fill()
        except MandorError as error:
            self.show_message(error)

    async def fill(self) -> None:
        if self._load is not None:
            self.view.write(await self._load(), anew=True)


class LogPage(TextPage):
    """The log of an instance, followed live."""

    HINTS = "/filter w:wrap s:scrolling r:reload esc:back ?:help q:quit"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("s", "follow", show=False)]
    FOLLOW = True

    def __init__(self, namespace: str, name: str, task: str = "") -> None:
        super().__init__(f"log of {namespace}/{name}{f' ({task})' if task else ''}")
        self._path = f"/v1/instances/{name}/logs"
        self._query: Query = {"namespace": namespace, "task": task or None, "follow": True, "tail": TAIL}

    def heading(self) -> str:
        return self._title + ("" if self.view.follow else ", not scrolling")

    def action_follow(self) -> None:
        self.view.follow = not self.view.follow
        self.view.lay_out()

    async def fill(self) -> None:
        self.view.write((), anew=True)
        async with self.top.client.stream(
            self._path, query=self._query, accept="text/plain", silent_seconds=None
        ) as content:
            await self._copy(content)
        self.show_message("the log has ended; press r to reload")

    async def _copy(self, content: aiohttp.StreamReader) -> None:
        rest = b""
        async for piece in content.iter_any():
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > LINE_BYTES_MOST:
                lines, rest = [*lines, rest], b""
            if lines:
                self.view.write(line.decode(errors="replace").rstrip("\r") for line in lines)
        if rest:
            self.view.write([rest.decode(errors="replace")])
