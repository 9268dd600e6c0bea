"""The node's object: registration, facts, moves and refusals."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import psutil
import pytest

from mandor.agent.fingerprint import boot_id, capacity, facts, local_address
from mandor.agent.settings import AgentSettings
from mandor.engines.base import Engine, Launch, Unit
from mandor.engines.fake import FakeEngine
from mandor.engines.fake.engine import IMAGE_BYTES
from mandor.errors import Conflict, Invalid
from mandor.lib.clock import ManualClock
from mandor.model.node import NodePhase, NodeSpec, Taint
from mandor.model.phase import Phase
from mandor.model.record import ClusterSpec
from mandor.model.resources import Resources
from mandor.roots.agent import agent_settings
from mandor.roots.settings import AgentRootSettings
from mandor.store.base import Delete, Put
from tests.unit.agent.world import World, open_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path, fingerprint_seconds=10) as opened:
        await opened.pass_time(2)
        yield opened


@pytest.mark.req("S0-22", "S2-24")
async def test_a_new_node_registers_with_its_facts_and_capacity(world: World) -> None:
    node = await world.node()
    assert node.status.address == "10.0.0.1"
    assert node.status.capacity == world.settings.capacity
    assert node.status.engines["fake"].up
    assert {"os", "arch", "kernel.version", "hostname"} <= node.status.facts.keys()
    assert node.status.agent_version


async def test_facts_are_written_only_when_they_change(world: World) -> None:
    await world.pass_time(30)
    version = (await world.node()).meta.version
    await world.pass_time(300, step=10)
    assert (await world.node()).meta.version == version


async def test_a_wrong_clock_is_reported_and_a_short_delay_is_not(world: World) -> None:
    world.ahead_seconds = 1.5
    await world.pass_time(30)
    assert "clock.ahead" not in (await world.node()).status.facts
    world.ahead_seconds = -61.0
    await world.pass_time(30)
    version = (await world.node()).meta.version
    world.ahead_seconds = -59.0
    await world.pass_time(30)
    node = await world.node()
    assert (node.status.facts["clock.ahead"], node.meta.version) == ("-60", version)


@pytest.mark.req("S0-21")
async def test_a_node_that_moves_keeps_its_identity_and_its_work(world: World) -> None:
    await world.apply()
    await world.order()
    await world.until_phase(Phase.RUNNING)
    before = await world.node()
    world.address = "10.9.9.9"
    await world.pass_time(30)
    after = await world.node()
    assert (after.status.address, after.meta.uid) == ("10.9.9.9", before.meta.uid)
    world.address = "192.0.2.7"
    await world.restart_agent()
    await world.pass_time(30)
    moved = await world.node()
    assert (moved.status.address, moved.meta.uid) == ("192.0.2.7", before.meta.uid)
    assert len(world.starts) == 1
    assert (await world.status()).phase is Phase.RUNNING


async def test_fields_of_other_writers_on_the_node_are_kept(world: World) -> None:
    node = await world.node()
    spec = NodeSpec(cordoned=True, taints=(Taint("gpu"),))
    status = msgspec.structs.replace(node.status, phase=NodePhase.READY, reason="heard", since=5.0)
    await world.store.commit(Put(node.changed(spec=spec, status=status)))
    world.address = "10.0.0.2"
    await world.pass_time(30)
    after = await world.node()
    assert after.spec == spec
    assert (after.status.phase, after.status.reason, after.status.since) == (NodePhase.READY, "heard", 5.0)
    assert after.status.address == "10.0.0.2"


@pytest.mark.req("S3-39")
async def test_reserved_resources_are_not_given_to_instances(world: World) -> None:
    node = await world.node()
    await world.store.commit(Put(node.changed(spec=NodeSpec(reserved=Resources(cpu_milli=63_500)))))
    await world.pass_time(1)
    await world.apply(resources={"cpu": 1})
    await world.order()
    status = await world.until_phase(Phase.FAILED)
    assert (status.reason, "cpu 500m" in status.message) == ("Refused", True)


async def test_a_node_that_was_deleted_comes_back_and_its_work_goes_on(world: World) -> None:
    await world.apply()
    await world.order()
    await world.until_phase(Phase.RUNNING)
    node = await world.node()
    await world.store.commit(Delete(node.key, node.meta.version))
    await world.pass_time(30)
    assert (await world.node()).meta.uid != node.meta.uid
    assert len(world.starts) == 1


class BrokenEngine(FakeEngine):
    name = "broken"

    async def probe(self) -> object:  # type: ignore[override]
        raise RuntimeError("a bug in somebody's engine")

    async def list(self) -> object:  # type: ignore[override]
        raise RuntimeError("a bug in somebody's engine")


async def test_a_broken_engine_is_shown_as_down_and_the_node_goes_on(tmp_path: Path) -> None:
    world = World(tmp_path, ManualClock())
    broken: Engine = BrokenEngine(world.clock)
    world.engines["broken"] = broken
    await world.found()
    await world.boot_agent()
    await world.apply()
    await world.order()
    await world.until_phase(Phase.RUNNING)
    shown = (await world.node()).status.engines["broken"]
    assert not shown.up
    assert "a bug in somebody's engine" in shown.message
    await world.kill_agent()


class Refusing:
    async def join(self) -> ClusterSpec:
        raise Conflict("there is a node called n1 already", hint="choose another name")


async def test_an_agent_that_is_refused_before_its_first_join_exits_with_the_reason(tmp_path: Path) -> None:
    world = World(tmp_path, ManualClock())
    world.link = Refusing()
    agent = await world.boot_agent()
    assert agent.contact.membership is None
    with pytest.raises(Conflict, match="already"):
        await world.ended()


async def test_an_agent_with_instances_continues_when_it_is_refused(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await world.apply(options={"fake": {"after": "60s", "exit_code": 1, "good_attempt": 2}})
    await world.order()
    await world.until_phase(Phase.RUNNING)
    world.link = Refusing()
    await world.restart_agent()
    await world.pass_time(120)
    assert [unit.attempt for unit in await world.live()] == [2]
    assert "cannot join the cluster: there is a node called n1 already; choose another name" in caplog.text


# This machine.


def test_the_capacity_is_that_of_this_machine(tmp_path: Path) -> None:
    found = capacity(tmp_path)
    assert found.cpu_milli == 1000 * (psutil.cpu_count() or 1)
    assert found.memory_bytes == psutil.virtual_memory().total
    assert found.disk_bytes == psutil.disk_usage(str(tmp_path)).total


def test_facts_are_short_and_constant() -> None:
    assert facts() == facts()
    assert all(0 < len(value) < 200 for value in facts().values())
    assert facts()["boot"] == boot_id()


@pytest.mark.parametrize("server", ["http://127.0.0.1:8080", "127.0.0.1:8080", "http://localhost"])
def test_the_address_is_the_one_the_server_is_reached_from(server: str) -> None:
    assert local_address(server) in {"127.0.0.1", "::1"}


def test_an_unknown_server_gives_no_address() -> None:
    assert local_address("http://no-such-host.invalid:1") == ""


@pytest.mark.parametrize(
    "wrong",
    [{"name": "Bad Name"}, {"name": "x" * 300}, {"pool": "no pool"}, {"labels": {"": "x"}}, {"heartbeat_seconds": 0}],
)
def test_invalid_settings_are_refused_with_a_message(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(Invalid):
        AgentSettings(**{"name": "n1", "data": tmp_path, **wrong})  # type: ignore[arg-type]


@pytest.mark.req("S2-26")
async def test_the_nodes_object_has_usage_and_images(tmp_path: Path) -> None:
    async with open_world(tmp_path, fingerprint_seconds=10) as world:
        world.engines["box"] = box = FakeEngine(world.clock, images=True)
        await world.restart_agent()
        await world.apply(options={"fake": {"cpu": 16, "memory": "8Gi"}})
        await world.order()
        await box.start(Unit("u", "main", 0), Launch(name="x", image="shop:1"))
        await world.until_phase(Phase.RUNNING)
        await world.pass_time(60)
        status = (await world.node()).status
        assert status.usage == Resources(cpu_milli=16_000, memory_bytes=8 << 30)
        assert status.images == {"shop:1": IMAGE_BYTES}

        version = (await world.node()).meta.version
        await world.pass_time(600, step=10)
        assert (await world.node()).meta.version == version, "a steady load costs no write"
        await world.stop_order()
        await world.pass_time(60)
        assert (await world.node()).status.usage == Resources()


def test_devices_are_part_of_the_capacity(tmp_path: Path) -> None:
    root = AgentRootSettings(data=str(tmp_path), device=("nvidia/gpu=3", "amd/gpu=1"), capacity=("cpu=2",))
    settings = agent_settings(root)
    has = settings.has(capacity(tmp_path))
    assert has.devices == {"gpu": 4, "nvidia/gpu": 3, "amd/gpu": 1}
    assert (has.cpu_milli, has.memory_bytes) == (2000, psutil.virtual_memory().total)


@pytest.mark.parametrize(
    "wrong", [{"device": ("gpu",)}, {"device": ("cpu=1",)}, {"device": ("gpu=x",)}, {"capacity": ("gpu=1",)}]
)
def test_invalid_devices_and_capacities_are_refused_with_a_message(
    tmp_path: Path, wrong: dict[str, tuple[str, ...]]
) -> None:
    with pytest.raises(Invalid) as caught:
        agent_settings(AgentRootSettings(data=str(tmp_path), **wrong))  # type: ignore[arg-type]
    assert next(iter(wrong.values()))[0].partition("=")[0] in str(caught.value)
