"""Nodes join by token, keep their name by credential, beat, and write only what is theirs."""

import asyncio

import msgspec
import pytest

from mandor.api.heartbeat import LEASE_SECONDS, LIVE_SECONDS, Heartbeats, Report
from mandor.errors import Conflict, Forbidden, Invalid, NotFound, Unauthenticated, Unavailable
from mandor.lib.clock import ManualClock, SystemClock
from mandor.model.instance import Instance, InstanceStatus, PortStatus
from mandor.model.meta import Key, Meta
from mandor.model.node import Node, NodePhase, NodeStatus
from mandor.model.phase import Phase
from mandor.model.record import Event, EventSpec, HeartbeatSummary, Lease
from mandor.model.resources import Resources
from mandor.model.usage import NodeUsage
from mandor.store.base import Delete, Filter, Put, Write
from mandor.store.memory import MemoryStore
from mandor.store.remote import RemoteStore
from mandor.testing.store import make_instance, make_node, make_workload
from tests.api.conftest import Api, StartApi


async def node_of(api: Api, name: str) -> Node:
    found = await api.store.get(Key("node", "", name))
    assert isinstance(found, Node)
    return found


@pytest.mark.req("S0-22")
async def test_a_join_token_makes_a_node_and_its_credential(api: Api) -> None:
    joiner = await api.client(await api.token("join", "join:first"))
    joined = await joiner.call(
        "POST", "/v1/nodes/n1/join", dict, body={"address": "10.0.0.1", "pool": "gpu", "labels": {"zone": "a"}}
    )
    assert joined["cluster"] == {"id": "c1"}
    node = await node_of(api, "n1")
    assert (node.status.address, node.spec.pool, node.labels) == ("10.0.0.1", "gpu", {"zone": "a"})
    assert node.status.phase is NodePhase.UNKNOWN
    mine = await api.client(joined["credential"])
    assert (await mine.call("GET", "/v1/nodes/n1", dict))["meta"]["name"] == "n1"


async def test_a_join_token_does_nothing_else(api: Api) -> None:
    joiner = await api.client(await api.token("join", "join:first"))
    await joiner.call("POST", "/v1/nodes/n1/join", dict, body={})
    for method, path in (
        ("GET", "/v1/nodes"),
        ("GET", "/v1/nodes/n1"),
        ("GET", "/v1/snapshot"),
        ("GET", "/v1/watch"),
        ("GET", "/v1/usage"),
        ("GET", "/v1/tokens"),
    ):
        with pytest.raises(Forbidden):
            await joiner.request(method, path)
    with pytest.raises(Forbidden):
        await joiner.call("POST", "/v1/nodes/n1/heartbeat", dict, body={})


@pytest.mark.req("S0-21")
async def test_the_address_may_change_and_the_name_stays(api: Api) -> None:
    joiner = await api.client(await api.token("join", "join:first"))
    joined = await joiner.call("POST", "/v1/nodes/n1/join", dict, body={"address": "10.0.0.1"})
    uid = (await node_of(api, "n1")).meta.uid
    mine = await api.client(joined["credential"])
    again = await mine.call("POST", "/v1/nodes/n1/join", dict, body={"address": "10.9.9.9"})
    assert again["credential"] == joined["credential"]
    node = await node_of(api, "n1")
    assert (node.meta.uid, node.status.address) == (uid, "10.9.9.9")


@pytest.mark.req("S0-21")
async def test_a_second_agent_of_a_known_name_is_refused_without_the_credential(api: Api) -> None:
    joiner = await api.client(await api.token("join", "join:first"))
    await joiner.call("POST", "/v1/nodes/n1/join", dict, body={"address": "10.0.0.1"})
    with pytest.raises(Conflict) as caught:
        await joiner.call("POST", "/v1/nodes/n1/join", dict, body={"address": "10.6.6.6"})
    assert caught.value.hint
    assert (await node_of(api, "n1")).status.address == "10.0.0.1"
    other = await joiner.call("POST", "/v1/nodes/n2/join", dict, body={})
    with pytest.raises(Forbidden):
        await (await api.client(other["credential"])).call("POST", "/v1/nodes/n1/join", dict, body={})


async def test_an_agent_whose_answer_was_lost_joins_again_with_the_secret_it_chose(api: Api) -> None:
    joiner = await api.client(await api.token("join", "join:first"))
    mine = {"secret": "a1" * 32}
    first = await joiner.call("POST", "/v1/nodes/n1/join", dict, body=mine)
    again = await joiner.call("POST", "/v1/nodes/n1/join", dict, body=mine)
    assert again["credential"] == first["credential"]
    assert (await (await api.client(again["credential"])).call("GET", "/v1/nodes/n1", dict))["meta"]["name"] == "n1"
    with pytest.raises(Conflict):
        await joiner.call("POST", "/v1/nodes/n1/join", dict, body={"secret": "b2" * 32})
    with pytest.raises(Invalid):
        await joiner.call("POST", "/v1/nodes/n2/join", dict, body={"secret": "short"})


async def test_of_agents_that_join_under_one_name_at_once_one_wins(api: Api) -> None:
    joiner = await api.client(await api.token("join", "join:first"))
    results = await asyncio.gather(
        *[joiner.call("POST", "/v1/nodes/n1/join", dict, body={}) for _ in range(10)], return_exceptions=True
    )
    won = [each for each in results if isinstance(each, dict)]
    assert len(won) == 1
    assert all(isinstance(each, Conflict | dict) for each in results), results
    await (await api.client(won[0]["credential"])).call("GET", "/v1/nodes/n1", dict)


async def test_a_node_name_that_is_none_is_refused(dev: Api) -> None:
    client = await dev.client()
    for name in ("x" * 64, "Upper", "-n", "n%20"):
        with pytest.raises(Invalid):
            await client.call("POST", f"/v1/nodes/{name}/join", dict, body={})
    with pytest.raises(Invalid):
        await client.call("POST", "/v1/nodes/n1/join", dict, body={"labels": {"": "x"}})
    with pytest.raises(Invalid):
        await client.call("POST", "/v1/nodes/n1/join", dict, body={"pool": "No Pool"})
    assert list((await dev.store.list("node")).items) == []


async def test_joining_is_audited(api: Api) -> None:
    joiner = await api.client(await api.token("join", "join:first"))
    await joiner.call("POST", "/v1/nodes/n1/join", dict, body={})
    admin = await api.client(await api.token("admin", "user:admin"))
    (record,) = (await admin.call("GET", "/v1/audits", dict))["items"]
    assert (record["spec"]["identity"], record["spec"]["verb"], record["spec"]["about"]) == (
        "join:first",
        "join",
        "node n1",
    )


# Heartbeats.


@pytest.mark.req("S0-23", "S2-26")
async def test_a_heartbeat_reports_usage_and_learns_the_cluster(api: Api) -> None:
    joiner = await api.client(await api.token("join", "join:first"))
    mine = await api.client((await joiner.call("POST", "/v1/nodes/n1/join", dict, body={}))["credential"])
    usage = {"cpu_milli": 1500, "memory_bytes": 2**30, "disk_bytes": 5, "network_in_bytes": 6, "network_out_bytes": 7}
    body = {"cluster": "c1", "usage": usage, "instances": {"default/web-0": {"cpu_milli": 3}}, "from_the_future": 1}
    assert await mine.call("POST", "/v1/nodes/n1/heartbeat", dict, body=body) == {"id": "c1"}
    viewer = await api.client(await api.token("viewer", "user:ani"))
    told = await viewer.call("GET", "/v1/nodes/n1/usage", dict)
    assert told["usage"] == usage
    assert told["instances"] == {"default/web-0": {"cpu_milli": 3}}
    assert told["age_seconds"] >= 0
    assert [each["node"] for each in (await viewer.call("GET", "/v1/usage", dict))["items"]] == ["n1"]
    assert await mine.call("GET", "/v1/nodes/n1/usage", dict) is not None


async def test_heartbeats_are_not_store_writes(dev: Api) -> None:
    client = await dev.client()
    joined = await client.call("POST", "/v1/nodes/n1/join", dict, body={})
    mine = await dev.client(joined["credential"])
    before = (await dev.store.list(None)).revision
    for _ in range(20):
        await mine.call("POST", "/v1/nodes/n1/heartbeat", dict, body={"cluster": "c1"})
    assert (await dev.store.list(None)).revision == before


async def test_a_heartbeat_for_another_node_or_cluster_is_refused(api: Api) -> None:
    joiner = await api.client(await api.token("join", "join:first"))
    first = await joiner.call("POST", "/v1/nodes/n1/join", dict, body={})
    await joiner.call("POST", "/v1/nodes/n2/join", dict, body={})
    mine = await api.client(first["credential"])
    with pytest.raises(Forbidden):
        await mine.call("POST", "/v1/nodes/n2/heartbeat", dict, body={"cluster": "c1"})
    with pytest.raises(Conflict) as caught:
        await mine.call("POST", "/v1/nodes/n1/heartbeat", dict, body={"cluster": "another"})
    assert caught.value.facts["cluster"] == "c1"
    with pytest.raises(Unauthenticated):
        await (await api.client()).call("POST", "/v1/nodes/n1/heartbeat", dict, body={"cluster": "c1"})
    assert api.parts.heartbeats.all_usage() == []


async def test_a_heartbeat_of_a_deleted_node_is_refused(dev: Api) -> None:
    client = await dev.client()
    await client.call("POST", "/v1/nodes/n1/join", dict, body={})
    node = await node_of(dev, "n1")
    await dev.store.commit(Delete(node.key, node.meta.version))
    with pytest.raises(NotFound):
        await client.call("POST", "/v1/nodes/n1/heartbeat", dict, body={"cluster": "c1"})


class TestHeartbeats:
    """The summary that the store gets, on a clock that is turned by hand."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    async def heard(self, store: MemoryStore) -> tuple[str, ...]:
        found = await store.get(Key("hearing", "", "s1"))
        return found.spec.nodes if isinstance(found, HeartbeatSummary) else ()

    async def test_the_heartbeat_summary_lists_current_nodes_and_drops_silent_ones(self, clock: ManualClock) -> None:
        store = MemoryStore(clock=clock)
        heartbeats = Heartbeats(store, clock, "s1", "http://s1")
        running = asyncio.create_task(heartbeats.run())
        for node in ("n2", "n1"):
            heartbeats.beat(node, Report(usage=NodeUsage(cpu_milli=5)))
        await clock.advance(1.5)
        assert await self.heard(store) == ("n1", "n2")
        await clock.advance(LIVE_SECONDS - 2)
        heartbeats.beat("n1", Report())
        await clock.advance(3)
        assert await self.heard(store) == ("n1",)
        assert heartbeats.usage("n2") is None
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    async def test_the_lease_changes_often_enough_for_observers(self, clock: ManualClock) -> None:
        store = MemoryStore(clock=clock)
        running = asyncio.create_task(Heartbeats(store, clock, "s1", "http://s1").run())
        seen = set()
        for _ in range(4):
            await clock.advance(LEASE_SECONDS / 2)
            lease = await store.get(Key("lease", "", "server-s1"))
            assert isinstance(lease, Lease)
            seen.add(lease.spec.renewals)
        assert len(seen) == 4
        assert isinstance(lease, Lease)
        assert (lease.spec.address, lease.spec.seconds) == ("http://s1", LEASE_SECONDS)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    async def test_an_unchanged_hearing_is_not_written_again(self, clock: ManualClock) -> None:
        store = MemoryStore(clock=clock)
        heartbeats = Heartbeats(store, clock, "s1", "http://s1")
        heartbeats.beat("n1", Report())
        await heartbeats.tick()
        first = await store.get(Key("hearing", "", "s1"))
        for _ in range(5):
            heartbeats.beat("n1", Report())
            await clock.advance(1)
            await heartbeats.tick()
        assert await store.get(Key("hearing", "", "s1")) == first

    async def test_a_hearing_that_could_not_be_stored_is_stored_later(self, clock: ManualClock) -> None:
        class Ill(MemoryStore):
            ill = False

            async def commit(self, *writes: Write) -> int:
                if self.ill:
                    raise Unavailable("the disk is full")
                return await super().commit(*writes)

        store = Ill(clock=clock)
        heartbeats = Heartbeats(store, clock, "s1", "http://s1")
        running = asyncio.create_task(heartbeats.run())
        await clock.advance(2)
        store.ill = True
        heartbeats.beat("n1", Report())
        await clock.advance(3)
        assert await self.heard(store) == ()
        store.ill = False
        await clock.advance(3)
        assert await self.heard(store) == ("n1",)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    async def test_a_stopped_server_takes_its_lease_and_hearing_back(self, clock: ManualClock) -> None:
        store = MemoryStore(clock=clock)
        running = asyncio.create_task(Heartbeats(store, clock, "s1", "http://s1").run())
        await clock.advance(3)
        assert len((await store.list("lease")).items) == 1
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert list((await store.list("lease")).items) == []
        assert list((await store.list("hearing")).items) == []

    async def test_a_server_that_comes_back_under_its_id_goes_on(self, clock: ManualClock) -> None:
        store = MemoryStore(clock=clock)
        for _ in range(2):
            heartbeats = Heartbeats(store, clock, "s1", "http://s1")
            heartbeats.beat("n1", Report())
            for _ in range(5):
                await heartbeats.tick()
                await clock.advance(1)
        lease = await store.get(Key("lease", "", "server-s1"))
        assert isinstance(lease, Lease)
        assert lease.spec.renewals > 3
        assert await self.heard(store) == ("n1",)

    async def test_a_foreign_write_to_the_lease_does_not_end_it(self, clock: ManualClock) -> None:
        store = MemoryStore(clock=clock)
        running = asyncio.create_task(Heartbeats(store, clock, "s1", "http://s1").run())
        await clock.advance(3)
        lease = await store.get(Key("lease", "", "server-s1"))
        assert isinstance(lease, Lease)
        await store.commit(Delete(lease.key, lease.meta.version))
        await clock.advance(10)
        assert isinstance(await store.get(Key("lease", "", "server-s1")), Lease)
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


# One writer per field.


async def remote(api: Api, role: str, identity: str) -> RemoteStore:
    return RemoteStore(await api.client(await api.token(role, identity)))  # type: ignore[arg-type]


async def instance_of(api: Api, name: str) -> Instance:
    found = await api.store.get(Key("instance", "default", name))
    assert isinstance(found, Instance)
    return found


async def test_a_node_writes_its_status_but_not_what_the_controller_shows_of_it(api: Api) -> None:
    await api.store.commit(Put(make_node("n1")), Put(make_node("n2")))
    store = await remote(api, "node", "node:n1")
    node = await node_of(api, "n1")
    status = NodeStatus(phase=node.status.phase, capacity=Resources(4000, 2**33), address="10.0.0.1")
    await store.commit(Put(node.changed(status=status)))
    node = await node_of(api, "n1")
    assert node.status.capacity.cpu_milli == 4000
    wrong = [
        node.changed(status=msgspec.structs.replace(status, phase=NodePhase.READY)),
        node.changed(status=msgspec.structs.replace(status, reason="fine")),
        node.changed(status=msgspec.structs.replace(status, since=5.0)),
        node.changed(spec=msgspec.structs.replace(node.spec, cordoned=True)),
        node.changed(meta=msgspec.structs.replace(node.meta, labels={"zone": "b"})),
        node.changed(meta=msgspec.structs.replace(node.meta, uid="")),
        (await node_of(api, "n2")).changed(status=status),
    ]
    for each in wrong:
        with pytest.raises(Forbidden):
            await store.commit(Put(each))
    with pytest.raises(Forbidden):
        await store.commit(Delete(node.key, node.meta.version))


@pytest.mark.req("S0-31")
async def test_a_node_reports_only_on_instances_it_was_given(api: Api) -> None:
    """An order for one node is refused to another; the same node may say the same twice."""
    await api.store.commit(
        Put(make_instance("web-0", node="n1")), Put(make_instance("web-1", node="n2")), Put(make_instance("web-2"))
    )
    for name, node in (("web-0", "n1"), ("web-1", "n2")):
        await api.store.commit(Put((await instance_of(api, name)).bound(node, at=1.0)))
    store = await remote(api, "node", "node:n1")
    starting = InstanceStatus(phase=Phase.STARTING, since=2.0)
    for _ in range(2):
        await store.commit(Put((await instance_of(api, "web-0")).changed(status=starting)))
    mine = await instance_of(api, "web-0")
    assert mine.status == starting
    for each in (
        (await instance_of(api, "web-1")).changed(status=starting),
        (await instance_of(api, "web-2")).changed(status=starting),
        mine.changed(spec=msgspec.structs.replace(mine.spec, node="n2")),
        mine.stopping("because I can"),
        mine.changed(spec=msgspec.structs.replace(mine.spec, release="other.1")),
    ):
        with pytest.raises(Forbidden):
            await store.commit(Put(each))
    with pytest.raises(Conflict, match="does not exist"):
        await store.commit(Put((await instance_of(api, "web-2")).bound("n1", at=3.0)))
    with pytest.raises(Forbidden):
        await store.commit(Delete(mine.key, mine.meta.version))
    with pytest.raises(Forbidden):
        await store.commit(Put(make_instance("web-9", node="n1")))
    with pytest.raises(Forbidden):
        await store.commit(Put(make_workload("mine")))


async def test_a_phase_only_moves_as_the_table_shows(api: Api) -> None:
    await api.store.commit(Put(make_instance("web-0", node="n1")))
    await api.store.commit(Put((await instance_of(api, "web-0")).bound("n1", at=1.0)))
    store = await remote(api, "node", "node:n1")
    done = InstanceStatus(phase=Phase.FAILED)
    await store.commit(Put((await instance_of(api, "web-0")).changed(status=done)))
    running = InstanceStatus(phase=Phase.RUNNING)
    with pytest.raises(Invalid):
        await store.commit(Put((await instance_of(api, "web-0")).changed(status=running)))
    assert (await instance_of(api, "web-0")).phase is Phase.FAILED


async def test_a_node_reports_events_only_of_itself_and_its_instances(api: Api) -> None:
    await api.store.commit(Put(make_instance("web-0", node="n1")), Put(make_instance("web-1", node="n2")))
    store = await remote(api, "node", "node:n1")

    def event(name: str, about: str, node: str = "n1") -> Put:
        spec = EventSpec(about=about, reason="Started", message="it runs", source="agent", node=node)
        return Put(Event(meta=Meta(name=name, namespace="default"), spec=spec))

    await store.commit(event("e1", "instance default/web-0"))
    await store.commit(event("e2", "node n1"))
    await store.commit(event("e3", "instance default/gone-0"))
    for put in (
        event("e4", "instance default/web-1"),
        event("e5", "node n2"),
        event("e6", "workload default/web"),
        event("e7", "instance default/web-0", node="n2"),
    ):
        with pytest.raises(Forbidden):
            await store.commit(put)
    assert [item.meta.name for item in (await api.store.list("event")).items] == ["e1", "e2", "e3"]


async def test_the_scheduler_gives_a_node_once_and_writes_no_template(api: Api) -> None:
    await api.store.commit(Put(make_instance("web-0")), Put(make_workload("web")), Put(make_node("n1")))
    store = await remote(api, "component", "component:scheduler")
    await store.commit(Put((await instance_of(api, "web-0")).bound("n1", at=1.0)))
    bound = await instance_of(api, "web-0")
    for each in (
        bound.changed(spec=msgspec.structs.replace(bound.spec, node="n2")),
        bound.changed(spec=msgspec.structs.replace(bound.spec, release="x.2")),
    ):
        with pytest.raises(Forbidden):
            await store.commit(Put(each))
    workload = await api.store.get(Key("workload", "default", "web"))
    assert workload is not None
    for delete in (Delete(workload.key, workload.meta.version), Delete(bound.key, bound.meta.version)):
        with pytest.raises(Forbidden):
            await store.commit(delete)
    with pytest.raises(Forbidden):
        await store.commit(Put(make_instance("web-1")))


async def test_the_controllers_make_and_stop_instances_but_place_none(api: Api) -> None:
    await api.store.commit(Put(make_node("n1")), Put(make_workload("web")))
    store = await remote(api, "component", "component:controllers")
    await store.commit(Put(make_instance("web-0")))
    made = await instance_of(api, "web-0")
    with pytest.raises(Forbidden):
        await store.commit(Put(made.bound("n1", at=1.0)))
    await store.commit(Put(made.stopping("scaled down")))
    node = await node_of(api, "n1")
    await store.commit(Put(node.changed(status=msgspec.structs.replace(node.status, phase=NodePhase.READY))))
    node = await node_of(api, "n1")
    status = msgspec.structs.replace(node.status, capacity=Resources(1, 1))
    with pytest.raises(Forbidden):
        await store.commit(Put(node.changed(status=status)))
    workload = await api.store.get(Key("workload", "default", "web"))
    assert workload is not None
    with pytest.raises(Forbidden):
        await store.commit(Put(workload.changed(spec=msgspec.structs.replace(workload.spec, priority=9))))


async def test_a_commit_with_one_forbidden_write_writes_nothing(api: Api) -> None:
    store = await remote(api, "component", "component:controllers")
    with pytest.raises(Forbidden):
        await store.commit(Put(make_instance("web-0")), Put(make_workload("web")))
    assert list((await api.store.list("instance")).items) == []


async def test_each_of_several_servers_reports_its_nodes(start_api: StartApi) -> None:
    store = MemoryStore()
    first = await start_api(store=store, tokens_required=False)
    other = Heartbeats(store, SystemClock(), "s2", "http://other:1")
    client = await first.client()
    await client.call("POST", "/v1/nodes/n1/join", dict, body={})
    other.beat("n1", Report())
    await other.tick()
    with pytest.raises(NotFound) as caught:
        await client.call("GET", "/v1/nodes/n1/usage", dict)
    assert caught.value.facts["servers"] == ["http://other:1"]
    assert (await client.call("GET", "/v1/usage", dict)) == {"items": [], "servers": ["http://other:1"]}


async def test_an_agent_that_chose_its_secret_may_join_again_when_the_answer_was_lost(api: Api) -> None:
    joiner = await api.client(await api.token("join", "join:first"))
    mine, other = "a1" * 32, "b2" * 32
    first = await joiner.call("POST", "/v1/nodes/n1/join", dict, body={"secret": mine})
    again = await joiner.call("POST", "/v1/nodes/n1/join", dict, body={"secret": mine})
    assert first == again
    with pytest.raises(Conflict):
        await joiner.call("POST", "/v1/nodes/n1/join", dict, body={"secret": other})
    for short in ("", "x"):
        with pytest.raises((Conflict, Invalid)):
            await joiner.call("POST", "/v1/nodes/n1/join", dict, body={"secret": short})
    await (await api.client(first["credential"])).call("GET", "/v1/nodes/n1", dict)


def serving(instance: Instance, node: str, *ports: PortStatus) -> Instance:
    status = InstanceStatus(phase=Phase.RUNNING, ready=True, ports=ports, host="10.0.0.9")
    return instance.changed(spec=msgspec.structs.replace(instance.spec, node=node), status=status)


@pytest.mark.req("S2-6", "S0-31")
async def test_a_node_sees_reachable_instances_of_its_namespaces_only(api: Api) -> None:
    http = PortStatus(name="http", port=80, host=8080)
    other = make_instance("far-0")
    elsewhere = other.changed(meta=msgspec.structs.replace(other.meta, namespace="other"))
    await api.store.commit(
        Put(serving(make_instance("web-0"), "n1")),
        Put(serving(make_instance("web-1"), "n2", http)),
        Put(serving(make_instance("web-2"), "n2")),
        Put(serving(elsewhere, "n2", http)),
    )
    store = await remote(api, "node", "node:n1")

    async def seen(where: Filter) -> set[str]:
        return {each.meta.name for each in (await store.list("instance", where)).items}

    assert await seen(Filter(namespace="default")) == {"web-0", "web-1"}
    assert await seen(Filter(namespace="other")) == set()
    assert await seen(Filter(node="n1")) == {"web-0"}
    assert await seen(Filter()) == {"web-0"}
    with pytest.raises(Forbidden):
        await seen(Filter(node="n2"))
    assert await store.get(Key("instance", "default", "web-1")) is None, "answered as one that is not there"


async def test_a_watch_of_neighbours_ends_with_the_last_instance_there(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mandor.api.watch.CHECK_SECONDS", -1.0)
    await api.store.commit(Put(serving(make_instance("web-0"), "n1")))
    store = await remote(api, "node", "node:n1")
    mine = await instance_of(api, "web-0")
    stream = store.watch("instance", since=mine.meta.version, where=Filter(namespace="default"))
    await anext(stream)
    await api.store.commit(Delete(mine.key, mine.meta.version))
    with pytest.raises(Forbidden, match="no longer has an instance"):
        await anext(stream)
