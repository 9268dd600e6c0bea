"""MeteredStore: counts reads and commits for the metrics."""

from collections.abc import Iterator, Sequence
from time import perf_counter

from mandor.errors import Conflict, MandorError
from mandor.lib.metrics import Counts, Family, Spread, counter, gauge, histogram
from mandor.model.meta import Key, Object
from mandor.store.base import ALL, Filter, Listing, Store, Write
from mandor.store.wrapper import StoreWrapper


class MeteredStore(StoreWrapper):
    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._commits = Counts()
        self._writes = 0
        self._reads = Counts()
        self._durations = Spread()
        self._revision = 0

    async def get(self, key: Key) -> Object | None:
        self._reads["get", key.kind] += 1
        return await self._store.get(key)

    async def get_all(self, keys: Sequence[Key]) -> Sequence[Object | None]:
        for key in keys:
            self._reads["get", key.kind] += 1
        return await self._store.get_all(keys)

    async def list(self, kind: str | None, where: Filter = ALL) -> Listing:
        self._reads["list", kind or "*"] += 1
        return await self._store.list(kind, where)

    async def commit(self, *writes: Write) -> int:
        began = perf_counter()
        result = "error"
        try:
            revision = await self._store.commit(*writes)
            result = "ok"
        except Conflict:
            result = "conflict"
            raise
        except MandorError as error:
            result = error.code
            raise
        finally:
            self._commits[(result,)] += 1
            self._durations.add(perf_counter() - began)
        self._writes += len(writes)
        self._revision = max(self._revision, revision)
        return revision

    def metrics(self) -> Iterator[Family]:
        yield counter("mandor_store_commits_total", "Commits, by how they ended.", self._commits, "result")
        yield counter("mandor_store_writes_total", "Writes and checks in commits that went through.", self._writes)
        yield histogram(
            "mandor_store_commit_duration_seconds", "Seconds until a commit was durable or failed.", self._durations
        )
        yield counter("mandor_store_reads_total", "Reads, by verb and kind.", self._reads, "verb", "kind")
        yield gauge("mandor_store_revision", "Highest revision that this process has committed.", self._revision)
