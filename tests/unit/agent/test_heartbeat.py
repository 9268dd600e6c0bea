"""Heartbeats: regular, small, retried, and only to the node's own cluster."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import msgspec
import psutil
import pytest

from mandor.agent.cluster_contact import ClusterContact
from mandor.agent.heartbeat import HeartbeatSender
from mandor.agent.journal import ClusterMembership, Journal, LastContact
from mandor.agent.link import Heartbeat
from mandor.agent.usage import InstanceMeter, Meter
from mandor.engines.base import Launch, Unit
from mandor.engines.fake import FakeEngine
from mandor.errors import Forbidden, MandorError, NotFound, Unavailable
from mandor.lib.clock import ManualClock, SystemClock
from mandor.model.record import ClusterSpec
from mandor.model.usage import InstanceUsage, NodeUsage

HERE = ClusterSpec("c1", 1)


class Server:
    """Answers heartbeats, or does not."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.at, self.beats = clock, list[float](), list[Heartbeat]()
        self.error: MandorError | None = None
        self.cluster_now = HERE
        self.joins = 0

    async def heartbeat(self, send: Heartbeat) -> ClusterSpec:
        self.at.append(self.clock.monotonic())
        self.beats.append(send)
        if self.error is not None:
            raise self.error
        return self.cluster_now

    async def join(self) -> ClusterSpec:
        self.joins += 1
        return self.cluster_now

    async def cluster(self) -> ClusterSpec:
        return self.cluster_now

    async def dial(self, session: object) -> object:
        raise AssertionError("nobody dials here")


async def nothing() -> Mapping[str, InstanceUsage]:
    return {}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def server(clock: ManualClock) -> Server:
    return Server(clock)


@pytest.fixture
def contact(tmp_path: Path, clock: ManualClock) -> ClusterContact:
    contact = ClusterContact(Journal(tmp_path), clock, "boot-1")
    contact.check(HERE)
    return contact


async def beat_for(seconds: float, server: Server, contact: ClusterContact, clock: ManualClock, data: Path) -> None:
    heart = HeartbeatSender(server, contact, Meter(clock, data).read, clock, seconds=10, instances=nothing)  # type: ignore[arg-type]
    running = asyncio.ensure_future(heart.run())
    await clock.advance(seconds)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.req("S0-23")
async def test_heartbeats_are_sent_about_every_ten_seconds(
    server: Server, contact: ClusterContact, clock: ManualClock, tmp_path: Path
) -> None:
    await beat_for(600, server, contact, clock, tmp_path)
    gaps = [later - earlier for earlier, later in itertools.pairwise(server.at)]
    assert all(9 <= gap <= 11 for gap in gaps)
    assert len({round(gap, 3) for gap in gaps}) > 10, "the beats of many nodes must drift apart"
    assert 54 <= len(gaps) <= 67


async def test_a_failed_heartbeat_is_retried_with_backoff_up_to_the_normal_interval(
    server: Server, contact: ClusterContact, clock: ManualClock, tmp_path: Path
) -> None:
    server.error = Unavailable("gone")
    await beat_for(3600, server, contact, clock, tmp_path)
    gaps = [later - earlier for earlier, later in itertools.pairwise(server.at)]
    assert gaps[0] < 2
    assert all(gap >= 5 for gap in gaps[6:])
    assert contact.recent_silence == float("inf")
    assert contact.silence == 3600


async def test_silence_is_counted_from_the_last_answered_heartbeat(
    server: Server, contact: ClusterContact, clock: ManualClock, tmp_path: Path
) -> None:
    await beat_for(15, server, contact, clock, tmp_path)
    last = server.at[-1]
    server.error = Unavailable("gone")
    await beat_for(300, server, contact, clock, tmp_path)
    assert contact.silence == clock.monotonic() - last


async def test_an_answer_of_another_cluster_does_not_count(
    server: Server, contact: ClusterContact, clock: ManualClock, tmp_path: Path
) -> None:
    server.cluster_now = ClusterSpec("c2", 1)
    await beat_for(60, server, contact, clock, tmp_path)
    assert contact.recent_silence == float("inf")
    assert contact.membership == ClusterMembership("c1", 1)


async def test_a_node_that_was_deleted_joins_again(
    server: Server, contact: ClusterContact, clock: ManualClock, tmp_path: Path
) -> None:
    server.error = NotFound("no such node")
    await beat_for(5, server, contact, clock, tmp_path)
    assert server.joins >= 1


async def test_a_heartbeat_is_small(
    server: Server, contact: ClusterContact, clock: ManualClock, tmp_path: Path
) -> None:
    await beat_for(1, server, contact, clock, tmp_path)
    assert len(msgspec.json.encode(server.beats[0])) < 250


# ClusterMembership and contact.


def test_a_node_belongs_to_the_first_cluster_and_refuses_others(tmp_path: Path, clock: ManualClock) -> None:
    contact = ClusterContact(Journal(tmp_path), clock, "boot-1")
    contact.check(HERE)
    again = ClusterContact(Journal(tmp_path), clock, "boot-1")
    again.check(ClusterSpec("c1", 2))
    with pytest.raises(Forbidden, match="belongs to c1"):
        again.check(ClusterSpec("c2", 1))
    assert Journal(tmp_path).membership == ClusterMembership("c1", 2)


def test_the_last_contact_survives_an_agent_restart_but_not_a_reboot(tmp_path: Path, clock: ManualClock) -> None:
    Journal(tmp_path).touch(LastContact("boot-1", clock.monotonic() - 50))
    assert ClusterContact(Journal(tmp_path), clock, "boot-1").silence == 50
    rebooted = ClusterContact(Journal(tmp_path), clock, "boot-2")
    assert (rebooted.silence, rebooted.recent_silence) == (0, float("inf"))


# Usage.


@pytest.mark.req("S2-26")
async def test_the_usage_is_that_of_this_machine(tmp_path: Path) -> None:
    meter = Meter(SystemClock(), tmp_path)
    until = SystemClock().monotonic() + 0.3
    while SystemClock().monotonic() < until:
        sum(range(1000))
    found = meter.read()
    # This very loop used most of a core for as long as it was measured.
    assert 200 < found.cpu_milli <= 1000 * (psutil.cpu_count() or 1) * 1.2
    assert 0 < found.memory_bytes < psutil.virtual_memory().total
    assert 0 < found.disk_bytes < psutil.disk_usage(str(tmp_path)).total


def traffic(sent: int, received: int) -> SimpleNamespace:
    return SimpleNamespace(bytes_sent=sent, bytes_recv=received)


@pytest.mark.req("S2-26")
def test_network_rates_are_per_second_and_leave_loopback_out(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters = {"lo": traffic(9, 9), "eth0": traffic(sent=100, received=1000)}
    monkeypatch.setattr(psutil, "net_io_counters", lambda pernic: counters)
    meter = Meter(clock, tmp_path)
    clock._time += 10
    counters["eth0"] = traffic(sent=300, received=6000)
    counters["lo"] = traffic(10**9, 10**9)
    found = meter.read()
    assert (found.network_in_bytes, found.network_out_bytes) == (500, 20)
    counters["eth0"] = traffic(0, 0)
    clock._time += 10
    assert meter.read().network_in_bytes == 0, "a counter that was reset is no traffic"


async def test_usage_is_added_up_by_instance(clock: ManualClock) -> None:
    engine = FakeEngine(clock)
    for task in ("a", "b"):
        await engine.start(Unit("u1", task, 1), Launch(name="x", options={"cpu": 0.5, "memory": "1Mi"}))
    await engine.start(Unit("stranger", "a", 1), Launch(name="y"))
    meter = InstanceMeter(clock)
    first = await meter.read([engine], {"u1": "default/web-0"}, {"u1"})
    assert first["default/web-0"].warming, "a rate needs two readings"
    await clock.advance(10)
    assert await meter.read([engine], {"u1": "default/web-0"}, {"u1"}) == {
        "default/web-0": InstanceUsage(cpu_milli=1000, memory_bytes=2 << 20)
    }
    await clock.advance(10)
    unready = await meter.read([engine], {"u1": "default/web-0"}, frozenset())
    assert unready["default/web-0"].warming
    engine.down()
    assert await meter.read([engine], {"u1": "default/web-0"}) == {}


async def test_a_heartbeat_does_not_wait_for_an_engine_that_hangs(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mandor.agent.usage.USAGE_SECONDS", 0.05)
    engine = FakeEngine(clock)
    engine.hang("usage")
    async with asyncio.timeout(20):
        assert await InstanceMeter(clock).read([engine], {}) == {}


def test_an_idle_machine_reports_little() -> None:
    assert msgspec.json.encode(NodeUsage()) == b"{}"
