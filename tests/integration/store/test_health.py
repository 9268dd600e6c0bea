"""Problems of a store that still answers are logged and shown by `/readyz` and `mandor doctor`."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from mandor.errors import Unavailable
from mandor.lib.clock import ManualClock
from mandor.store import sqlite
from mandor.store.base import Put
from mandor.store.etcd import EtcdStore
from mandor.store.health import StoreHealth
from mandor.store.memory import MemoryStore
from mandor.store.sqlite import SqliteStore
from mandor.testing.store import make_node
from tests.components.etcd import Etcd, start_etcd


class Broken(MemoryStore):
    async def problems(self) -> tuple[str, ...]:
        raise Unavailable("nobody answers")


@pytest.mark.real("etcd")
async def test_a_member_that_does_not_answer_is_reported_until_it_returns(etcd_cluster: Etcd) -> None:
    lost = (etcd_cluster.leader() + 1) % 3
    async with await EtcdStore.open(etcd_cluster.endpoints) as store:
        assert await store.problems() == ()
        etcd_cluster.kill(lost)
        (found,) = await store.problems()
        assert found.startswith(f"etcd at {etcd_cluster.endpoints[lost]} does not answer")
        await store.commit(Put(make_node("n1")))
        etcd_cluster.start(lost)


@pytest.mark.real("etcd")
async def test_members_without_a_majority_have_no_leader(etcd_cluster: Etcd) -> None:
    async with await EtcdStore.open(etcd_cluster.endpoints) as store:
        leader = etcd_cluster.leader()
        others = [index for index in range(3) if index != leader]
        for each in others:
            etcd_cluster.kill(each)
        away = [f"etcd at {etcd_cluster.endpoints[each]} does not answer" for each in others]
        found = await store.problems()
        assert all(any(told.startswith(each) for told in found) for each in away), found
        for each in others:
            etcd_cluster.start(each, wait=False)
        etcd_cluster.wait_ready()


async def _fill(store: EtcdStore) -> None:
    for number in range(1000):
        await store.commit(*(Put(make_node(f"n{number}-{each}")) for each in range(50)))


@pytest.mark.real("etcd")
async def test_low_space_is_reported_with_a_remedy(etcd: Etcd, tmp_path: Path) -> None:
    small = start_etcd(etcd.binary, tmp_path, options=["--quota-backend-bytes=200000"])
    try:
        async with await EtcdStore.open(small.endpoints) as store:
            with pytest.raises(Unavailable):
                await _fill(store)
            found = await store.problems()
            assert any("NOSPACE" in each and "etcdctl alarm disarm" in each for each in found), found
    finally:
        small.stop()


async def test_a_disk_that_is_nearly_full_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with await SqliteStore.open(tmp_path / "state.db") as store:
        assert await store.problems() == ()
        monkeypatch.setattr(sqlite, "FREE_BYTES_LEAST", 2**62)
        (found,) = await store.problems()
        assert "state.db" in found
        assert "free some space" in found


async def test_a_problem_and_its_end_are_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with await SqliteStore.open(tmp_path / "state.db") as store:
        health = StoreHealth(store, ManualClock())
        monkeypatch.setattr(sqlite, "FREE_BYTES_LEAST", 2**62)
        await health.check()
        await health.check()
        assert [each.levelname for each in caplog.records if each.name == "mandor.store.health"] == ["WARNING"]
        assert [*next(health.families()).lines()][-1] == "mandor_store_ailments 1"
        monkeypatch.setattr(sqlite, "FREE_BYTES_LEAST", 0)
        await health.check()
        assert health.problems == ()
        assert caplog.records[-1].message == "the store has no more problems"


async def test_a_failed_health_check_is_reported_as_a_problem() -> None:
    health = StoreHealth(Broken(), ManualClock())
    await health.check()
    assert health.problems == ("cannot check the store: nobody answers",)
