"""The thread that owns a `StateFile`: writes all queued commits in one transaction and reports the result."""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from mandor.errors import MandorError, Unavailable
from mandor.model.meta import Object
from mandor.store.base import Change
from mandor.store.state_file import StateFile

log = logging.getLogger(__name__)

BATCH_WRITES = 500
"""Writes per transaction: enough to share the fsync, few enough that publishing them does not block the
event loop, and that the next ones can be checked while these are being written."""


@dataclass(slots=True, eq=False)
class Commit:
    """One commit in flight."""

    revision: int
    changes: list[Change]
    puts: list[str | bytes]
    """Row key, data, row key, data …"""
    gone: list[str]
    """Row keys to delete."""
    size: int
    round: int
    """Commits of a failed round all fail, because they were checked on top of the failed state."""
    since: float
    done: asyncio.Future[int]


class StateWriter:
    """Calls `settle` with a stored batch and `fail` with the failed round, both on the event loop."""

    def __init__(
        self,
        path: Path,
        settle: Callable[[Sequence[Commit]], None],
        fail: Callable[[int, MandorError], None],
    ) -> None:
        self._path = path
        self._settle = settle
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Commit | None] = SimpleQueue()
        self._loaded: asyncio.Future[tuple[int, list[Object]]] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        # A daemon thread: a disk that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name=f"store {path.name}", daemon=True)

    # On the event loop.

    async def start(self) -> tuple[int, list[Object]]:
        """Open the file; return its revision and all objects."""
        self._thread.start()
        return await self._loaded

    def put(self, commit: Commit) -> None:
        self._queue.put(commit)

    async def close(self) -> None:
        """Write all queued commits, then close the file."""
        self._queue.put(None)
        await asyncio.shield(self._ended)

    # In the thread.

    def _work(self) -> None:
        try:
            file = StateFile(self._path)
            try:
                self._call_on_loop(_set, self._loaded, (file.revision, list(file.read())))
                self._write_for_ever(file)
            finally:
                file.close()
        except Exception as error:
            if not self._loaded.done():
                self._call_on_loop(_set, self._loaded, error)
            else:
                log.exception("the writer thread of %s ended", self._path)
        finally:
            self._call_on_loop(_set, self._ended, None)

    def _write_for_ever(self, file: StateFile) -> None:
        failed = -1
        over = False
        while not over:
            batch, over = self._gather()
            batch = [commit for commit in batch if commit.round > failed]
            if not batch:
                continue
            try:
                _write(file, batch)
            except MandorError as error:
                failed = batch[-1].round
                self._call_on_loop(self._fail, failed, error)
            except Exception as error:
                log.exception("writing %s failed with an unexpected error", self._path)
                failed = batch[-1].round
                self._call_on_loop(self._fail, failed, Unavailable(f"cannot write {self._path}: {error!r}"))
            else:
                self._call_on_loop(self._settle, batch)

    def _gather(self) -> tuple[list[Commit], bool]:
        """Return the queued commits, up to a limit, and whether the store is closing."""
        first = self._queue.get()
        if first is None:
            return [], True
        batch, count = [first], len(first.changes)
        while count < BATCH_WRITES:
            try:
                commit = self._queue.get_nowait()
            except Empty:
                break
            if commit is None:
                return batch, True
            batch.append(commit)
            count += len(commit.changes)
        return batch, False

    def _call_on_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        # If the loop is closed, nothing waits for the result.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)


def _write(file: StateFile, batch: Sequence[Commit]) -> None:
    """Store the batch as one transaction."""
    puts: list[str | bytes] = []
    gone: list[str] = []
    if any(commit.gone for commit in batch):
        rows: dict[str, bytes | None] = {}
        for commit in batch:
            rows.update(dict.fromkeys(commit.gone))
            rows.update(zip(commit.puts[::2], commit.puts[1::2], strict=True))  # type: ignore[arg-type]
        for key, data in rows.items():
            if data is None:
                gone.append(key)
            else:
                puts += (key, data)
    else:
        for commit in batch:
            puts += commit.puts  # of two rows with the same key the later one is kept
    if puts or gone:
        file.write(puts, gone, batch[-1].revision)


def _set(future: "asyncio.Future[Any]", result: Any) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
