"""Writer: commits the writes of a plan in order, and waits until the mirrors show them."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence

from mandor.errors import Conflict, Unavailable
from mandor.model.meta import Key
from mandor.store.base import WRITES_MOST, Put, Store, Write
from mandor.store.mirror import Mirror

SHOWN_SECONDS = 30.0  # to wait for the mirrors
TOGETHER_MOST = 10
"""Commits in flight."""


def split(writes: Sequence[Write], size: int = WRITES_MOST) -> Iterator[Sequence[Write]]:
    for start in range(0, len(writes), size):
        yield writes[start : start + size]


class Writer:
    """Keeps a controller from planning with mirrors that do not show its last writes yet, which would repeat them."""

    def __init__(self, store: Store, mirrors: Mapping[str, Mirror]) -> None:
        self._store = store
        self._mirrors = mirrors

    async def commit(self, writes: Sequence[Write]) -> None:
        """Commit all writes; a conflict ends it. Earlier commits, and creations in flight, remain."""
        written: dict[str, int] = {}
        try:
            left = list(split(writes))
            while left:
                many = _new_ones(left) if len(left) > 1 else 1
                results = await self._committed(left[:many])
                for chunk, result in zip(left, results, strict=False):
                    if not isinstance(result, BaseException):
                        for kind in dict.fromkeys(write.key.kind for write in chunk):
                            written[kind] = max(written.get(kind, 0), result)
                for result in results:
                    if isinstance(result, BaseException):
                        raise result
                del left[:many]
        finally:
            await self._shown(written)

    async def _committed(self, chunks: Sequence[Sequence[Write]]) -> list[int | BaseException]:
        """Commit the chunks concurrently; return the revision or the error of each."""
        if len(chunks) == 1:
            return [await self._store.commit(*chunks[0])]
        return await asyncio.gather(*await self._begun(chunks), return_exceptions=True)

    async def _begun(self, chunks: Sequence[Sequence[Write]]) -> list[asyncio.Task[int]]:
        """Start the commits one after another, because encoding a hundred objects takes time: other tasks run in
        between."""
        begun: list[asyncio.Task[int]] = []
        try:
            for each in chunks:
                begun.append(asyncio.create_task(_commit(self._store, each)))
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            for task in begun:
                task.cancel()
            raise
        return begun

    async def commit_each(self, writes: Sequence[Write]) -> int:
        """Commit every write without a conflict; return the number of conflicts."""
        written: dict[str, int] = {}
        conflicts = 0
        try:
            for chunk in split(writes):
                rest = list(chunk)
                while rest:
                    try:
                        revision = await self._store.commit(*rest)
                    except Conflict as error:
                        rest = without(rest, error)
                        conflicts += 1
                    else:
                        written.update(dict.fromkeys((write.key.kind for write in rest), revision))
                        break
        finally:
            await self._shown(written)
        return conflicts

    async def _shown(self, written: Mapping[str, int]) -> None:
        try:
            async with asyncio.timeout(SHOWN_SECONDS):
                for kind, revision in written.items():
                    if kind in self._mirrors:
                        await self._mirrors[kind].reached(revision)
        except TimeoutError:
            raise Unavailable(
                f"the mirrors did not show the last commit within {SHOWN_SECONDS:g} s: the watch hangs"
            ) from None


async def _commit(store: Store, writes: Sequence[Write]) -> int:
    return await store.commit(*writes)


def _new_ones(chunks: Sequence[Sequence[Write]]) -> int:
    """Return how many of the next commits may be in flight together: those that only create objects."""
    many = 0
    for chunk in chunks[:TOGETHER_MOST]:
        if not all(type(write) is Put and not write.value.meta.version for write in chunk):
            break
        many += 1
    return max(1, many)


def without(writes: Sequence[Write], conflict: Conflict) -> list[Write]:
    """Return the writes without the conflicting one; raise the conflict if it concerns none of them (the fence)."""
    key = conflict.facts.get("key")
    rest = [write for write in writes if write.key != key]
    if not isinstance(key, Key) or len(rest) == len(writes):
        raise conflict
    return rest
