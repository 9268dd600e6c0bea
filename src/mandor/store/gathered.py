"""GatheredStore: commits that many callers make at the same moment go to the store as one."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from mandor.errors import Conflict, Invalid
from mandor.model.meta import Key
from mandor.store.base import WRITES_MOST, Store, Write, check_writes
from mandor.store.passing import PassingStore

AT_ONCE = 8
"""So many commits are on their way; what comes meanwhile is gathered, and goes with the next."""


@dataclass(slots=True, eq=False)
class _Wish:
    writes: Sequence[Write]
    keys: Sequence[Key]
    done: "asyncio.Future[int]"


class GatheredStore(PassingStore):
    """Each caller's writes still happen all or not at all, and each gets his own refusal."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._wishes: deque[_Wish] = deque()
        self._under_way: set[asyncio.Task[None]] = set()

    async def commit(self, *writes: Write) -> int:
        keys = check_writes(writes)
        loop = asyncio.get_running_loop()
        wish = _Wish(writes, keys, loop.create_future())
        self._wishes.append(wish)
        if len(self._wishes) == 1 and len(self._under_way) < AT_ONCE:
            loop.call_soon(self._go)
        return await wish.done

    def _go(self) -> None:
        """All that has been wished for by now."""
        while self._wishes and len(self._under_way) < AT_ONCE:
            task = asyncio.ensure_future(self._grant(self._next()))
            self._under_way.add(task)
            task.add_done_callback(self._went)

    def _went(self, task: "asyncio.Task[None]") -> None:
        self._under_way.discard(task)
        self._go()

    def _next(self) -> Sequence[_Wish]:
        """As many as fit into one commit; who wants to write what another writes goes with the next one."""
        keys: set[Key] = set()
        taken: list[_Wish] = []
        while self._wishes:
            wish = self._wishes[0]
            # Checks count as well: there is room for a leader's on top.
            if taken and (len(keys) + len(wish.keys) > WRITES_MOST or not keys.isdisjoint(wish.keys)):
                break
            keys.update(wish.keys)
            taken.append(self._wishes.popleft())
        return taken

    async def _grant(self, wishes: Sequence[_Wish]) -> None:
        while wishes:
            try:
                revision = await self._store.commit(*[write for wish in wishes for write in wish.writes])
            except Conflict as error:
                key = error.facts.get("key")
                # Nobody's: somebody else leads now, and that concerns them all.
                losers = [wish for wish in wishes if key in wish.keys] or wishes
                wishes = [wish for wish in wishes if wish not in losers]
                _refuse(losers, error)
            except Invalid as error:
                if len(wishes) == 1:
                    _refuse(wishes, error)
                    return
                for wish in wishes:
                    await self._grant([wish])
                return
            except Exception as error:  # whatever it is, nobody may wait for ever
                _refuse(wishes, error)
                return
            else:
                for wish in wishes:
                    if not wish.done.done():
                        wish.done.set_result(revision)
                return


def _refuse(wishes: Sequence[_Wish], error: Exception) -> None:
    for wish in wishes:
        if not wish.done.done():
            wish.done.set_exception(error)
