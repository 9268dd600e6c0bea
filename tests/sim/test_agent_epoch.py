"""A store that is empty, restored, rolled back or of another cluster stops no instance."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from mandor.errors import Unavailable
from mandor.model.instance import Instance
from mandor.model.meta import Key, Meta
from mandor.model.node import NodeSpec
from mandor.model.phase import Phase
from mandor.model.record import Cluster, ClusterSpec
from mandor.store.base import Put, Write
from mandor.store.memory import MemoryStore
from tests.unit.agent.world import World, open_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path, fingerprint_seconds=10) as opened:
        await opened.apply()
        await opened.order()
        await opened.until_phase(Phase.RUNNING)
        yield opened


async def restored(world: World, *, epoch: int, cluster: str = "c1", without: tuple[str, ...] = ()) -> MemoryStore:
    """Return the world's store as restored from a backup."""
    store = MemoryStore(clock=world.clock)
    await store.skip_to(world.store.index.revision + 1000)
    for item in (await world.store.list(None)).items:
        if item.meta.name in without:
            continue
        if isinstance(item, Cluster):
            item = item.changed(spec=ClusterSpec(cluster, epoch))
        await store.commit(Put(item.changed(meta=msgspec.structs.replace(item.meta, version=0))))
    return store


async def test_orders_of_another_cluster_are_ignored(world: World, caplog: pytest.LogCaptureFixture) -> None:
    foreign = await restored(world, epoch=1, cluster="c2", without=("web-0",))
    await world.exchange(foreign)
    at = foreign.index.revision
    await world.pass_time(60, step=5)
    world.engine.end((await world.live())[0], 1)
    await world.pass_time(300, step=10)
    assert len(await world.live()) == 1
    assert "belongs to c1: orders refused" in caplog.text
    assert foreign.index.revision == at, "nothing was written there"


async def test_an_order_from_a_foreign_cluster_is_not_carried_out(world: World) -> None:
    foreign = await restored(world, epoch=1, cluster="c2", without=("web-0",))
    await world.exchange(foreign)
    await world.order(index=7)
    await world.pass_time(120, step=5)
    assert [unit.uid for unit in world.starts] == [unit.uid for unit in await world.live()]
    assert len(world.starts) == 1


@pytest.mark.req("S0-17")
async def test_an_empty_store_stops_nothing(world: World) -> None:
    empty = MemoryStore(clock=world.clock)
    await world.exchange(empty)
    await world.pass_time(300, step=10)
    assert len(await world.live()) == 1


@pytest.mark.req("S0-17")
async def test_an_empty_store_with_the_same_id_and_epoch_stops_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A cluster was created again with the same id: its revisions are lower than those of the orders."""
    empty = MemoryStore(clock=world.clock)
    await empty.commit(Put(Cluster(meta=Meta(name="cluster"), spec=ClusterSpec("c1", 1))))
    await world.exchange(empty)
    await world.pass_time(120, step=10)
    assert len(await world.live()) == 1
    assert "the server is behind" in caplog.text


@pytest.mark.req("S0-15", "S0-18")
@pytest.mark.parametrize(("restarted", "disk_is_full"), [(False, False), (True, False), (True, True)])
async def test_a_server_that_is_behind_does_not_start_an_ended_instance_again(
    world: World, restarted: bool, disk_is_full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is cut off from its store lists instances that have ended and were deleted since."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def refuse(*writes: Write) -> int:
        raise Unavailable("the store does not answer")

    behind = MemoryStore(clock=world.clock)
    for item in (await world.store.list(None)).items:
        await behind.commit(Put(item.changed(meta=msgspec.structs.replace(item.meta, version=0))))
    await world.order(index=1)
    await world.until_phase(Phase.RUNNING, "web-1")
    await world.stop_order()
    await world.until_phase(Phase.STOPPED)
    with monkeypatch.context() as disk:
        if disk_is_full:
            disk.setattr("mandor.agent.journal.replace_file", full)
        await world.delete()
        await world.pass_time(30, step=5)
    assert behind.index.revision < world.store.index.revision
    monkeypatch.setattr(behind, "commit", refuse)
    current = world.store
    before = list(world.starts)
    world.wire.cut()
    await world.pass_time(1)
    if restarted:
        await world.kill_agent()
    world.store = world.wire.store = behind
    world.wire.mend()
    if restarted:
        await world.boot_agent()
    await world.pass_time(60, step=5)
    assert world.starts == before
    assert [unit.uid for unit in await world.live()] == [(await _instance(current, "web-1")).meta.uid]
    world.wire.cut()
    await world.pass_time(1)
    world.store = world.wire.store = current
    world.wire.mend()
    await behind.close()
    await world.order(index=2)
    await world.until_phase(Phase.RUNNING, "web-2")
    assert world.agent is not None
    assert world.agent.workers.held() == []


async def _instance(store: MemoryStore, name: str) -> Instance:
    found = await store.get(Key("instance", "default", name))
    assert isinstance(found, Instance)
    return found


async def test_after_a_restore_instances_that_the_store_lacks_are_held_and_reported(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        await world.exchange(await restored(world, epoch=2, without=("web-0",)))
        await world.pass_time(120, step=5)
    assert len(await world.live()) == 1
    assert (await world.node()).status.facts["held"].startswith("1: web-0")
    assert "is held" in caplog.text


async def test_a_held_instance_is_not_restarted_when_it_ends(world: World) -> None:
    await world.exchange(await restored(world, epoch=2, without=("web-0",)))
    await world.pass_time(30)
    world.engine.end((await world.live())[0], 1)
    await world.pass_time(120, step=5)
    assert await world.live() == []
    assert len(world.starts) == 1


async def test_a_held_instance_stays_held_across_agent_restarts(world: World) -> None:
    await world.exchange(await restored(world, epoch=2, without=("web-0",)))
    await world.pass_time(30)
    await world.restart_agent()
    await world.pass_time(60, step=5)
    assert len(await world.live()) == 1
    assert "web-0" in (await world.node()).status.facts["held"]


async def test_held_instances_that_the_node_may_forget_are_stopped_and_removed(world: World) -> None:
    await world.exchange(await restored(world, epoch=2, without=("web-0",)))
    await world.pass_time(30)
    node = await world.node()
    await world.store.commit(Put(node.changed(spec=NodeSpec(forget_before_epoch=2))))
    await world.pass_time(60)
    assert await world.observed() == []
    assert "held" not in (await world.node()).status.facts


async def test_the_node_reports_soon_that_it_holds_no_more_instances(tmp_path: Path) -> None:
    async with open_world(tmp_path, fingerprint_seconds=100_000) as world:  # no regular report meanwhile
        await world.apply()
        await world.order()
        await world.until_phase(Phase.RUNNING)
        await world.exchange(await restored(world, epoch=2, without=("web-0",)))

        async def held() -> bool:
            return "held" in (await world.node()).status.facts

        async def free() -> bool:
            return not await held()

        await world.until(held)
        node = await world.node()
        await world.store.commit(Put(node.changed(spec=NodeSpec(forget_before_epoch=2))))
        await world.until(free)


@pytest.mark.req("S0-18")
async def test_after_a_restore_listed_instances_go_on_and_can_be_deleted(world: World) -> None:
    await world.exchange(await restored(world, epoch=2))
    await world.pass_time(60, step=5)
    assert len(world.starts) == 1
    assert (await world.status()).phase is Phase.RUNNING
    await world.delete()
    await world.pass_time(30)
    assert await world.observed() == []


async def test_a_restored_status_is_brought_up_to_date(world: World) -> None:
    store = await restored(world, epoch=2)
    instance = next(item for item in (await store.list("instance")).items if isinstance(item, Instance))
    old = msgspec.structs.replace(instance.status, phase=Phase.STARTING, ready=False)
    await store.commit(Put(instance.changed(status=old)))
    await world.exchange(store)
    await world.until_phase(Phase.RUNNING)
    assert len(world.starts) == 1


async def test_units_without_an_order_are_left_alone_until_the_node_may_forget_them(world: World) -> None:
    """Neither the journal nor the store has the order."""
    await world.kill_agent()
    for path in (world.settings.data / "orders").iterdir():
        path.unlink()
    await world.delete()
    await world.boot_agent()
    await world.pass_time(60, step=5)
    assert len(await world.live()) == 1
    assert (await world.node()).status.facts["held"].startswith("1: ")
    node = await world.node()
    await world.store.commit(Put(node.changed(spec=NodeSpec(forget_before_epoch=1))))
    await world.pass_time(60)
    assert await world.observed() == []


@pytest.mark.req("S0-18")
async def test_a_lost_journal_costs_nothing_while_the_control_plane_remembers(world: World) -> None:
    await world.kill_agent()
    for path in (world.settings.data / "orders").iterdir():
        path.unlink()
    await world.boot_agent()
    await world.pass_time(30)
    assert len(world.starts) == 1
    await world.stop_order()
    await world.until_phase(Phase.STOPPED)


async def test_a_damaged_journal_is_set_aside_loudly(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.kill_agent()
    (path,) = (world.settings.data / "orders").iterdir()
    path.write_bytes(path.read_bytes()[:50])
    await world.boot_agent()
    await world.pass_time(30)
    assert "is damaged" in caplog.text
    assert path.with_name(path.name + ".bad").exists()
    assert len(world.starts) == 1


async def test_instances_that_a_rolled_back_store_lacks_stay_held_when_its_revisions_catch_up(world: World) -> None:
    """An old copy of the store with the same id and epoch, to which new objects are written."""
    old = MemoryStore(clock=world.clock)
    await old.commit(Put(Cluster(meta=Meta(name="cluster"), spec=ClusterSpec("c1", 1))))
    await world.exchange(old)
    await world.pass_time(60, step=5)
    await old.skip_to(10_000)
    await world.apply("other")
    await world.restart_agent()
    await world.pass_time(60, step=5)
    assert len(await world.live()) == 1
    node = await world.node()
    await world.store.commit(Put(node.changed(spec=NodeSpec(forget_before_epoch=2))))
    await world.pass_time(60, step=5)
    assert await world.live() == []


async def test_holding_an_instance_is_recorded_as_an_event(world: World) -> None:
    await world.exchange(await restored(world, epoch=2, without=("web-0",)))
    await world.pass_time(60, step=5)
    events = [item.spec for item in (await world.store.list("event")).items]
    assert any(event.reason == "Held" and event.about == "instance default/web-0" for event in events)
