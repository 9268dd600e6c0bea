"""Transactions that are asked for in one pass of the event loop go to etcd as one, where they fit together."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mandor.errors import TooLarge
from mandor.model.meta import Key
from mandor.store.base import OPERATIONS_MOST
from mandor.store.etcd_client import Denied, EtcdClient, Lost, Refused
from mandor.store.etcd_state import EtcdState
from mandor.store.etcd_transaction import Transaction
from mandor.store.etcd_wire import TXN

ALONE = 24
"""Who brings more operations goes alone, and at once: its own are a group already."""
BYTES_MOST = 1 << 20
"""Of what is put by one group; etcd takes half as much again in one request."""
AT_ONCE = 32
"""So many groups are on their way; what comes meanwhile goes with the next."""

Outcome = tuple[bool, int]
"""Whether it went through, and etcd's revision."""


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    made: Transaction
    done: "asyncio.Future[Outcome]"


class EtcdGroups:
    """Each still happens as a whole or not at all. Where a group does not go through, each is sent apart, so that the
    one that is at fault is refused and the others are not. Those of one group share their revision."""

    def __init__(self, client: EtcdClient, state: EtcdState) -> None:
        self._client, self._state = client, state
        self._asked: deque[_Asked] = deque()
        self._under_way: set[asyncio.Task[None]] = set()

    async def send(self, made: Transaction) -> Outcome:
        """What went through is in the index already, or will be when all before it are."""
        if len(made.wanted) > ALONE:
            return await self._carry_out((made,))
        loop = asyncio.get_running_loop()
        asked = _Asked(made, loop.create_future())
        self._asked.append(asked)
        if len(self._asked) == 1:
            loop.call_soon(self._go)
        return await asked.done

    async def close(self) -> None:
        """Nobody waits for an answer any more."""
        asked, self._asked = list(self._asked), deque()
        _fail(asked, Refused("the store is closed"))
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def _go(self) -> None:
        while self._asked and len(self._under_way) < AT_ONCE:
            task = asyncio.ensure_future(self._answer(self._next()))
            self._under_way.add(task)
            task.add_done_callback(self._went)

    def _went(self, task: "asyncio.Task[None]") -> None:
        self._under_way.discard(task)
        self._go()

    def _next(self) -> Sequence[_Asked]:
        """As many as fit into one request. What one writes no other may write or check; checks may be the same."""
        first = self._asked.popleft()
        taken, size, operations = [first], first.made.size_bytes, len(first.made.wanted)
        written: set[Key] = set(first.made.values)
        named: set[Key] = {key for key, _ in first.made.wanted}
        while self._asked:
            made = self._asked[0].made
            size, operations = size + made.size_bytes, operations + len(made.wanted)
            keys = {key for key, _ in made.wanted}
            apart = named.isdisjoint(made.values) and written.isdisjoint(keys)
            if not apart or operations > OPERATIONS_MOST or size > BYTES_MOST:
                break
            written.update(made.values)
            named |= keys
            taken.append(self._asked.popleft())
        return taken

    async def _answer(self, group: Sequence[_Asked]) -> None:
        try:
            try:
                found = await self._carry_out([each.made for each in group])
            except (TooLarge, Denied):
                if len(group) == 1:
                    raise
                found = (False, 0)
            if found[0] or len(group) == 1:
                for each in group:
                    _tell(each, found)
            else:
                await asyncio.gather(*(self._answer([each]) for each in group))
        except asyncio.CancelledError:
            _fail(group, Lost("the store is closed"))
            raise
        except Exception as error:  # whatever it is, nobody may wait for ever
            _fail(group, error)

    async def _carry_out(self, group: Sequence[Transaction]) -> Outcome:
        answer = await self._client.call(TXN, _request(group))
        revision = int(answer.header.revision)
        if answer.succeeded:
            changes = [change for made in group for change in made.changes]
            if changes:
                self._state.committed(revision, changes)
        return bool(answer.succeeded), revision


def _request(group: Sequence[Transaction]) -> Any:
    if len(group) == 1:
        return group[0].request
    request = TXN.request()
    for made in group:
        request.MergeFrom(made.request)
    return request


def _tell(asked: _Asked, outcome: Outcome) -> None:
    if not asked.done.done():
        asked.done.set_result(outcome)


def _fail(group: Sequence[_Asked], error: Exception) -> None:
    for each in group:
        if not each.done.done():
            each.done.set_exception(error)
