"""Writing statuses to the store."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest

from mandor.agent.reporter import LATE_SECONDS, SOON_SECONDS, Reporter
from mandor.agent.status import path
from mandor.errors import Conflict, Unavailable
from mandor.lib.clock import ManualClock
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.meta import Key, Meta, Object
from mandor.model.phase import MOVES, Phase, may_move
from mandor.store.base import Delete, Put, Store, Write
from mandor.store.wrapper import StoreWrapper
from tests.unit.agent.world import World


@pytest.fixture
async def world(tmp_path: Path) -> World:
    """A world of which only the store and the wire are used."""
    world = World(tmp_path, ManualClock())
    await world.found()
    await world.apply()
    return world


@pytest.fixture
async def reporter(world: World) -> AsyncIterator[Reporter]:
    reporter = Reporter(world.wire, world.clock)
    running = asyncio.ensure_future(reporter.run())
    yield reporter
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


RUNNING = InstanceStatus(phase=Phase.RUNNING, ready=True, since=5.0)


@pytest.mark.parametrize("before", list(Phase))
@pytest.mark.parametrize("after", list(Phase))
def test_a_path_has_only_allowed_moves(before: Phase, after: Phase) -> None:
    steps = [before, *path(before, after)]
    assert all(may_move(a, b) for a, b in itertools.pairwise(steps))
    if not MOVES[before] and before != after:
        assert steps == [before]
    assert Phase.LOST not in steps[1:-1]


@pytest.mark.parametrize("after", [phase for phase in Phase if phase not in {Phase.PENDING, Phase.RESERVED}])
def test_every_final_phase_can_be_reached_from_reserved(after: Phase) -> None:
    assert path(Phase.RESERVED, after)[-1] is after


async def stored_phases(world: World, since: int) -> list[Phase]:
    async for batch in world.store.watch("instance", since=since):
        return [change.after.phase for change in batch if isinstance(change.after, Instance)]
    raise AssertionError("a watch begins with a bookmark")


STARTING = InstanceStatus(phase=Phase.STARTING, since=4.0)


async def test_an_instance_that_runs_soon_is_reported_once(world: World, reporter: Reporter) -> None:
    instance = await world.order()
    reporter.saw(instance)
    reporter.report(instance.meta.uid, STARTING)
    await world.clock.advance(SOON_SECONDS / 2)
    reporter.report(instance.meta.uid, RUNNING)
    await world.clock.advance(1)
    assert await stored_phases(world, instance.meta.version) == [Phase.RUNNING]
    assert await world.status() == RUNNING


@pytest.mark.req("S0-30")
async def test_an_instance_that_takes_longer_is_reported_as_starting(world: World, reporter: Reporter) -> None:
    instance = await world.order()
    reporter.saw(instance)
    reporter.report(instance.meta.uid, STARTING)
    await world.clock.advance(SOON_SECONDS * 2)
    assert await world.status() == STARTING


@pytest.mark.req("S0-30")
async def test_a_reason_for_waiting_is_reported_at_once(world: World, reporter: Reporter) -> None:
    instance = await world.order()
    reporter.saw(instance)
    waits = msgspec.structs.replace(STARTING, reason="SecretMissing", message="secret db does not exist")
    reporter.report(instance.meta.uid, waits)
    await world.clock.advance(0)
    assert await world.status() == waits


async def test_servers_of_earlier_versions_get_every_phase(world: World) -> None:
    instance = await world.order()
    reporter = Reporter(world.wire, world.clock, at_once=lambda: False)
    running = asyncio.ensure_future(reporter.run())
    reporter.saw(instance)
    reporter.report(instance.meta.uid, RUNNING)
    await world.clock.advance(1)
    assert await stored_phases(world, instance.meta.version) == [Phase.STARTING, Phase.RUNNING]
    assert await world.status() == RUNNING
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_statuses_are_combined_while_a_commit_is_under_way(world: World, reporter: Reporter) -> None:
    instances = await orders(world, 10)
    world.wire.prompt.clear()
    for each in instances:
        reporter.saw(each)
        reporter.report(each.meta.uid, RUNNING)
        await world.clock.advance(0.1)
    world.wire.prompt.set()
    await world.clock.advance(1)
    assert reporter.waiting == 0
    assert world.wire.commits == 2


async def test_an_unchanged_status_is_not_written(world: World, reporter: Reporter) -> None:
    instance = await world.order()
    reporter.saw(instance)
    reporter.report(instance.meta.uid, instance.status)
    await world.clock.advance(5)
    assert world.wire.commits == 0


@pytest.mark.req("S0-30")
async def test_only_the_newest_status_is_kept_during_an_outage(world: World, reporter: Reporter) -> None:
    instance = await world.order()
    reporter.saw(instance)
    world.wire.cut()
    for restarts in range(50):
        reporter.report(instance.meta.uid, msgspec.structs.replace(RUNNING, restarts=restarts))
        await world.clock.advance(60)
    assert reporter.waiting == 1
    world.wire.mend()
    await world.clock.advance(60)
    assert (await world.status()).restarts == 49
    assert reporter.waiting == 0
    assert world.wire.commits == 1


async def test_a_lost_race_against_a_stop_order_loses_neither(world: World, reporter: Reporter) -> None:
    instance = await world.order()
    reporter.saw(instance)
    await world.stop_order()
    reporter.report(instance.meta.uid, RUNNING)
    await world.clock.advance(1)
    after = await world.instance()
    assert after.spec.stop is not None
    assert after.status == RUNNING


async def test_a_status_that_another_writer_replaced_is_written_again(world: World, reporter: Reporter) -> None:
    instance = await world.order()
    reporter.saw(instance)
    reporter.report(instance.meta.uid, RUNNING)
    await world.clock.advance(1)
    lost = (await world.instance()).reported(InstanceStatus(phase=Phase.LOST))
    await world.store.commit(Put(lost))
    reporter.saw(await world.instance())
    await world.clock.advance(2)
    assert await world.status() == RUNNING


async def test_the_status_of_a_replaced_instance_is_dropped(world: World, reporter: Reporter) -> None:
    instance = await world.order()
    reporter.saw(instance)
    meta = Meta(name="web-0", namespace="default", version=instance.meta.version)
    await world.store.commit(Put(Instance(meta=meta, spec=instance.spec)))
    reporter.report(instance.meta.uid, RUNNING)
    await world.clock.advance(5)
    assert (await world.status()).phase is Phase.PENDING


async def test_an_instance_that_has_ended_in_the_store_is_not_changed(world: World, reporter: Reporter) -> None:
    instance = await world.order()
    await world.store.commit(Put(instance.reported(InstanceStatus(phase=Phase.STOPPED))))
    reporter.saw(await world.instance())
    reporter.report(instance.meta.uid, RUNNING)
    await world.clock.advance(60)
    assert (await world.status()).phase is Phase.STOPPED


async def orders(world: World, count: int) -> list[Instance]:
    return [await world.order(index=index) for index in range(count)]


async def test_instances_that_start_together_are_reported_in_one_commit(world: World, reporter: Reporter) -> None:
    instances = await orders(world, 20)
    for each in instances:
        reporter.saw(each)
        reporter.report(each.meta.uid, RUNNING)
    await world.clock.advance(1)
    stored = [item for item in (await world.store.list("instance")).items if isinstance(item, Instance)]
    assert [each.status for each in stored] == [RUNNING] * 20
    assert world.wire.commits == 1


async def test_a_refused_status_does_not_delay_the_others(world: World, reporter: Reporter) -> None:
    instances = await orders(world, 5)
    await world.store.commit(Delete(instances[2].key, instances[2].meta.version))
    for each in instances:
        reporter.saw(each)
        reporter.report(each.meta.uid, RUNNING)
    await world.clock.advance(1)
    stored = [item for item in (await world.store.list("instance")).items if isinstance(item, Instance)]
    assert [each.status for each in stored] == [RUNNING] * 4


async def test_all_statuses_wait_during_an_outage(world: World, reporter: Reporter) -> None:
    world.wire.cut()
    instances = await orders(world, 5)
    for each in instances:
        reporter.saw(each)
        reporter.report(each.meta.uid, RUNNING)
    await world.clock.advance(60)
    assert reporter.waiting == 5
    world.wire.mend()
    await world.clock.advance(60)
    assert reporter.waiting == 0


class Picky(StoreWrapper):
    """A store that never answers some writes, and answers others late."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.stuck: set[str] = set()
        self.refused: set[str] = set()
        self.asked: list[list[str]] = []

    async def commit(self, *writes: Write) -> int:
        names = [write.key.name for write in writes]
        self.asked.append(names)
        if self.stuck & {*names}:
            await asyncio.Event().wait()
        if self.refused & {*names}:
            raise Unavailable("too many writers want the same objects")
        return await self._store.commit(*writes)


@pytest.fixture
async def picky(world: World) -> AsyncIterator[tuple[Picky, Reporter]]:
    store = Picky(world.store)
    reporter = Reporter(store, world.clock)
    running = asyncio.ensure_future(reporter.run())
    yield store, reporter
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def reported(world: World) -> set[str]:
    items = (await world.store.list("instance")).items
    return {item.meta.name for item in items if isinstance(item, Instance) and item.status == RUNNING}


def say(reporter: Reporter, instances: Sequence[Instance]) -> None:
    for each in instances:
        reporter.saw(each)
        reporter.report(each.meta.uid, RUNNING)


async def test_unanswered_commits_delay_the_others_only_for_a_while(
    world: World, picky: tuple[Picky, Reporter]
) -> None:
    store, reporter = picky
    instances = await orders(world, 8)
    names = [each.meta.name for each in instances]
    store.stuck = {names[0], names[2]}
    say(reporter, instances[:1])
    await world.clock.advance(LATE_SECONDS / 2)
    say(reporter, instances[1:2])
    await world.clock.advance(LATE_SECONDS / 4)
    assert await reported(world) == set(), "they gather as long as it may be slow"
    await world.clock.advance(LATE_SECONDS / 4)
    assert await reported(world) == {names[1]}
    say(reporter, instances[2:3])
    await world.clock.advance(LATE_SECONDS)
    say(reporter, instances[3:])
    await world.clock.advance(0)
    assert await reported(world) == {names[1], *names[3:]}
    assert store.asked[-1] == names[3:], "in one commit still"


async def test_after_a_late_answer_there_is_one_commit_at_a_time_again(world: World, reporter: Reporter) -> None:
    instances = await orders(world, 10)
    world.wire.prompt.clear()
    say(reporter, instances[:1])
    await world.clock.advance(LATE_SECONDS * 2)
    world.wire.prompt.set()
    say(reporter, instances[1:2])
    await world.clock.advance(1)
    world.wire.prompt.clear()
    before = world.wire.commits
    for each in instances[2:]:
        say(reporter, [each])
        await world.clock.advance(0.1)
    assert world.wire.commits == before + 1
    world.wire.prompt.set()
    await world.clock.advance(1)
    assert world.wire.commits == before + 2
    assert reporter.waiting == 0


async def test_a_status_that_is_always_refused_does_not_block_its_batch(
    world: World, picky: tuple[Picky, Reporter]
) -> None:
    store, reporter = picky
    instances = await orders(world, 20)
    names = [each.meta.name for each in instances]
    store.refused = {names[7]}
    say(reporter, instances)
    await world.clock.advance(1)
    assert await reported(world) == {*names} - store.refused
    store.refused = {names[0]}
    await world.clock.advance(60)
    assert names[7] in await reported(world)


async def test_during_an_outage_one_status_is_tried_instead_of_each(
    world: World, picky: tuple[Picky, Reporter]
) -> None:
    store, reporter = picky
    instances = await orders(world, 20)
    store.refused = {each.meta.name for each in instances}
    say(reporter, instances)
    await world.clock.advance(0)
    assert [len(names) for names in store.asked] == [20, 1]


class Behind(StoreWrapper):
    """A server with an outdated view: it does not have the instance yet and refuses its status."""

    behind = True

    async def commit(self, *writes: Write) -> int:
        if self.behind:
            raise Conflict("the instance does not exist")
        return await super().commit(*writes)

    async def get(self, key: Key) -> Object | None:
        return None if self.behind else await super().get(key)


@pytest.mark.req("S0-30")
async def test_a_status_is_stored_once_the_server_has_the_instance(world: World) -> None:
    server = Behind(world.store)
    reporter = Reporter(server, world.clock)
    running = asyncio.ensure_future(reporter.run())
    instance = await world.order()
    reporter.saw(instance)
    reporter.report(instance.meta.uid, RUNNING)
    await world.clock.advance(1)
    server.behind = False
    await world.clock.advance(60)
    assert await world.status() == RUNNING
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
