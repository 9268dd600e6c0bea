"""Requests under load: heartbeats first, a fair share per identity, and refusals with a retry time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import aiohttp
import pytest

from mandor.api.http.fair_queue import LIMITS, Lane
from mandor.api.parts import NODES_EACH_PASS, NODES_WHILE_PLACING, PATIENCE_SECONDS
from mandor.errors import TooMany
from mandor.store.base import Put, Write
from mandor.store.memory import MemoryStore
from mandor.testing.store import make_node
from tests.api.conftest import Api, StartApi

FLOOD = 300
NODES = 12
PEOPLE = LIMITS[Lane.PEOPLE]
SPEC = {"groups": {"main": {"tasks": {"main": {"command": ["sleep", "1"]}}}}}


class SlowStore(MemoryStore):
    """A store whose commits of workloads wait for `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def commit(self, *writes: Write) -> int:
        if any(isinstance(each, Put) and each.value.kind == "workload" for each in writes):
            await self.go.wait()
        return await super().commit(*writes)


@pytest.fixture
async def slow() -> AsyncIterator[SlowStore]:
    async with SlowStore() as store:
        yield store


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not what():
            await asyncio.sleep(0.01)


async def people(api: Api, identity: str, *, limit: int = 0) -> aiohttp.ClientSession:
    session = await api.session(await api.token("operator", identity))
    connector = session.connector
    assert isinstance(connector, aiohttp.TCPConnector)
    connector._limit = limit  # the client itself does not limit its connections
    return session


def flood(session: aiohttp.ClientSession, count: int) -> list[asyncio.Task[int]]:
    async def put(number: int) -> int:
        async with session.put(f"/v1/workloads/w{number}", json={"spec": SPEC}) as answer:
            return answer.status

    return [asyncio.create_task(put(number)) for number in range(count)]


async def beats(api: Api) -> list[Callable[[], Awaitable[int]]]:
    """Return a function per node that sends a heartbeat."""

    def beat(session: aiohttp.ClientSession, name: str) -> Callable[[], Awaitable[int]]:
        async def send() -> int:
            async with session.post(f"/v1/nodes/{name}/heartbeat", json={"cluster": "c1"}) as answer:
                return answer.status

        return send

    found = []
    for number in range(NODES):
        name = f"n{number}"
        await api.store.commit(Put(make_node(name)))
        found.append(beat(await api.session(await api.token("node", f"node:{name}")), name))
    return found


@pytest.mark.req("S0-19")
async def test_every_heartbeat_is_answered_while_the_requests_of_a_noisy_client_wait(
    slow: SlowStore, start_api: StartApi
) -> None:
    api = await start_api(store=slow)
    nodes, noisy = await beats(api), await people(api, "user:noisy")
    queue = api.parts.request_admission._queue
    sent = flood(noisy, FLOOD)
    await until(lambda: queue.waiting(Lane.PEOPLE) == FLOOD - PEOPLE.slots_each)
    for _ in range(3):
        assert await asyncio.gather(*(beat() for beat in nodes)) == [200] * NODES
    assert not any(each.done() for each in sent), "all of that while the flood was waiting"
    assert len(api.parts.heartbeats.all_usage()) == NODES
    # Another user does not wait behind them, either.
    quiet = await people(api, "user:quiet")
    async with quiet.get("/v1/nodes/n0") as answer:
        assert answer.status == 200
    text = b"\n".join(
        line.encode() for each in api.parts.request_admission.families() for line in each.lines()
    ).decode()
    assert f'mandor_api_requests_waiting{{lane="people"}} {FLOOD - PEOPLE.slots_each}' in text
    slow.go.set()
    assert await asyncio.gather(*sent) == [200] * FLOOD
    assert queue.waiting(Lane.PEOPLE) == queue.admitted(Lane.PEOPLE) == 0


async def test_an_identity_with_too_many_waiting_requests_is_refused_with_a_retry_time(
    slow: SlowStore, start_api: StartApi
) -> None:
    api = await start_api(store=slow)
    lane_queue = api.parts.request_admission._queue._queues[Lane.PEOPLE]
    lane_queue.limits = replace(lane_queue.limits, slots=2, slots_each=2, waiting_each=3)
    noisy = await people(api, "user:noisy")
    sent = flood(noisy, 5)
    await until(lambda: lane_queue.waiting == 3)
    async with noisy.get("/v1/nodes/n1") as answer:
        problem = await answer.json()
        assert (answer.status, answer.headers["retry-after"], problem["code"]) == (429, "1", "too_many")
        assert problem["hint"]
    # mandor.client retries by itself, and succeeds once the queue has room.
    client = await api.client(await api.token("operator", "user:noisy"))
    later = asyncio.create_task(client.call("GET", "/v1", dict))
    refused = api.parts.request_admission._refused
    await until(lambda: refused["people", "operator", "queue"] == 2)
    slow.go.set()
    assert "version" in await later
    assert await asyncio.gather(*sent) == [200] * 5


async def test_a_request_that_waited_too_long_is_refused_and_leaves_the_queue(
    slow: SlowStore, start_api: StartApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mandor.api.http.request_admission.WAIT_SECONDS_MOST", 0.05)
    api = await start_api(store=slow)
    queue = api.parts.request_admission._queue
    noisy = await people(api, "user:noisy")
    statuses: list[int] = []
    sent = flood(noisy, PEOPLE.slots_each + 5)
    for each in sent:
        each.add_done_callback(lambda done: statuses.append(done.result()))
    await until(lambda: len(statuses) == 5)
    assert statuses == [429] * 5
    assert queue.waiting(Lane.PEOPLE) == 0
    slow.go.set()
    assert sorted(await asyncio.gather(*sent)) == [200] * PEOPLE.slots_each + [429] * 5


async def test_requests_of_nodes_are_slowed_down_while_instances_are_placed_until_one_has_waited_long(
    slow: SlowStore, start_api: StartApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = await start_api(store=slow)
    object.__setattr__(api.parts, "placing", lambda: True)
    admission = api.parts.request_admission
    each_pass = api.parts.of_nodes._each_pass
    assert callable(each_pass)
    assert admission.longest_wait_seconds(Lane.PEOPLE) == 0.0
    sent = flood(await people(api, "user:noisy"), PEOPLE.slots_each + 1)
    await until(lambda: admission.longest_wait_seconds(Lane.PEOPLE) > 0)
    assert each_pass() == NODES_WHILE_PLACING
    assert admission.longest_wait_seconds(Lane.AGENT, Lane.REPORT) == 0.0  # requests of people do not count
    monkeypatch.setattr(admission, "longest_wait_seconds", lambda *lanes: PATIENCE_SECONDS)
    assert each_pass() == NODES_EACH_PASS
    monkeypatch.undo()
    slow.go.set()
    assert await asyncio.gather(*sent) == [200] * (PEOPLE.slots_each + 1)
    assert admission.longest_wait_seconds(Lane.PEOPLE) == 0.0


async def test_a_client_that_disconnects_while_waiting_frees_its_slot(slow: SlowStore, start_api: StartApi) -> None:
    api = await start_api(store=slow)
    queue = api.parts.request_admission._queue
    noisy = await people(api, "user:noisy")
    sent = flood(noisy, PEOPLE.slots_each + 20)
    await until(lambda: queue.waiting(Lane.PEOPLE) == 20)
    for each in sent:
        each.cancel()
    await asyncio.gather(*sent, return_exceptions=True)
    slow.go.set()
    await until(lambda: queue.waiting(Lane.PEOPLE) == queue.admitted(Lane.PEOPLE) == 0)


async def test_a_node_that_sends_too_many_heartbeats_is_limited_and_other_nodes_are_not(start_api: StartApi) -> None:
    api = await start_api(beats_per_second=0.001, beats_burst=3)
    first, second, *_ = await beats(api)
    assert [await first() for _ in range(4)] == [200, 200, 200, 429]
    assert await second() == 200


async def test_an_identity_that_sends_too_many_requests_is_limited_and_other_identities_are_not(
    start_api: StartApi,
) -> None:
    api = await start_api(requests_per_second=0.001, requests_burst=2)
    one, other = await people(api, "user:one"), await people(api, "user:other")

    async def ask(session: aiohttp.ClientSession) -> int:
        async with session.get("/v1") as answer:
            return answer.status

    assert [await ask(one) for _ in range(3)] == [200, 200, 429]
    assert await ask(other) == 200


async def test_unauthenticated_requests_are_limited_by_address_and_authenticated_ones_are_not(
    start_api: StartApi,
) -> None:
    api = await start_api(strangers_per_second=0.001, strangers_burst=3)
    stranger = await api.session("mdr_nobody_knows")

    async def ask(session: aiohttp.ClientSession, path: str) -> int:
        async with session.get(path) as answer:
            return answer.status

    assert [await ask(stranger, "/v1") for _ in range(4)] == [401, 401, 401, 429]
    assert await ask(stranger, "/healthz") == 429
    assert await ask(await people(api, "user:known"), "/v1") == 200


async def test_one_identity_cannot_open_all_streams(start_api: StartApi) -> None:
    api = await start_api(watches_each=2)
    one = await api.client(await api.token("viewer", "user:one"))
    other = await api.client(await api.token("viewer", "user:other"))
    async with one.stream("/v1/watch", query={"kind": "node"}), one.stream("/v1/watch", query={"kind": "node"}):
        with pytest.raises(TooMany, match="user:one has 2 streams open"):
            async with one.stream("/v1/watch", query={"kind": "node"}):
                pass
        async with other.stream("/v1/watch", query={"kind": "node"}) as lines:
            assert b"revision" in await lines.readline()
    await until(lambda: len(api.parts.streams) == 0)
    async with one.stream("/v1/watch", query={"kind": "node"}) as lines:
        assert b"revision" in await lines.readline()


async def test_status_reports_of_agents_have_a_lane_of_their_own(start_api: StartApi) -> None:
    api = await start_api()
    admission = api.parts.request_admission
    admission.set_slots(Lane.REPORT, 1)
    await api.store.commit(Put(make_node("n1")))
    node = await api.session(await api.token("node", "node:n1"))
    lanes_used: list[int] = []
    plain = admission._queue.enqueue

    def spy(lane: Lane, identity: str, **more: int) -> object:
        lanes_used.append(lane)
        return plain(lane, identity, **more)

    admission._queue.enqueue = spy  # type: ignore[method-assign, assignment]
    async with node.post("/v1/commit", json={"writes": []}) as answer:
        assert answer.status in {200, 400}
    async with node.get("/v1/nodes/n1") as answer:
        assert answer.status == 200
    async with node.post("/v1/nodes/n1/heartbeat", json={}) as answer:
        assert answer.status == 200
    # A heartbeat that arrives in one piece is answered without a ticket.
    assert lanes_used[:2] == [Lane.REPORT, Lane.AGENT]
    assert set(lanes_used[2:]) <= {Lane.HEARTBEAT}
