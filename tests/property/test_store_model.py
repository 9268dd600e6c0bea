"""Memory and SQLite stores do what a plain dict does, and their watches replay it."""

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from mandor.errors import Conflict, Expired
from mandor.model.meta import Key, Meta
from mandor.store.base import Change, Check, Delete, Filter, Put, Store, Write
from mandor.store.memory import MemoryStore
from mandor.store.sqlite import SqliteStore
from mandor.testing.store import make_instance

HISTORY = 25
NAMES = [Key("instance", space, name) for space in ("a", "a-b") for name in ("web-0", "web-1", "web-2")]
NODES = ("", "n1", "n2")
FILTERS = [Filter(), Filter(namespace="a"), Filter(node="n1"), Filter(node=""), Filter(namespace="a-b", node="n2")]

ScoreRow = tuple[int, str]
"""The model of an object: its version and node."""
keys = st.sampled_from(NAMES)
off_by = st.sampled_from([0, 0, 0, 0, 0, -1, 1, 7])


class StoreMachine(RuleBasedStateMachine):
    """Drives one store and a dict side by side; every few steps the watches are compared, too."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp())
        self.model: dict[Key, ScoreRow] = {}
        self.log: list[tuple[int, Key, ScoreRow | None, ScoreRow | None]] = []
        self.revision = 0
        self.floor = 0

    async def open(self) -> Any:
        raise NotImplementedError

    def do(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    @initialize()
    def begin(self) -> None:
        self.store: Any = self.do(self.open())

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.do(self.store.close())
        self.loop.close()
        shutil.rmtree(self.folder)

    # What can happen.

    @rule(
        steps=st.lists(
            st.tuples(
                keys,
                st.sampled_from(["put", "put", "put", "replace", "delete", "check"]),
                st.sampled_from(NODES),
                off_by,
            ),
            min_size=1,
            max_size=4,
            unique_by=lambda step: step[0],
        )
    )
    def commit(self, steps: list[tuple[Key, str, str, int]]) -> None:
        writes: list[Write] = []
        fits = True
        after = dict(self.model)
        for key, verb, node, off in steps:
            version = max(0, self.model.get(key, (0, ""))[0] + off)
            fits &= version == self.model.get(key, (0, ""))[0] and not (verb == "delete" and key not in self.model)
            if verb == "delete":
                writes.append(Delete(key, version))
                after.pop(key, None)
            elif verb == "check":
                writes.append(Check(key, version))
            else:
                writes.append(Put(self._value(key, node, version, keep_uid=verb == "put")))
                after[key] = (self.revision + 1, node)
        if not fits:
            with pytest.raises(Conflict):
                self.do(self.store.commit(*writes))
            return
        revision = self.do(self.store.commit(*writes))
        changed = [key for key, verb, _, _ in steps if verb != "check"]
        assert revision == self.revision + bool(changed)
        for key in changed:
            self.log.append((revision, key, self.model.get(key), after.get(key)))
        self.revision, self.model = revision, after

    def _value(self, key: Key, node: str, version: int, *, keep_uid: bool) -> Any:
        found = self.do(self.store.get(key))
        uid = found.meta.uid if found is not None and keep_uid else ""
        meta = Meta(name=key.name, namespace=key.namespace, uid=uid, version=version)
        return make_instance(key.name, node=node).changed(meta=meta)

    @rule(racers=st.integers(2, 5), key=keys)
    def race(self, racers: int, key: Key) -> None:
        version = self.model.get(key, (0, ""))[0]

        async def run() -> list[Any]:
            values = []
            for number in range(racers):
                meta = Meta(name=key.name, namespace=key.namespace, version=version)
                values.append(make_instance(key.name, node=NODES[number % 3]).changed(meta=meta))
            return await asyncio.gather(*[self.store.commit(Put(value)) for value in values], return_exceptions=True)

        results = self.do(run())
        won = [number for number, result in enumerate(results) if isinstance(result, int)]
        assert len(won) == 1
        assert all(isinstance(result, int | Conflict) for result in results)
        after = (results[won[0]], NODES[won[0] % 3])
        self.log.append((after[0], key, self.model.get(key), after))
        self.model[key] = after
        self.revision = after[0]

    @rule(back=st.integers(0, 40), where=st.sampled_from(FILTERS))
    def replay(self, back: int, where: Filter) -> None:
        since = max(0, self.revision - back)
        dropped = self.log[:-HISTORY]
        floor = max(self.floor, dropped[-1][0] if dropped else 0)
        if since < floor:
            with pytest.raises(Expired):
                self.do(self._first_batch(since, where))
            return
        batch = self.do(self._first_batch(since, where))
        assert batch[-1].bookmark
        assert batch[-1].revision == self.revision
        assert [self._short(change) for change in batch[:-1]] == self._expected(since, where)

    async def _first_batch(self, since: int, where: Filter) -> list[Change]:
        async for batch in self.store.watch("instance", since=since, where=where):
            return list(batch)
        raise AssertionError

    @staticmethod
    def _short(change: Change) -> tuple[int, Key, ScoreRow | None, ScoreRow | None]:
        before, after = (
            (value.meta.version, value.node) if value is not None else None for value in (change.before, change.after)
        )
        return change.revision, change.key, before, after

    def _expected(self, since: int, where: Filter) -> list[tuple[int, Key, ScoreRow | None, ScoreRow | None]]:
        def matches(key: Key, row: ScoreRow | None) -> bool:
            return (
                row is not None
                and where.namespace in {None, key.namespace}
                and (where.node is None or where.node == row[1])
            )

        found = []
        for revision, key, before, after in self.log:
            left, entered = matches(key, before), matches(key, after)
            if revision > since and (left or entered):
                found.append((revision, key, before if left else None, after if entered else None))
        return found

    # What must always hold.

    @invariant()
    def the_state_is_the_models(self) -> None:
        if not hasattr(self, "store"):
            return
        for where in FILTERS:
            listing = self.do(self.store.list("instance", where))
            wanted = [
                (key, row)
                for key, row in sorted(self.model.items())
                if where.namespace in {None, key.namespace} and (where.node is None or where.node == row[1])
            ]
            assert [(item.key, (item.meta.version, item.node)) for item in listing.items] == wanted
            assert listing.revision == self.revision
        for key in NAMES:
            found = self.do(self.store.get(key))
            assert (found is None) == (key not in self.model)

    @invariant()
    def uids_are_never_shared(self) -> None:
        if hasattr(self, "store"):
            uids = [item.meta.uid for item in self.do(self.store.list(None)).items]
            assert all(uids)
            assert len(set(uids)) == len(uids)


class MemoryMachine(StoreMachine):
    async def open(self) -> Store:
        return MemoryStore(history_most=HISTORY)


class SqliteMachine(StoreMachine):
    async def open(self) -> Store:
        return await SqliteStore.open(self.folder / "state.db", history_most=HISTORY)

    @rule()
    def restart(self) -> None:
        before = list(self.do(self.store.list(None)).items)
        self.do(self.store.close())
        self.store = self.do(self.open())
        self.floor = self.revision  # history is not kept across a restart
        assert list(self.do(self.store.list(None)).items) == before


def run(machine: type[StoreMachine], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )


def test_a_memory_store_is_a_dict_with_history() -> None:
    run(MemoryMachine, 60)


@pytest.mark.req("S2-3")
def test_a_sqlite_store_is_a_dict_with_history_that_survives_restarts() -> None:
    run(SqliteMachine, 20)
