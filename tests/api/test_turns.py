"""Under load: heartbeats go first, identities share what there is, and who is turned away is told when to come back."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import aiohttp
import pytest

from mandor.api.parts import NODES_EACH_PASS, NODES_WHILE_PLACING, PATIENCE_SECONDS
from mandor.api.turn_plan import LIMITS, Lane
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
    """Writes of workloads take until they are let go."""

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
    connector._limit = limit  # a noisy one does not wait for itself
    return session


def flood(session: aiohttp.ClientSession, count: int) -> list[asyncio.Task[int]]:
    async def put(number: int) -> int:
        async with session.put(f"/v1/workloads/w{number}", json={"spec": SPEC}) as answer:
            return answer.status

    return [asyncio.create_task(put(number)) for number in range(count)]


async def beats(api: Api) -> list[Callable[[], Awaitable[int]]]:
    """What each of some nodes calls to say that it lives."""

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
    turns = api.parts.turnstile._turns
    sent = flood(noisy, FLOOD)
    await until(lambda: turns.waiting(Lane.PEOPLE) == FLOOD - PEOPLE.seats_each)
    for _ in range(3):
        assert await asyncio.gather(*(beat() for beat in nodes)) == [200] * NODES
    assert not any(each.done() for each in sent), "all of that while the flood was waiting"
    assert len(api.parts.heartbeats.all_usage()) == NODES
    # Somebody else does not wait behind them, either.
    quiet = await people(api, "user:quiet")
    async with quiet.get("/v1/nodes/n0") as answer:
        assert answer.status == 200
    text = b"\n".join(line.encode() for each in api.parts.turnstile.families() for line in each.lines()).decode()
    assert f'mandor_api_requests_waiting{{lane="people"}} {FLOOD - PEOPLE.seats_each}' in text
    slow.go.set()
    assert await asyncio.gather(*sent) == [200] * FLOOD
    assert turns.waiting(Lane.PEOPLE) == turns.seated(Lane.PEOPLE) == 0


async def test_who_has_too_many_requests_waiting_is_refused_with_a_time_to_come_again(
    slow: SlowStore, start_api: StartApi
) -> None:
    api = await start_api(store=slow)
    line = api.parts.turnstile._turns._lines[Lane.PEOPLE]
    line.limits = replace(line.limits, seats=2, seats_each=2, waiting_each=3)
    noisy = await people(api, "user:noisy")
    sent = flood(noisy, 5)
    await until(lambda: line.waiting == 3)
    async with noisy.get("/v1/nodes/n1") as answer:
        problem = await answer.json()
        assert (answer.status, answer.headers["retry-after"], problem["code"]) == (429, "1", "too_many")
        assert problem["hint"]
    # The client of the package comes again by itself, and finds room once there is some.
    client = await api.client(await api.token("operator", "user:noisy"))
    later = asyncio.create_task(client.call("GET", "/v1", dict))
    refused = api.parts.turnstile._refused
    await until(lambda: refused["people", "operator", "queue"] == 2)
    slow.go.set()
    assert "version" in await later
    assert await asyncio.gather(*sent) == [200] * 5


async def test_a_request_that_waited_too_long_is_told_so_and_leaves_its_place(
    slow: SlowStore, start_api: StartApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mandor.api.turnstile.WAIT_SECONDS_MOST", 0.05)
    api = await start_api(store=slow)
    turns = api.parts.turnstile._turns
    noisy = await people(api, "user:noisy")
    statuses: list[int] = []
    sent = flood(noisy, PEOPLE.seats_each + 5)
    for each in sent:
        each.add_done_callback(lambda done: statuses.append(done.result()))
    await until(lambda: len(statuses) == 5)
    assert statuses == [429] * 5
    assert turns.waiting(Lane.PEOPLE) == 0
    slow.go.set()
    assert sorted(await asyncio.gather(*sent)) == [200] * PEOPLE.seats_each + [429] * 5


async def test_while_placing_requests_of_nodes_trail_until_one_has_waited_for_long(
    slow: SlowStore, start_api: StartApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = await start_api(store=slow)
    object.__setattr__(api.parts, "placing", lambda: True)
    turnstile = api.parts.turnstile
    each_pass = api.parts.of_nodes._each_pass
    assert callable(each_pass)
    assert turnstile.waited_seconds(Lane.PEOPLE) == 0.0
    sent = flood(await people(api, "user:noisy"), PEOPLE.seats_each + 1)
    await until(lambda: turnstile.waited_seconds(Lane.PEOPLE) > 0)
    assert each_pass() == NODES_WHILE_PLACING
    assert turnstile.waited_seconds(Lane.AGENT, Lane.REPORT) == 0.0  # people do not wait for nodes' sake
    monkeypatch.setattr(turnstile, "waited_seconds", lambda *lanes: PATIENCE_SECONDS)
    assert each_pass() == NODES_EACH_PASS
    monkeypatch.undo()
    slow.go.set()
    assert await asyncio.gather(*sent) == [200] * (PEOPLE.seats_each + 1)
    assert turnstile.waited_seconds(Lane.PEOPLE) == 0.0


async def test_who_goes_away_while_waiting_takes_no_seat_for_long(slow: SlowStore, start_api: StartApi) -> None:
    api = await start_api(store=slow)
    turns = api.parts.turnstile._turns
    noisy = await people(api, "user:noisy")
    sent = flood(noisy, PEOPLE.seats_each + 20)
    await until(lambda: turns.waiting(Lane.PEOPLE) == 20)
    for each in sent:
        each.cancel()
    await asyncio.gather(*sent, return_exceptions=True)
    slow.go.set()
    await until(lambda: turns.waiting(Lane.PEOPLE) == turns.seated(Lane.PEOPLE) == 0)


async def test_a_node_that_beats_far_too_often_is_slowed_down_and_the_others_are_not(start_api: StartApi) -> None:
    api = await start_api(beats_per_second=0.001, beats_burst=3)
    first, second, *_ = await beats(api)
    assert [await first() for _ in range(4)] == [200, 200, 200, 429]
    assert await second() == 200


async def test_an_identity_that_asks_too_often_is_slowed_down_and_the_others_are_not(start_api: StartApi) -> None:
    api = await start_api(requests_per_second=0.001, requests_burst=2)
    one, other = await people(api, "user:one"), await people(api, "user:other")

    async def ask(session: aiohttp.ClientSession) -> int:
        async with session.get("/v1") as answer:
            return answer.status

    assert [await ask(one) for _ in range(3)] == [200, 200, 429]
    assert await ask(other) == 200


async def test_strangers_are_limited_by_address_and_those_with_a_token_are_not(start_api: StartApi) -> None:
    api = await start_api(strangers_per_second=0.001, strangers_burst=3)
    stranger = await api.session("mdr_nobody_knows")

    async def ask(session: aiohttp.ClientSession, path: str) -> int:
        async with session.get(path) as answer:
            return answer.status

    assert [await ask(stranger, "/v1") for _ in range(4)] == [401, 401, 401, 429]
    assert await ask(stranger, "/healthz") == 429
    assert await ask(await people(api, "user:known"), "/v1") == 200


async def test_one_identity_may_not_open_all_streams(start_api: StartApi) -> None:
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


async def test_reports_of_agents_have_a_lane_that_can_trail_behind(start_api: StartApi) -> None:
    api = await start_api()
    turnstile = api.parts.turnstile
    turnstile.limit(Lane.REPORT, 1)
    await api.store.commit(Put(make_node("n1")))
    node = await api.session(await api.token("node", "node:n1"))
    seats: list[int] = []
    plain = turnstile._turns.ask

    def spy(lane: Lane, identity: str, **more: int) -> object:
        seats.append(lane)
        return plain(lane, identity, **more)

    turnstile._turns.ask = spy  # type: ignore[method-assign, assignment]
    async with node.post("/v1/commit", json={"writes": []}) as answer:
        assert answer.status in {200, 400}
    async with node.get("/v1/nodes/n1") as answer:
        assert answer.status == 200
    async with node.post("/v1/nodes/n1/heartbeat", json={}) as answer:
        assert answer.status == 200
    # A heartbeat that comes in one piece is over before it could take a seat.
    assert seats[:2] == [Lane.REPORT, Lane.AGENT]
    assert set(seats[2:]) <= {Lane.HEARTBEAT}
