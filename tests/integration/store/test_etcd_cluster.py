"""Three members of etcd, one of which dies or hangs: nothing acknowledged is lost, nothing is stored twice."""

import asyncio
from collections.abc import Callable

import pytest

from mandor.errors import Unavailable
from mandor.model.meta import Key
from mandor.store.base import Put
from mandor.store.etcd import EtcdStore
from mandor.testing.store import Watcher, make_node
from tests.components.etcd import Etcd

pytestmark = [pytest.mark.real("etcd"), pytest.mark.slow]


class Load:
    """Continuous writers that record every acknowledged name."""

    def __init__(self, store: EtcdStore) -> None:
        self.store = store
        self.revisions: dict[str, int] = {}
        self.failed: list[str] = []
        self._tasks = [asyncio.create_task(self._write(number)) for number in range(8)]

    async def _write(self, number: int) -> None:
        step = 0
        while True:
            name = f"w{number}-{step}"
            try:
                self.revisions[name] = await self.store.commit(Put(make_node(name)))
            except Unavailable:
                self.failed.append(name)
            step += 1

    async def more(self, count: int) -> None:
        """Wait until `count` more commits were acknowledged."""
        wanted = len(self.revisions) + count
        async with asyncio.timeout(90):
            while len(self.revisions) < wanted:
                for task in self._tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def check(load: Load, watcher: Watcher, store: EtcdStore) -> None:
    """The watch showed each acknowledged commit exactly once, in order, and the state agrees."""
    await watcher.until(lambda: bool(watcher.changes) and watcher.changes[-1].revision >= max(load.revisions.values()))
    order = [change.revision for change in watcher.changes]
    assert order == sorted(set(order))
    shown = {change.key.name: change.revision for change in watcher.changes}
    assert len(shown) == len(watcher.changes), "an object was created twice"
    assert {name: shown.get(name) for name in load.revisions} == load.revisions
    for name in load.revisions:
        assert await store.get(Key("node", "", name)) is not None


@pytest.mark.req("S0-7", "S2-23")
@pytest.mark.parametrize("whom", ["leader", "follower"])
async def test_killing_a_member_loses_nothing_and_writing_goes_on(etcd_cluster: Etcd, whom: str) -> None:
    leader = etcd_cluster.leader()
    victim = leader if whom == "leader" else (leader + 1) % 3
    # The store speaks to the victim first.
    endpoints = etcd_cluster.endpoints[victim:] + etcd_cluster.endpoints[:victim]
    async with (
        await EtcdStore.open(endpoints, wait_seconds=60) as store,
        Watcher(store, "node", since=store.index.revision) as watcher,
    ):
        load = Load(store)
        await load.more(100)
        await asyncio.to_thread(etcd_cluster.kill, victim)
        await load.more(200)
        await asyncio.to_thread(etcd_cluster.start, victim)
        await load.more(100)
        await load.stop()
        await check(load, watcher, store)
        assert load.failed == [], "one member of three is no reason to refuse a commit"


@pytest.mark.req("S0-7")
async def test_a_member_that_hangs_is_left_for_another(etcd_cluster: Etcd) -> None:
    victim = (etcd_cluster.leader() + 1) % 3
    endpoints = etcd_cluster.endpoints[victim:] + etcd_cluster.endpoints[:victim]
    async with (
        await EtcdStore.open(endpoints, wait_seconds=60) as store,
        Watcher(store, "node", since=store.index.revision) as watcher,
    ):
        load = Load(store)
        await load.more(50)
        etcd_cluster.pause(victim)
        try:
            await load.more(100)
        finally:
            etcd_cluster.resume(victim)
        await load.more(50)
        await load.stop()
        await check(load, watcher, store)


@pytest.mark.req("S0-7")
async def test_without_a_majority_commits_fail_reads_go_on_and_it_recovers(etcd_cluster: Etcd) -> None:
    async with await EtcdStore.open(etcd_cluster.endpoints, wait_seconds=1) as store:
        await store.commit(Put(make_node("n1")))
        for victim in (0, 1):
            etcd_cluster.kill(victim)
        with pytest.raises(Unavailable):
            await store.commit(Put(make_node("n2")))
        assert await store.get(Key("node", "", "n1")) is not None
        etcd_cluster.start(0, wait=False)
        await asyncio.to_thread(etcd_cluster.wait_ready, 0)
        await _until(lambda name: store.commit(Put(make_node(name))))
        etcd_cluster.start(1)


@pytest.mark.req("S0-7")
async def test_availability_needs_a_majority_and_not_every_member(
    etcd_cluster: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mandor.store.etcd.AVAILABLE_FOR_SECONDS", 0.0)  # each check reads again
    victim = (etcd_cluster.leader() + 1) % 3
    endpoints = etcd_cluster.endpoints[victim:] + etcd_cluster.endpoints[:victim]
    async with await EtcdStore.open(endpoints) as store:
        await store.check_available()
        etcd_cluster.pause(victim)
        try:
            await store.check_available()
        finally:
            etcd_cluster.resume(victim)
        for member in (0, 1):
            etcd_cluster.kill(member)
        refusal = await _refusal(store)
        assert "etcd has no majority of members that answer" in refusal.message
        assert all(each in refusal.message for each in etcd_cluster.endpoints)
        assert "start the missing etcd members" in (refusal.hint or "")
        for member in (0, 1):
            etcd_cluster.start(member, wait=False)
        await _until(lambda _: store.check_available())


async def _refusal(store: EtcdStore) -> Unavailable:
    """Return the error of the first check that fails."""
    async with asyncio.timeout(60):
        while True:
            try:
                await store.check_available()
            except Unavailable as error:
                return error
            await asyncio.sleep(0.2)


async def _until(commit: Callable[[str], object]) -> None:
    async with asyncio.timeout(90):
        for number in range(1000):
            try:
                await commit(f"late{number}")  # type: ignore[misc]
            except Unavailable:
                continue
            return
