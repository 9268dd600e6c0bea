"""Base of the dashboard's pages: header, title, footer with keys or messages, and an input line."""

from typing import ClassVar, Protocol, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Input, Static

from mandor.cli.tables import one_line
from mandor.cli.top.feed import Feed
from mandor.client.aio import Client
from mandor.errors import MandorError

COMMAND, FILTER = ":", "/"


class Dashboard(Protocol):
    """The application, as far as its pages use it."""

    client: Client
    feed: Feed

    def head(self) -> str:
        """Return the text of the header."""

    def enter(self, page: "Page") -> None:
        """Open a page one level down."""

    def leave(self) -> None:
        """Go back to the page before."""

    def run_command(self, page: "Page", text: str) -> None:
        """Run a command typed after `:`."""

    def action_logs(self) -> None:
        """Show the logs of the object under the cursor."""

    def action_describe(self) -> None:
        """Describe the object under the cursor."""


class Page(Screen[None]):
    """One level of the page stack; esc goes back."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("colon", "type(':')", show=False),
        Binding("slash", "type('/')", show=False),
        Binding("escape", "back", show=False),
        Binding("question_mark", "app.help", show=False),
        Binding("q", "app.quit", show=False),
    ]
    HINTS = ""

    def __init__(self) -> None:
        super().__init__()
        self.wanted = ""
        """Filter of the displayed lines."""
        self._news = ""
        self._written: dict[str, str] = {}

    @property
    def top(self) -> Dashboard:
        return cast("Dashboard", self.app)

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield Static(id="title", markup=False)
        yield self.body()
        yield Static(id="foot", markup=False)
        line = Input(id="typed", compact=True)
        line.cursor_blink = False
        yield line

    def on_mount(self) -> None:
        self.query_one("#typed", Input).display = False
        self.tick()

    # For the pages themselves.

    def body(self) -> Widget:
        raise NotImplementedError

    def heading(self) -> str:
        raise NotImplementedError

    def trouble(self) -> MandorError | None:
        """Return the error because of which the page may be outdated; None if there is none."""
        return None

    def refresh_content(self) -> None:
        """Called when the filter has changed."""

    # Head and foot.

    def tick(self) -> None:
        """Update header, title and footer; called several times a second."""
        wanted = f"  /{self.wanted}" if self.wanted else ""
        trouble = self.trouble()
        news = self._news or (error_text(trouble) if trouble is not None else "")
        self._write("head", self.top.head())
        self._write("title", self.heading() + wanted)
        self._write("foot", news or self.HINTS)

    def _write(self, place: str, text: str) -> None:
        if self._written.get(place) != text:
            self._written[place] = text
            self.query_one(f"#{place}", Static).update(_line(text))

    def show_message(self, news: str | MandorError) -> None:
        """Show a message in the footer until the next key."""
        self._news = error_text(news) if isinstance(news, MandorError) else news
        self.tick()

    def on_key(self) -> None:
        self._news = ""

    # Typing.

    def action_type(self, sign: str) -> None:
        line = self.query_one("#typed", Input)
        line.value = self.wanted if sign == FILTER else ""
        line.border_title = sign
        line.placeholder = "a view: nodes, wl, inst, ev …" if sign == COMMAND else "text, or !text"
        self.query_one("#foot", Static).display = False
        line.display = True
        self.set_focus(line)  # not `focus`, which takes effect only after pending keys

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.display and event.input.border_title == FILTER:
            self._want(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        sign, text = event.input.border_title, event.value.strip()
        self._typed()
        if sign == COMMAND and text:
            self.top.run_command(self, text)

    def _typed(self) -> None:
        self.query_one("#typed", Input).display = False
        self.query_one("#foot", Static).display = True
        self.set_focus(None)
        self.focus_next()

    def _want(self, text: str) -> None:
        self.wanted = text
        self.refresh_content()
        self.tick()

    def action_back(self) -> None:
        """Leave the input line, clear the filter, or go back one level."""
        line = self.query_one("#typed", Input)
        if line.display:
            if line.border_title == FILTER:
                self._want("")
            self._typed()
        elif self.wanted:
            self._want("")
        else:
            self.top.leave()


class Question(ModalScreen[bool]):
    """A confirmation; only `y` confirms."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", show=False),
        Binding("n,escape,enter,q", "answer(False)", show=False),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        yield Static(_line(f"{self._text}\n\n  y  yes      n, esc  no"), id="question")

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)


def error_text(error: MandorError) -> str:
    return one_line(f"{error.message}; {error.hint}" if error.hint else error.message)


def _line(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")
