"""ListWatch lists again when the watch has expired, and otherwise resumes or lists again as configured."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from mandor.errors import Expired, MandorError, Unavailable
from mandor.lib.backoff import Backoff
from mandor.model.meta import Meta
from mandor.model.node import Node, NodeSpec
from mandor.store.base import ALL, Change, Filter, Listing
from mandor.store.list_watch import ListWatch
from mandor.store.memory import MemoryStore


class Ended(Exception):
    """Ends the run of a test."""


class ScriptedStore(MemoryStore):
    """Each watch delivers one bookmark at `since + 1`, then ends with the next error of the script."""

    def __init__(self, *script: Exception | None) -> None:
        super().__init__()
        self.script = list(script)
        self.calls: list[str] = []

    async def list(self, kind: str | None, where: Filter = ALL) -> Listing:
        self.calls.append("list")
        return Listing([Node(meta=Meta(name="n1"), spec=NodeSpec())], 10)

    async def watch(self, kind: str | None, *, since: int, where: Filter = ALL) -> AsyncIterator[Sequence[Change]]:
        self.calls.append(f"watch {since}")
        error = self.script.pop(0) if self.script else Ended()
        if not isinstance(error, Expired):
            yield [Change(since + 1, None, None)]
        if error is None:
            await asyncio.Event().wait()
        if error is not None:
            raise error


async def run(store: ScriptedStore, *, resume: bool = False, stall_seconds: float | None = None) -> list[str]:
    """The errors and pauses of a run that ends with the script."""
    log: list[str] = []

    async def listed(listing: Listing) -> None:
        log.append("listed")

    async def changed(batch: Sequence[Change]) -> None:
        log.append(f"changed {batch[-1].revision}")

    def failed(error: MandorError, failures: int) -> None:
        log.append(f"{error.code} {failures}")

    async def sleep(seconds: float) -> None:
        log.append("sleep")

    follow = ListWatch(store, "node", backoff=Backoff(1, 2), sleep=sleep, resume=resume, stall_seconds=stall_seconds)
    with pytest.raises(Ended):
        await follow.run(listed, changed, failed)
    return log


async def test_an_expired_watch_is_replaced_by_a_new_listing_at_once() -> None:
    store = ScriptedStore(Expired("too old"))
    assert await run(store, resume=True) == ["listed", "expired 1", "listed", "changed 11"]
    assert store.calls == ["list", "watch 10", "list", "watch 10"]


async def test_a_second_expiry_in_a_row_waits() -> None:
    store = ScriptedStore(Expired("too old"), Expired("too old"))
    assert await run(store) == ["listed", "expired 1", "listed", "expired 2", "sleep", "listed", "changed 11"]


async def test_with_resume_a_broken_watch_continues_at_the_last_revision() -> None:
    store = ScriptedStore(Unavailable("gone"))
    assert await run(store, resume=True) == ["listed", "changed 11", "unavailable 1", "sleep", "changed 12"]
    assert store.calls == ["list", "watch 10", "watch 11"]


async def test_without_resume_a_broken_watch_lists_again() -> None:
    store = ScriptedStore(Unavailable("gone"))
    await run(store)
    assert store.calls == ["list", "watch 10", "list", "watch 10"]


async def test_a_watch_that_delivers_nothing_fails() -> None:
    store = ScriptedStore(None)
    assert await run(store, resume=True, stall_seconds=0.05) == [
        "listed",
        "changed 11",
        "unavailable 1",
        "sleep",
        "changed 12",
    ]
