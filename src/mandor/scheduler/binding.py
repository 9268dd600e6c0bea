"""Writes binds to the store: many in one commit, several commits at a time."""

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
from mandor.scheduler.attempt import Attempt
from mandor.scheduler.store_retry import AFTER_OUTAGE, stored_now
from mandor.store.base import OPERATIONS_MOST, WRITES_MOST, Check, Put, Store, Write

log = logging.getLogger(__name__)

CHECKED_MOST = OPERATIONS_MOST - 1
"""Binds and node checks per commit; one more operation is the leader's fence."""
COMMITS_MOST = 16
"""Commits in progress at a time."""
_new_tuple = tuple.__new__  # half the time of Key(…)
_NONE_NEWER: Mapping[Key, Instance] = MappingProxyType({})


class NotBound(Exception):
    """The instance, its node or its volumes have changed since the decision."""


class Binder:
    """Commits binds together with a check that each node still has the version that was decided on.

    Nodes change rarely (heartbeats are not stored), so the check rarely fails; if it does, only the binds to that node
    are given up, and the others of the commit are written without them.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        bound: Callable[[Attempt], None],
        failed: Callable[[Attempt], None],
        marked: Callable[[Attempt, Instance], Instance] | None = None,
    ) -> None:
        """`bound` and `failed` are called once per attempt; `marked` adds a trace context to the bound instance."""
        self._store = store
        self._clock = clock
        self._bound = bound
        self._failed = failed
        self._marked = marked
        self.room = asyncio.Semaphore(COMMITS_MOST)

    async def write(self, attempts: Sequence[Attempt]) -> None:
        """Write one chunk, until each attempt is bound or has failed.

        A conflict with a change of the status alone, as the reason why the instance waited, fails no attempt.
        """
        left = list(attempts)
        newer: dict[Key, Instance] = {}
        failures = 0
        while left:
            try:
                await self._store.commit(*self._writes(left, newer))
            except Conflict as error:
                again = await self._unchanged(left, error.facts.get("key"))
                if again is None:
                    left = await self._without_loser(left, error)
                else:
                    newer[again.key] = again
            except Unavailable as error:
                # The commit may have succeeded: repeating it shows that by a conflict.
                failures += 1
                log.warning("the store is unavailable, %d binds are retried: %s", len(left), error)
                await self._clock.sleep(AFTER_OUTAGE.pause(failures))
            else:
                for each in left:
                    self._bound(each)
                return

    async def write_whole(self, attempts: Sequence[Attempt]) -> None:
        """Write the binds of a gang, in one commit if they fit.

        If not, commits follow one another; after a refused one the rest is given up and decided again.
        """
        left = list(chunks(attempts))
        while left:
            chunk = left.pop(0)
            if not await self._write_all(chunk):
                for each in (attempt for chunk in left for attempt in chunk):
                    self._failed(each)
                return

    async def _write_all(self, attempts: Sequence[Attempt]) -> bool:
        """Write all binds in one commit or none; return whether they are bound."""
        newer: dict[Key, Instance] = {}
        failures = 0
        while True:
            try:
                await self._store.commit(*self._writes(attempts, newer))
            except Conflict as error:
                key = error.facts.get("key")
                if not any(key in {each.key, Key(Node.kind, "", each.node)} for each in attempts):
                    raise  # The fence: another scheduler leads now.
                again = await self._unchanged(attempts, key)
                if again is None:
                    return all([await self._settle(each) for each in attempts])
                newer[again.key] = again
                await asyncio.sleep(0)  # Each of many instances may cause a conflict.
            except Unavailable as error:
                failures += 1
                log.warning("the store is unavailable, %d binds of a gang are retried: %s", len(attempts), error)
                await self._clock.sleep(AFTER_OUTAGE.pause(failures))
            else:
                for each in attempts:
                    self._bound(each)
                return True

    async def _unchanged(self, attempts: Sequence[Attempt], key: object) -> Instance | None:
        """Return the instance that caused the conflict if only its status has changed; else None."""
        attempt = next((each for each in attempts if each.key == key), None)
        stored = await stored_now(self._store, self._clock, attempt.key) if attempt is not None else None
        before = attempt.instance if attempt is not None else None
        if before is None or not isinstance(stored, Instance) or stored.meta.uid != before.meta.uid:
            return None
        return stored if stored.phase is Phase.PENDING and stored.spec == before.spec else None

    def _writes(self, attempts: Sequence[Attempt], newer: Mapping[Key, Instance] = _NONE_NEWER) -> list[Write]:
        now = self._clock.now()
        versions = {each.node: each.node_version for each in attempts}
        kind = Node.kind
        checks: list[Write] = [Check(_new_tuple(Key, (kind, "", name)), version) for name, version in versions.items()]
        bound = [each.bound(at=now, newer=newer.get(each.key)) for each in attempts]
        if self._marked is not None:
            bound = [self._marked(attempt, each) for attempt, each in zip(attempts, bound, strict=True)]
        return checks + [Put(each) for each in bound]

    async def _without_loser(self, attempts: Sequence[Attempt], conflict: Conflict) -> list[Attempt]:
        key = conflict.facts.get("key")
        lost = [each for each in attempts if key in {each.key, Key(Node.kind, "", each.node)}]
        if not lost:
            raise conflict  # The fence: another scheduler leads now.
        for each in lost:
            await self._settle(each)
        return [each for each in attempts if each not in lost]

    async def _settle(self, attempt: Attempt) -> bool:
        """End an attempt after a conflict, which an earlier commit without a reply may have caused; return whether it
        is bound."""
        stored = await stored_now(self._store, self._clock, attempt.key)
        same = isinstance(stored, Instance) and stored.meta.uid == attempt.uid
        bound = same and stored is not None and stored.node == attempt.node
        if bound:
            self._bound(attempt)
        else:
            self._failed(attempt)
        return bound


def chunks(attempts: Sequence[Attempt]) -> Iterator[list[Attempt]]:
    """Split binds into commits; binds to one node share a commit and its check.

    Binds that were decided on different versions of a node are never in the same commit.
    """
    chunk: list[Attempt] = []
    nodes: dict[str, int] = {}
    for each in sorted(attempts, key=lambda each: each.node):
        writes = len(chunk) + 1
        full = writes > WRITES_MOST or writes + len(nodes) + (each.node not in nodes) > CHECKED_MOST
        if full or nodes.get(each.node, each.node_version) != each.node_version:
            yield chunk
            chunk, nodes = [], {}
        chunk.append(each)
        nodes[each.node] = each.node_version
    if chunk:
        yield chunk
