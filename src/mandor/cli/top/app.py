"""The dashboard application: a stack of pages, and the actions of its keys."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, ClassVar

from textual.app import App, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.screen import Screen

from mandor.cli.commands.describe import describe
from mandor.cli.commands.explain import ask
from mandor.cli.commands.logs import find_instance
from mandor.cli.explaining import Lines, write_explanation
from mandor.cli.kinds import Kind, find_kind
from mandor.cli.output import ordered
from mandor.cli.top import command_line, help_text
from mandor.cli.top.feed import Feed
from mandor.cli.top.list_page import ListPage
from mandor.cli.top.page import Page, Question
from mandor.cli.top.rows import Scope
from mandor.cli.top.text_page import LogPage, TextPage
from mandor.client import aio, sync
from mandor.errors import Invalid, MandorError
from mandor.lib.yaml12 import dump

TICK_SECONDS = 0.25
"""Seconds between screen updates; changes in between are shown together."""
DEPTH_MOST = 20


class Top(App[None]):
    """The application. `client` watches and streams; `asker` makes other requests, in threads."""

    CSS = """
    Page { background: ansi_default; color: ansi_default; }
    #head { height: 1; text-style: bold; }
    #title { height: 1; text-style: reverse; }
    #foot { height: 1; text-style: dim; }
    #typed { height: 3; border: round ansi_default; background: ansi_default; color: ansi_default; }
    Table, TextView { height: 1fr; background: ansi_default; color: ansi_default; scrollbar-size: 0 0; }
    Question { align: center middle; background: ansi_default; }
    #question { width: auto; max-width: 90%; height: auto; padding: 1 3; border: heavy ansi_default;
                background: ansi_default; color: ansi_default; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "quit", show=False, priority=True)]

    def __init__(self, client: aio.Client, asker: sync.Client, namespace: str | None, kind: Kind) -> None:
        super().__init__(ansi_color=True)
        self.client, self.asker = client, asker
        self.feed = Feed(client, namespace)
        self._first = kind
        self._open_feeds = AsyncExitStack()

    async def on_mount(self) -> None:
        await self._open_feeds.enter_async_context(self.feed)
        await self.push_screen(ListPage(self._first))
        self.set_interval(TICK_SECONDS, self._tick)

    async def on_unmount(self) -> None:
        await self._open_feeds.aclose()

    def _tick(self) -> None:
        # While exiting, the application has no screen but still ticks.
        screen = self.screen_stack[-1] if self.screen_stack else None
        if isinstance(screen, Page):
            screen.tick()

    def head(self) -> str:
        return f"{self.feed.summary()} · {self.client.server}"

    # Pages.

    def enter(self, page: Page) -> None:
        """Open a page one level down; the stack is limited."""
        while len(self.screen_stack) > DEPTH_MOST:
            self.pop_screen()
        self.push_screen(page)

    def leave(self) -> None:
        if len(self.screen_stack) > 2:  # below the first page is the application's own empty screen
            self.pop_screen()

    def run_command(self, page: Page, text: str) -> None:
        """Run a command typed after `:`."""
        try:
            typed = command_line.read(text)
            subject = self._named(typed) if typed.verb in {"logs", "explain", "describe"} else None
        except MandorError as error:
            page.show_message(error)
            return
        if typed.verb == "quit":
            self.exit()
        elif typed.verb == "help":
            self.action_help()
        elif typed.verb == "namespace":
            self.run_worker(self._switch_namespace(typed.name or None))
        elif typed.kind is not None:
            self.enter(ListPage(typed.kind))
        elif subject is not None:
            self._open(typed.verb, subject, typed.task)

    def _named(self, typed: command_line.Typed) -> Scope:
        """Return the object of a command: the one named, or the one under the cursor."""
        if typed.name:
            kind = self.screen.kind if typed.verb == "describe" and isinstance(self.screen, ListPage) else None
            found = kind or find_kind("instance")
            return Scope(found.name, (self.feed.namespace or "default") if found.namespaced else "", typed.name)
        subject = self._subject()
        if subject is None:
            raise Invalid(f"{typed.verb} requires an object", hint="select a row, or type a name")
        return subject

    def _subject(self) -> Scope | None:
        screen = self.screen
        row = screen.chosen if isinstance(screen, ListPage) else None
        return row.subject if row is not None else None

    async def _switch_namespace(self, namespace: str | None) -> None:
        """Switch to another namespace and close all pages."""
        screen: Screen[Any] = self.screen
        kind = screen.kind if isinstance(screen, ListPage) and screen.kind.name != "namespace" else self._first
        await self._open_feeds.aclose()
        self.feed = await self._open_feeds.enter_async_context(Feed(self.client, namespace))
        while len(self.screen_stack) > 1:
            await self.pop_screen()
        await self.push_screen(ListPage(kind))

    # Keys.

    def action_help(self) -> None:
        async def load() -> list[str]:
            return help_text.LINES

        self.enter(TextPage("help", load))

    def action_describe(self) -> None:
        self._for_subject("describe")

    def action_data(self) -> None:
        self._for_subject("data")

    def action_logs(self) -> None:
        self._for_subject("logs")

    def action_explain(self) -> None:
        self._for_subject("explain")

    def action_events(self) -> None:
        subject = self._subject()
        if subject is not None:
            self.enter(ListPage(find_kind("event"), subject))

    def action_everywhere(self) -> None:
        self.run_worker(self._switch_namespace(None))

    def _for_subject(self, verb: str) -> None:
        subject = self._subject()
        if subject is not None:
            self._open(verb, subject)

    def _open(self, verb: str, subject: Scope, task: str = "") -> None:
        if verb == "logs":
            self.run_worker(self._open_log(subject, task))
        elif verb == "explain" and subject.kind not in {"instance", "workload"}:
            self._show_message(f"only instances and workloads can be explained; this is a {subject.kind}")
        else:
            words = {"describe": self._description, "data": self._data, "explain": self._explanation}[verb]
            self.enter(TextPage(f"{verb} {subject}", lambda: asyncio.to_thread(words, subject)))

    async def _open_log(self, subject: Scope, task: str) -> None:
        if subject.kind not in {"instance", "workload"}:
            self._show_message(f"only instances have logs; this is a {subject.kind}")
            return
        try:
            name = await asyncio.to_thread(find_instance, self.asker, subject.name, subject.namespace)
        except MandorError as error:
            self._show_message(error)
            return
        self.enter(LogPage(subject.namespace, name, task))

    def _description(self, subject: Scope) -> list[str]:
        kind = find_kind(subject.kind)
        return describe(self.asker, kind, self.asker.get(kind.plural, subject.name, subject.namespace or None))

    def _data(self, subject: Scope) -> list[str]:
        kind = find_kind(subject.kind)
        return dump(ordered(self.asker.get(kind.plural, subject.name, subject.namespace or None))).splitlines()

    def _explanation(self, subject: Scope) -> list[str]:
        lines = Lines()
        write_explanation(
            ask(self.asker, (subject.kind, subject.name), {"namespace": subject.namespace, "nodes": None}), lines
        )
        return lines.lines

    # Changes.

    def action_delete(self) -> None:
        subject = self._subject()
        if subject is None:
            return
        if isinstance(self.screen, ListPage) and self.screen.kind.name == "event":
            self._show_message("events cannot be deleted; they expire")
            return
        what = f"stop {subject}? Its workload replaces it" if subject.kind == "instance" else f"delete {subject}?"

        def answered(yes: bool | None) -> None:
            if yes:
                plural = find_kind(subject.kind).plural
                self._change(
                    lambda: self.asker.delete(plural, subject.name, subject.namespace or None),
                    f"{subject} {'is stopping' if subject.kind == 'instance' else 'deleted'}",
                )

        self.push_screen(Question(what), answered)

    def action_cordon(self, on: bool) -> None:
        subject = self._subject()
        if subject is None or subject.kind != "node":
            self._show_message("only nodes can be cordoned")
            return
        change: dict[str, Any] = {"cordoned": True} if on else {"cordoned": False, "drain": None}
        self._change(
            lambda: self.asker.patch("nodes", subject.name, {"spec": change}),
            f"{subject} {'cordoned' if on else 'reopened'}",
        )

    def _change(self, work: Callable[[], Any], done: str) -> None:
        async def change() -> None:
            try:
                await asyncio.to_thread(work)
            except MandorError as error:
                self._show_message(error)
            else:
                self._show_message(done)

        self.run_worker(change())

    def action_shell(self) -> None:
        subject = self._subject()
        if subject is None or subject.kind != "instance":
            self._show_message("a shell requires an instance")
            return
        try:
            with self.suspend():
                self._run_shell(subject)
        except SuspendNotSupported:
            self._show_message("this terminal does not support a shell")

    def _run_shell(self, subject: Scope) -> None:
        """Run `mandor exec` in the terminal until it ends; an error stays visible until enter is pressed."""
        command = [sys.executable, "-m", "mandor.cli.main", "exec", "-it", "-n", subject.namespace, subject.name]
        print(f"shell in {subject}; type exit to return")
        env = {
            "MANDOR_SERVER": ",".join(map(str, self.asker.servers)),
            "MANDOR_TOKEN": self.asker.token,
            "MANDOR_CA": self.asker.ca_file,
        }
        ended = subprocess.run([*command, "--", "sh"], env={**os.environ, **env}, check=False)
        if ended.returncode == 1:
            input("press enter to return ")

    def _show_message(self, news: str | MandorError) -> None:
        if isinstance(self.screen, Page):
            self.screen.show_message(news)
