"""BatchingStore: combines commits that many callers make at the same time into one commit."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from mandor.errors import Conflict, Invalid
from mandor.model.meta import Key
from mandor.store.base import WRITES_MOST, Store, Write, check_writes
from mandor.store.wrapper import StoreWrapper

AT_ONCE = 8
"""Commits in flight; further ones wait and are combined."""


@dataclass(slots=True, eq=False)
class _WaitingCommit:
    writes: Sequence[Write]
    keys: Sequence[Key]
    done: "asyncio.Future[int]"


class BatchingStore(StoreWrapper):
    """Each caller's writes are still committed completely or not at all, with an error of its own."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._waiting: deque[_WaitingCommit] = deque()
        self._in_flight: set[asyncio.Task[None]] = set()

    async def commit(self, *writes: Write) -> int:
        keys = check_writes(writes)
        loop = asyncio.get_running_loop()
        each = _WaitingCommit(writes, keys, loop.create_future())
        self._waiting.append(each)
        if len(self._waiting) == 1 and len(self._in_flight) < AT_ONCE:
            loop.call_soon(self._go)
        return await each.done

    def _go(self) -> None:
        """Start commits for everything that waits."""
        while self._waiting and len(self._in_flight) < AT_ONCE:
            task = asyncio.ensure_future(self._commit_batch(self._next()))
            self._in_flight.add(task)
            task.add_done_callback(self._finished)

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._in_flight.discard(task)
        self._go()

    def _next(self) -> Sequence[_WaitingCommit]:
        """Return the commits that fit into one; a commit that writes the same key as another waits for the next one."""
        keys: set[Key] = set()
        taken: list[_WaitingCommit] = []
        while self._waiting:
            each = self._waiting[0]
            # Checks count as writes, which leaves room for the leader's check.
            if taken and (len(keys) + len(each.keys) > WRITES_MOST or not keys.isdisjoint(each.keys)):
                break
            keys.update(each.keys)
            taken.append(self._waiting.popleft())
        return taken

    async def _commit_batch(self, waiting: Sequence[_WaitingCommit]) -> None:
        while waiting:
            try:
                revision = await self._store.commit(*[write for each in waiting for write in each.writes])
            except Conflict as error:
                key = error.facts.get("key")
                # The key is none of theirs: the leader's check failed, which concerns all.
                losers = [each for each in waiting if key in each.keys] or waiting
                waiting = [each for each in waiting if each not in losers]
                _refuse(losers, error)
            except Invalid as error:
                if len(waiting) == 1:
                    _refuse(waiting, error)
                    return
                for each in waiting:
                    await self._commit_batch([each])
                return
            except Exception as error:  # no caller may wait forever
                _refuse(waiting, error)
                return
            else:
                for each in waiting:
                    if not each.done.done():
                        each.done.set_result(revision)
                return


def _refuse(waiting: Sequence[_WaitingCommit], error: Exception) -> None:
    for each in waiting:
        if not each.done.done():
            each.done.set_exception(error)
