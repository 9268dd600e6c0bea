"""The agent on a manual clock: orders, restarts and outages."""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from mandor.agent.feed import Source
from mandor.agent.worker import Worker
from mandor.errors import EngineDown
from mandor.lib.clock import settle
from mandor.model.instance import Instance, InstanceSpec, InstanceStatus
from mandor.model.meta import Meta
from mandor.model.phase import Phase
from mandor.model.record import Event
from mandor.model.resources import Resources
from mandor.store.base import Change, Delete, Put
from tests.unit.agent.world import World, open_world, release_key


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as opened:
        yield opened


@contextmanager
def count_calls(target: object, name: str) -> Iterator[Callable[[], int]]:
    """Count the calls of a method, which still runs."""
    original, calls = getattr(target, name), 0

    def counted(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        return original(*args, **kwargs)

    with patch.object(target, name, counted):
        yield lambda: calls


async def test_an_order_is_carried_out_reported_stopped_and_forgotten(world: World) -> None:
    await world.apply()
    await world.order()
    status = await world.until_phase(Phase.RUNNING)
    assert status.ready
    assert status.engine == "fake"
    await world.stop_order()
    status = await world.until_phase(Phase.STOPPED)
    assert status.message == "scaled down"
    assert len(await world.observed()) == 1
    await world.delete()
    await world.pass_time(2)
    assert await world.observed() == []
    assert list((world.settings.data / "orders").iterdir()) == []


# Agents, machines and control planes that go away.


@pytest.mark.req("S0-17", "S0-18")
async def test_an_hour_without_a_control_plane_causes_no_restart_and_states_agree_afterwards(world: World) -> None:
    await world.apply()
    await world.apply("job", type="batch", options={"fake": {"after": "30m", "exit_code": 0}})
    for index in range(3):
        await world.order(index=index)
    await world.order("job")
    for name in ("web-0", "web-1", "web-2", "job-0"):
        await world.until_phase(Phase.RUNNING, name)
    before = {name: await world.status(name) for name in ("web-0", "web-1", "web-2")}
    starts = list(world.starts)

    world.wire.cut()
    await world.pass_time(3600, step=60)
    assert len(await world.live()) == 3
    assert (await world.status("job-0")).phase is Phase.RUNNING

    world.wire.mend()
    await world.until_phase(Phase.SUCCEEDED, "job-0", seconds=120)
    await world.pass_time(60)
    assert world.starts == starts
    assert {name: await world.status(name) for name in before} == before


@pytest.mark.req("S0-17")
async def test_a_crash_during_the_outage_is_handled_in_place_and_reported_afterwards(world: World) -> None:
    await world.apply(options={"fake": {"after": "10m", "exit_code": 3, "good_attempt": 2}})
    await world.order()
    await world.until_phase(Phase.RUNNING)
    world.wire.cut()
    await world.pass_time(700, step=10)
    assert [unit.attempt for unit in world.starts] == [1, 2]
    assert (await world.status()).restarts == 0
    world.wire.mend()

    async def agreed() -> bool:
        status = await world.status()
        return status.restarts == 1 and status.phase is Phase.RUNNING

    await world.until(agreed)
    assert (await world.status()).exit_code == 3


@pytest.mark.req("S0-28", "S0-29")
async def test_an_agent_restart_loses_nothing_and_starts_nothing_twice(world: World) -> None:
    await world.apply()
    for index in range(5):
        await world.order(index=index)
        await world.until_phase(Phase.RUNNING, f"web-{index}")
    await world.pass_time(60)  # its load is known, too
    before = [await world.status(f"web-{index}") for index in range(5)]
    starts, commits = list(world.starts), world.wire.commits

    await world.restart_agent()
    await world.pass_time(30)
    assert world.starts == starts
    assert [await world.status(f"web-{index}") for index in range(5)] == before
    # Nothing changed, so nothing was written: statuses are the same to the last digit.
    assert world.wire.commits == commits


@pytest.mark.req("S0-28")
async def test_orders_survive_an_agent_restart_in_an_outage(world: World) -> None:
    await world.apply(options={"fake": {"after": "60s", "exit_code": 1, "good_attempt": 2}})
    await world.order()
    await world.until_phase(Phase.RUNNING)
    world.wire.cut()
    await world.restart_agent()
    await world.pass_time(120)
    assert [unit.attempt for unit in await world.live()] == [2]


@pytest.mark.req("S0-28")
async def test_a_reboot_during_an_outage_restarts_instances(world: World) -> None:
    await world.apply()
    await world.order()
    await world.until_phase(Phase.RUNNING)
    world.wire.cut()
    await world.kill_agent()
    for unit in await world.live():
        world.engine.vanish(unit)
    world.boot = "boot-2"
    await world.boot_agent()
    await world.pass_time(60)
    assert [unit.attempt for unit in await world.live()] == [2]


async def test_a_stop_order_that_came_while_the_agent_was_away_is_carried_out(world: World) -> None:
    await world.apply()
    await world.order()
    await world.until_phase(Phase.RUNNING)
    await world.kill_agent()
    await world.stop_order()
    await world.boot_agent()
    await world.until_phase(Phase.STOPPED)
    assert await world.live() == []


async def test_an_instance_that_crashed_and_was_stopped_while_the_agent_was_down_is_not_restarted(world: World) -> None:
    await world.apply()
    await world.order()
    await world.until_phase(Phase.RUNNING)
    await world.kill_agent()
    for unit in await world.live():
        world.engine.end(unit, 1)
    await world.stop_order()
    await world.clock.advance(60)
    await world.boot_agent()
    await world.until_phase(Phase.STOPPED)
    assert len(world.starts) == 1


async def test_a_lost_instance_is_running_again_when_its_node_comes_back_in_time(world: World) -> None:
    await world.apply()
    await world.order()
    await world.until_phase(Phase.RUNNING)
    world.wire.cut()
    await world.pass_time(120, step=10)
    lost = (await world.status()).__class__(phase=Phase.LOST, since=world.clock.now())
    instance = await world.instance()
    await world.store.commit(Put(instance.reported(lost)))
    world.wire.mend()
    await world.until_phase(Phase.RUNNING)
    assert len(world.starts) == 1


async def test_a_returning_node_stops_replaced_instances(world: World) -> None:
    await world.apply()
    old = await world.order()
    await world.until_phase(Phase.RUNNING)
    world.wire.cut()
    await world.pass_time(120, step=10)
    now = await world.instance()
    meta = Meta(name=now.meta.name, namespace=now.meta.namespace, version=now.meta.version)
    spec = InstanceSpec(workload="web", release="web.1", index=0)
    await world.store.commit(Put(Instance(meta=meta, spec=spec)))
    assert (await world.instance()).meta.uid != old.meta.uid
    world.wire.mend()

    async def empty() -> bool:
        return await world.observed() == []

    await world.until(empty)
    assert (await world.status()).phase is Phase.PENDING


async def test_the_replacement_on_the_same_node_runs_and_the_original_does_not(world: World) -> None:
    await world.apply()
    await world.order()
    await world.until_phase(Phase.RUNNING)
    now = await world.instance()
    meta = Meta(name=now.meta.name, namespace=now.meta.namespace, version=now.meta.version)
    spec = InstanceSpec(workload="web", release="web.1", index=0, node="n1")
    await world.store.commit(Put(Instance(meta=meta, spec=spec, status=InstanceStatus(phase=Phase.RESERVED))))
    await world.until_phase(Phase.RUNNING)
    await world.pass_time(5)
    assert [unit.uid for unit in await world.live()] == [(await world.instance()).meta.uid]


# Orders that are not for this node, or cannot be carried out.


@pytest.mark.req("S0-31", "S0-14")
async def test_an_order_for_another_node_is_refused(world: World) -> None:
    await world.apply()
    other = await world.order(node="n2")
    assert world.agent is not None
    world.agent.listed([other], Source("c1", 1, other.meta.version))
    world.agent.changed(Change(other.meta.version, None, other), Source("c1", 1, other.meta.version))
    await world.pass_time(5)
    assert world.starts == []
    assert (await world.status()).phase is Phase.RESERVED


@pytest.mark.req("S0-27", "S0-31")
async def test_an_order_delivered_many_times_starts_once(world: World) -> None:
    await world.apply()
    order = await world.order()
    assert world.agent is not None
    source = Source("c1", 1, order.meta.version)
    for _ in range(20):
        world.agent.changed(Change(order.meta.version, None, order), source)
        world.agent.listed([order], source)
        await settle(1)
    await world.until_phase(Phase.RUNNING)
    for _ in range(20):
        world.agent.changed(Change(order.meta.version, order, order), source)
        await settle(3)
    await world.pass_time(5)
    assert len(world.starts) == 1


async def test_an_instance_without_a_suitable_engine_is_refused(world: World) -> None:
    await world.apply(engine=["dcoker"])
    await world.order()
    status = await world.until_phase(Phase.FAILED)
    assert status.reason == "Refused"
    assert "no engine dcoker" in status.message


async def test_a_release_that_does_not_exist_is_refused(world: World) -> None:
    await world.apply()
    release = await world.store.get(release_key())
    assert release is not None
    await world.store.commit(Delete(release.key, release.meta.version))
    await world.order()
    status = await world.until_phase(Phase.FAILED)
    assert (status.reason, status.message) == ("Refused", "release web.1 does not exist")


async def test_an_instance_over_the_free_resources_is_refused(tmp_path: Path) -> None:
    async with open_world(tmp_path, capacity=Resources(cpu_milli=2000, memory_bytes=1 << 30)) as world:
        await world.apply(resources={"cpu": 1, "memory": "100Mi"})
        for index in range(3):
            await world.order(index=index)
        await world.pass_time(5)
        phases = sorted([(await world.status(f"web-{index}")).phase for index in range(3)])
        assert phases == [Phase.FAILED, Phase.RUNNING, Phase.RUNNING]


async def test_an_instance_waits_for_the_resources_of_a_stopping_one(tmp_path: Path) -> None:
    async with open_world(tmp_path, capacity=Resources(cpu_milli=1000, memory_bytes=1 << 30)) as world:
        await world.apply(resources={"cpu": 1}, options={"fake": {"stop_delay": "5s"}})
        await world.order()
        await world.until_phase(Phase.RUNNING)
        await world.stop_order()
        await world.pass_time(1)
        await world.order(index=1)
        await world.pass_time(2)
        assert (await world.status("web-1")).reason == "Waiting"
        await world.until_phase(Phase.RUNNING, "web-1")
        assert len(await world.live()) == 1


async def test_a_successor_with_the_same_name_starts_when_its_predecessor_has_stopped(world: World) -> None:
    await world.apply(options={"fake": {"stop_delay": "5s"}})
    old = await world.order()
    await world.until_phase(Phase.RUNNING)
    made = Instance(
        meta=Meta(name=old.meta.name, namespace="default", version=(await world.instance()).meta.version),
        spec=old.spec,
        status=InstanceStatus(phase=Phase.RESERVED, since=world.clock.now()),
    )
    await world.store.commit(Put(made))
    for _ in range(8):
        await world.pass_time(0.5, step=0.5)
        assert {each.uid for each in await world.live()} == {old.meta.uid}
    await world.until_phase(Phase.RUNNING)
    assert {each.uid for each in await world.live()} == {(await world.instance()).meta.uid} != {old.meta.uid}


# Engines that misbehave.


async def test_instances_survive_an_engine_that_is_down(world: World) -> None:
    await world.apply()
    await world.order()
    await world.until_phase(Phase.RUNNING)
    before = await world.status()
    world.engine.down()
    await world.pass_time(120, step=5)
    assert (await world.node()).status.engines["fake"].up is False
    status = await world.status()
    assert (status.phase, status.ready, status.reason) == (Phase.RUNNING, True, "EngineDown")
    assert status.message.startswith("the engine fake is down (")
    world.engine.up()
    await world.pass_time(120, step=5)
    assert (await world.node()).status.engines["fake"].up is True
    assert len(world.starts) == 1
    assert await world.status() == before, "as if nothing had been"
    told = [each.spec.reason for each in (await world.store.list(Event.kind)).items if isinstance(each, Event)]
    assert sorted(reason for reason in told if reason.startswith("Engine")) == ["EngineDown", "EngineUp"]


async def test_a_session_with_an_engine_that_is_down_reports_the_engine(world: World) -> None:
    await world.apply()
    order = await world.order()
    await world.until_phase(Phase.RUNNING)
    assert world.agent is not None
    find = world.agent._find_unit
    assert find(order.meta.uid, "")[1].task == "main"
    world.engine.down("no socket")
    await world.pass_time(120, step=5)
    with pytest.raises(EngineDown, match="the engine fake of the node n1 does not answer: no socket") as raised:
        find(order.meta.uid, "")
    assert "start fake on the node" in (raised.value.hint or "")
    world.engine.up()
    await world.pass_time(120, step=5)
    assert find(order.meta.uid, "")[1].task == "main"


async def test_a_start_the_engine_refuses_for_a_while_is_tried_again(world: World) -> None:
    await world.apply(options={"fake": {"down_starts": 3}})
    await world.order()
    status = await world.until_phase(Phase.RUNNING)
    assert (status.restarts, len(world.starts)) == (0, 1)


async def test_an_instance_that_can_never_start_fails_with_the_reason(world: World) -> None:
    await world.apply(options={"fake": {"fail_start": "no such program"}})
    await world.order()
    status = await world.until_phase(Phase.FAILED)
    assert status.reason == "StartFailed"
    assert "no such program" in status.message


async def test_a_start_that_hangs_is_given_up_when_the_instance_must_stop(world: World) -> None:
    await world.apply(options={"fake": {"hang_start": True}})
    await world.order()
    await world.until_phase(Phase.STARTING)
    await world.stop_order()
    await world.until_phase(Phase.STOPPED)


@pytest.mark.req("S0-15")
async def test_one_hanging_instance_does_not_hold_up_the_others(world: World) -> None:
    await world.apply("stuck", options={"fake": {"hang_start": True}})
    await world.apply()
    await world.order("stuck")
    await world.order()
    await world.until_phase(Phase.RUNNING)


@pytest.mark.req("S0-15")
async def test_many_hanging_starts_give_their_slots_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mandor.agent.worker.SLOT_SECONDS", 0.05)
    async with open_world(tmp_path, starts_most=2) as world:
        await world.apply("stuck", options={"fake": {"hang_start": True}})
        await world.apply()
        for index in range(10):
            await world.order("stuck", index)
        await world.pass_time(1)
        await world.order()
        await world.stop_order("stuck-9")
        await world.until_phase(Phase.STOPPED, "stuck-9")
        for _ in range(200):
            await asyncio.sleep(0.02)
            await world.pass_time(0.1)
            if (await world.status()).phase is Phase.RUNNING:
                break
        assert (await world.status()).phase is Phase.RUNNING


@pytest.mark.req("S0-29")
async def test_a_long_start_is_followed_to_its_end_across_an_agent_restart(world: World) -> None:
    await world.apply(options={"fake": {"start_delay": "10m"}})
    await world.order()
    await world.until_phase(Phase.STARTING)
    await world.pass_time(60)
    await world.restart_agent()
    await world.pass_time(480, step=30)
    assert (await world.status()).phase is Phase.STARTING
    await world.until_phase(Phase.RUNNING, seconds=120)
    assert len(world.starts) == 1


# Restarts in place.


@pytest.mark.req("S2-9", "S2-49")
async def test_a_crash_loop_backs_off_and_then_fails_with_its_last_exit_code(world: World) -> None:
    restart = {"attempts": 4, "delay": "10s", "max_delay": "40s"}
    await world.apply(options={"fake": {"after": "1s", "exit_code": 9}}, restart=restart)
    await world.order()
    status = await world.until_phase(Phase.FAILED, seconds=300)
    assert (status.reason, status.exit_code, status.restarts) == ("CrashLoop", 9, 4)
    at = [start.at for start in world.engine.starts]
    assert [round(later - earlier) for earlier, later in itertools.pairwise(at)] == [11, 21, 41, 41]
    assert await world.live() == []


async def test_an_out_of_memory_kill_is_shown(world: World) -> None:
    await world.apply(type="batch", options={"fake": {"after": "1s", "oom": True}}, restart={"policy": "never"})
    await world.order()
    status = await world.until_phase(Phase.FAILED)
    assert (status.reason, status.exit_code) == ("OOMKilled", 137)


async def test_a_restart_policy_that_changed_meanwhile_counts(world: World) -> None:
    await world.apply(options={"fake": {"after": "30s", "exit_code": 1}})
    await world.order()
    await world.until_phase(Phase.RUNNING)
    await world.apply(options={"fake": {"after": "30s", "exit_code": 1}}, restart={"policy": "never"})
    status = await world.until_phase(Phase.FAILED)
    assert (status.reason, len(world.starts)) == ("Error", 1)


async def test_a_batch_that_completes_has_succeeded(world: World) -> None:
    await world.apply(type="batch", options={"fake": {"after": "5s"}})
    await world.order()
    status = await world.until_phase(Phase.SUCCEEDED)
    assert (status.reason, status.exit_code) == ("Completed", 0)


# Cut off on purpose.


async def test_the_agent_stops_an_instance_that_exceeds_stop_after(world: World) -> None:
    await world.apply(disconnect={"stop_after": "60s"})
    await world.apply("other")
    await world.order()
    await world.order("other")
    await world.until_phase(Phase.RUNNING)
    await world.until_phase(Phase.RUNNING, "other-0")
    world.wire.cut()
    await world.pass_time(45)
    assert len(await world.live()) == 2
    await world.pass_time(30)
    assert len(await world.live()) == 1
    world.wire.mend()
    status = await world.until_phase(Phase.STOPPED)
    assert status.reason == "Disconnected"


async def test_the_silence_goes_on_when_the_agent_restarts(world: World) -> None:
    await world.apply(disconnect={"stop_after": "60s"})
    await world.order()
    await world.until_phase(Phase.RUNNING)
    world.wire.cut()
    for _ in range(5):
        await world.pass_time(15)
        await world.restart_agent()
    await world.pass_time(10)
    assert await world.live() == []


# A full disk.


async def test_an_instance_that_cannot_be_saved_is_not_started_but_stops_still_work(world: World) -> None:
    await world.apply()
    await world.order()
    await world.until_phase(Phase.RUNNING)
    with patch("mandor.agent.journal.replace_file", side_effect=OSError(errno.ENOSPC, "No space left on device")):
        await world.order(index=1)
        await world.pass_time(10)
        assert len(world.starts) == 1
        await world.stop_order()
        await world.until_phase(Phase.STOPPED)
    await world.until_phase(Phase.RUNNING, "web-1", seconds=120)


async def test_an_error_of_the_engine_is_shown_while_it_lasts(world: World) -> None:
    await world.apply(options={"fake": {"down_starts": 4}})
    await world.order()
    await world.pass_time(2)
    status = await world.status()
    assert (status.phase, status.reason) == (Phase.STARTING, "EngineDown")
    assert "as requested" in status.message
    status = await world.until_phase(Phase.RUNNING)
    assert (status.reason, status.message) == ("", "")


# Many at once, and none at all.


@pytest.mark.req("S0-15", "S0-20")
async def test_a_hundred_instances_come_and_go_together(world: World) -> None:
    await world.apply(options={"fake": {"slow": "1s", "stop_delay": "2s"}})
    for index in range(100):
        await world.order(index=index)
    names = [f"web-{index}" for index in range(100)]

    async def all_in(phase: Phase) -> bool:
        return all([(await world.status(name)).phase is phase for name in names])

    began = world.clock.now()
    await world.until(lambda: all_in(Phase.RUNNING))
    assert len(world.starts) == len(set(world.starts)) == 100
    # One after the other would take a hundred seconds; sixteen at a time take seven.
    assert world.clock.now() - began < 20
    for name in names:
        await world.stop_order(name)
    await world.until(lambda: all_in(Phase.STOPPED), seconds=30)
    assert await world.live() == []


async def test_two_hundred_idle_instances_cause_no_work(world: World) -> None:
    await world.apply()
    for index in range(200):
        await world.order(index=index)
    await world.until_phase(Phase.RUNNING, "web-199")
    await world.pass_time(60)
    lists, steps, commits = count_calls(world.engine, "list"), count_calls(Worker, "_step"), world.wire.commits
    with lists as listed, steps as stepped:
        await world.pass_time(300, step=10)
    # The engine tells of changes; it is asked only now and then, in case a word was lost.
    assert listed() <= 12
    assert stepped() == 0
    assert world.wire.commits == commits


@pytest.mark.req("S0-14")
async def test_units_that_an_engine_starts_after_the_end_are_removed(world: World) -> None:
    await world.apply()
    await world.order()
    await world.until_phase(Phase.RUNNING)
    unit, launch = world.starts[-1], world.engine.launch(world.starts[-1])
    await world.delete()

    async def nothing() -> bool:
        return not await world.observed()

    await world.until(nothing)
    await world.pass_time(5)
    await world.engine.start(unit, launch)
    assert await world.live() == [unit]
    await world.until(nothing)


@pytest.mark.req("S0-25")
async def test_a_start_is_cancelled_in_time_even_if_the_engine_does_not_answer(world: World) -> None:
    await world.apply(disconnect={"stop_after": "10s"})
    for verb in ("start", "list"):
        world.engine.hang(verb)
    await world.order()
    await world.pass_time(2)
    world.wire.cut()
    await world.pass_time(12)

    async def given_up() -> bool:
        await asyncio.sleep(0.1)  # A start is looked after on the loop's own clock.
        agent = world.agent
        assert agent is not None
        return agent.workers.services.starts.idle.is_set()

    await world.until(given_up)
    world.engine.release("list")
    world.engine.release("start")
    await world.pass_time(5)
    assert world.starts == []


@pytest.mark.req("S0-25")
async def test_an_agent_that_was_suspended_during_a_start_does_not_continue_it(world: World) -> None:
    await world.apply(disconnect={"stop_after": "10s"}, options={"fake": {"slow": 20}})
    await world.order()
    await world.pass_time(1)
    world.wire.cut()
    await world.clock.advance(30)
    await settle()
    assert world.starts == []
