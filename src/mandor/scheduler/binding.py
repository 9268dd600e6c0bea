"""Writes decisions down: many in one commit, several commits at once."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from mandor.errors import Conflict, Unavailable
from mandor.lib.clock import Clock
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.model.phase import Phase
from mandor.scheduler.store_retry import AFTER_OUTAGE, stored_now
from mandor.scheduler.view import Promise
from mandor.store.base import OPERATIONS_MOST, WRITES_MOST, Check, Put, Store, Write

log = logging.getLogger(__name__)

CHECKED_MOST = OPERATIONS_MOST - 1
"""Binds and checks of one commit; one more belongs to the leader's fence."""
COMMITS_MOST = 16
_new_tuple = tuple.__new__  # half the time of Key(…)
_NONE_NEWER: Mapping[Key, Instance] = MappingProxyType({})


class NotBound(Exception):
    """Somebody changed the instance, its node or its volumes meanwhile."""


class Binder:
    """Each bind checks that its node is still the one that was decided on: not changed, not gone.

    A node changes seldom (heartbeats are no writes), so the check is cheap; and when it fails, only the
    binds on that node are taken back, and the others of the commit go on without them.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        bound: Callable[[Promise], None],
        failed: Callable[[Promise], None],
        marked: Callable[[Promise, Instance], Instance] | None = None,
    ) -> None:
        """`marked`: what else a bound instance says of itself, for traces; None: nothing."""
        self._store = store
        self._clock = clock
        self._bound = bound
        self._failed = failed
        self._marked = marked
        self.room = asyncio.Semaphore(COMMITS_MOST)

    async def write(self, promises: Sequence[Promise]) -> None:
        """One chunk, until each of it is bound or taken back."""
        left = list(promises)
        failures = 0
        while left:
            try:
                await self._store.commit(*self._writes(left))
            except Conflict as error:
                left = await self._without_loser(left, error)
            except Unavailable as error:
                # Perhaps it is written, perhaps not: the same again tells, by its conflicts.
                failures += 1
                log.warning("%d binds wait: %s", len(left), error)
                await self._clock.sleep(AFTER_OUTAGE.pause(failures))
            else:
                for each in left:
                    self._bound(each)
                return

    async def write_whole(self, promises: Sequence[Promise]) -> None:
        """A gang: one commit if it fits into one. If not, one after another; when one is refused, those after it are
        not written, and what is left of the gang is decided again."""
        left = list(chunks(promises))
        while left:
            chunk = left.pop(0)
            if not await self._write_all(chunk):
                for each in (promise for chunk in left for promise in chunk):
                    self._failed(each)
                return

    async def _write_all(self, promises: Sequence[Promise]) -> bool:
        """All of one commit, or nothing of it. True: they are bound."""
        newer: dict[Key, Instance] = {}
        failures = 0
        while True:
            try:
                await self._store.commit(*self._writes(promises, newer))
            except Conflict as error:
                key = error.facts.get("key")
                if not any(key in {each.key, Key(Node.kind, "", each.node)} for each in promises):
                    raise  # The fence: somebody else leads now.
                again = await self._still_waits(promises, key)
                if again is None:
                    return all([await self._settle(each) for each in promises])
                newer[again.key] = again
                await asyncio.sleep(0)  # Of many, each may stand in the way.
            except Unavailable as error:
                failures += 1
                log.warning("%d binds of a gang wait: %s", len(promises), error)
                await self._clock.sleep(AFTER_OUTAGE.pause(failures))
            else:
                for each in promises:
                    self._bound(each)
                return True

    async def _still_waits(self, promises: Sequence[Promise], key: object) -> Instance | None:
        """The instance that stood in the way, if all that changed about it is what is said of it."""
        promise = next((each for each in promises if each.key == key), None)
        stored = await stored_now(self._store, self._clock, promise.key) if promise is not None else None
        if promise is None or not isinstance(stored, Instance) or stored.meta.uid != promise.instance.meta.uid:
            return None
        return stored if stored.phase is Phase.PENDING and stored.spec == promise.instance.spec else None

    def _writes(self, promises: Sequence[Promise], newer: Mapping[Key, Instance] = _NONE_NEWER) -> list[Write]:
        now = self._clock.now()
        versions = {each.node: each.node_version for each in promises}
        kind = Node.kind
        checks: list[Write] = [Check(_new_tuple(Key, (kind, "", name)), version) for name, version in versions.items()]
        bound = [each.bound(at=now, now=newer.get(each.key)) for each in promises]
        if self._marked is not None:
            bound = [self._marked(promise, each) for promise, each in zip(promises, bound, strict=True)]
        return checks + [Put(each) for each in bound]

    async def _without_loser(self, promises: Sequence[Promise], conflict: Conflict) -> list[Promise]:
        key = conflict.facts.get("key")
        lost = [each for each in promises if key in {each.key, Key(Node.kind, "", each.node)}]
        if not lost:
            raise conflict  # The fence: somebody else leads now.
        for each in lost:
            await self._settle(each)
        return [each for each in promises if each not in lost]

    async def _settle(self, promise: Promise) -> bool:
        """It may have been written by a commit whose answer never came. True: it is bound."""
        stored = await stored_now(self._store, self._clock, promise.key)
        same = isinstance(stored, Instance) and stored.meta.uid == promise.instance.meta.uid
        bound = same and stored is not None and stored.node == promise.node
        if bound:
            self._bound(promise)
        else:
            self._failed(promise)
        return bound


def chunks(promises: Sequence[Promise]) -> Iterator[list[Promise]]:
    """Together on a node, together in a commit: they share its check.

    Promises that saw different versions of a node never share one.
    """
    chunk: list[Promise] = []
    nodes: dict[str, int] = {}
    for each in sorted(promises, key=lambda each: each.node):
        writes = len(chunk) + 1
        full = writes > WRITES_MOST or writes + len(nodes) + (each.node not in nodes) > CHECKED_MOST
        if full or nodes.get(each.node, each.node_version) != each.node_version:
            yield chunk
            chunk, nodes = [], {}
        chunk.append(each)
        nodes[each.node] = each.node_version
    if chunk:
        yield chunk
