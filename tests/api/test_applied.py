"""Nodes report the revision of services that their data path has applied, and learn that of all nodes."""

from __future__ import annotations

import asyncio

import pytest

from mandor.api.applied import BURST_SECONDS, NAMESPACES_MOST, SETTLE_SECONDS, WAIT_SECONDS, AppliedReport
from mandor.api.heartbeat import LIVE_SECONDS, OTHERS_SECONDS, Heartbeats, Report
from mandor.errors import Forbidden, Invalid
from mandor.lib.clock import ManualClock
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.meta import Key, Meta
from mandor.model.phase import Phase
from mandor.model.service import Service, ServicePort, ServiceSource, ServiceSpec
from mandor.store.base import Filter, Put
from mandor.store.memory import MemoryStore
from mandor.store.remote import RemoteStore
from mandor.testing.store import make_instance, make_node
from tests.api.conftest import Api


def report(namespaces: dict[str, int], *asks: str) -> AppliedReport:
    """A report that asks for the present revisions of namespaces."""
    return AppliedReport(namespaces=namespaces, asks=dict.fromkeys(asks, 0))


@pytest.fixture
async def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture
async def server(store: MemoryStore, clock: ManualClock) -> Heartbeats:
    """A server that has run long enough to know every node."""
    made = Heartbeats(store, clock, "s1", "http://one:1")
    await clock.advance(SETTLE_SECONDS)
    return made


async def test_the_slowest_node_decides(server: Heartbeats) -> None:
    await server.applied("n1", report({"default": 7, "shop": 9}))
    await server.applied("n2", report({"default": 5}))
    answer = await server.applied("n3", report({}, "default", "shop", "unknown"))
    assert answer.complete
    assert answer.lowest == {"default": 5, "shop": 9}


async def test_a_node_that_no_longer_balances_a_namespace_does_not_count(server: Heartbeats) -> None:
    await server.applied("n1", report({"default": 7}))
    await server.applied("n2", report({"default": 5}))
    await server.applied("n2", report({}))
    assert (await server.applied("n3", report({}, "default"))).lowest == {"default": 7}


async def test_a_silent_node_does_not_count(server: Heartbeats, clock: ManualClock) -> None:
    server.beat("n1", Report())
    await server.applied("n1", report({"default": 5}))
    await clock.advance(LIVE_SECONDS + 1)
    await server.tick()
    assert (await server.applied("n2", report({"default": 9}, "default"))).lowest == {"default": 9}


async def test_a_server_that_has_just_started_does_not_claim_to_know_all_nodes(
    store: MemoryStore, clock: ManualClock
) -> None:
    server = Heartbeats(store, clock, "s1", "http://one:1")
    waiting = asyncio.ensure_future(server.applied("n1", report({}, "default")))
    await clock.advance(WAIT_SECONDS + OTHERS_SECONDS)
    assert not (await waiting).complete
    await clock.advance(SETTLE_SECONDS)
    assert (await server.applied("n1", report({}, "default"))).complete


async def test_a_request_is_answered_when_the_last_node_has_applied_the_revision(
    server: Heartbeats, clock: ManualClock
) -> None:
    await server.applied("n1", report({"default": 9}))
    await server.applied("n2", report({"default": 5}))
    waiting = asyncio.ensure_future(server.applied("n1", AppliedReport(asks={"default": 9})))
    await clock.advance(0.5)
    assert not waiting.done()
    await server.applied("n2", report({"default": 9}))
    await clock.advance(BURST_SECONDS)
    assert (await waiting).lowest == {"default": 9}


async def test_a_request_is_answered_after_two_seconds_if_a_node_does_not_report(
    server: Heartbeats, clock: ManualClock
) -> None:
    await server.applied("n2", report({"default": 5}))
    waiting = asyncio.ensure_future(server.applied("n1", AppliedReport(asks={"default": 9})))
    await clock.advance(WAIT_SECONDS + OTHERS_SECONDS)
    assert (await waiting).lowest == {"default": 5}


async def test_a_node_has_one_waiting_request(server: Heartbeats, clock: ManualClock) -> None:
    """A node cannot fill the memory of a server with requests that wait."""
    await server.applied("n2", report({"default": 5}))
    first = asyncio.ensure_future(server.applied("n1", AppliedReport(asks={"default": 9})))
    await clock.advance(0.1)
    second = asyncio.ensure_future(server.applied("n1", AppliedReport(asks={"default": 9})))
    await clock.advance(BURST_SECONDS)
    assert first.done()
    assert not second.done()
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)


async def test_the_first_server_of_a_new_cluster_has_no_nodes_to_wait_for(
    store: MemoryStore, clock: ManualClock
) -> None:
    server = Heartbeats(store, clock, "s1", "http://one:1")
    running = asyncio.ensure_future(server.run())
    await clock.advance(1.0)
    assert (await server.applied("n1", report({}, "default"))).complete
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await store.commit(Put(make_node("n1")))
    restarted = Heartbeats(store, clock, "s1", "http://one:1")
    running = asyncio.ensure_future(restarted.run())
    await clock.advance(1.0)
    waiting = asyncio.ensure_future(restarted.applied("n1", report({}, "default")))
    await clock.advance(WAIT_SECONDS + OTHERS_SECONDS)
    assert not (await waiting).complete
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_nodes_of_other_servers_count(server: Heartbeats, store: MemoryStore, clock: ManualClock) -> None:
    other = Heartbeats(store, clock, "s2", "http://two:1")
    other.beat("n2", Report())
    await other.applied("n2", report({"default": 3}))
    await other.tick()
    assert (await server.applied("n1", report({"default": 9}, "default"))).lowest == {"default": 3}
    await other.applied("n2", report({"default": 9}))
    await other.tick()
    assert (await server.applied("n1", report({"default": 9}, "default"))).lowest == {"default": 9}


async def test_a_node_reports_only_for_itself_and_within_bounds(api: Api) -> None:
    mine = await api.client(await api.token("node", "node:n1"))
    assert await mine.call("POST", "/v1/nodes/n1/applied", dict, body={"namespaces": {"default": 1}}) is not None
    with pytest.raises(Forbidden):
        await mine.call("POST", "/v1/nodes/n2/applied", dict, body={})
    many = {f"n{number}": 1 for number in range(NAMESPACES_MOST + 1)}
    with pytest.raises(Invalid):
        await mine.call("POST", "/v1/nodes/n1/applied", dict, body={"namespaces": many})
    for role in ("admin", "viewer", "join"):
        stranger = await api.client(await api.token(role, f"{role}:x"))
        with pytest.raises(Forbidden):
            await stranger.call("POST", "/v1/nodes/n1/applied", dict, body={})


async def test_a_node_reads_the_services_of_namespaces_with_an_instance_there_only(api: Api) -> None:
    def service(namespace: str) -> Service:
        spec = ServiceSpec(port={"http": ServicePort(port=80)}, to=(ServiceSource(workload="web"),))
        return Service(meta=Meta(name="shop", namespace=namespace), spec=spec)

    await api.store.commit(Put(make_instance("web-0")), Put(service("default")), Put(service("other")))
    placed = await api.store.get(Key("instance", "default", "web-0"))
    assert isinstance(placed, Instance)
    await api.store.commit(Put(placed.bound("n1", at=1.0).changed(status=InstanceStatus(phase=Phase.RUNNING))))
    store = RemoteStore(await api.client(await api.token("node", "node:n1")))
    kinds = frozenset({"instance", "service"})
    found = (await store.list(None, Filter(namespace="default", kinds=kinds))).items
    assert {each.meta.name for each in found} == {"web-0", "shop"}
    for where in (Filter(namespace="other", kinds=kinds), Filter(kinds=kinds)):
        with pytest.raises(Forbidden):
            await store.list(None, where)
    with pytest.raises(Forbidden):
        await store.list(None, Filter(namespace="default", kinds=frozenset({"service", "secret"})))
