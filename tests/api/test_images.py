"""Images from files: the server carries them to the node's agent, and keeps nothing."""

import asyncio
import json

import pytest

from mandor.client.aio import Client, Line
from mandor.errors import MandorError
from mandor.model.meta import Meta
from mandor.model.node import Node, NodePhase, NodeStatus
from mandor.model.record import Session
from mandor.store.base import Put
from tests.api.conftest import Api, StartApi
from tests.api.test_sessions import agent, gone

END = b"\x03"
Query = list[tuple[str, str]]


async def make_node(api: Api, name: str = "n1", phase: NodePhase = NodePhase.READY) -> None:
    await api.store.commit(Put(Node(meta=Meta(name=name), status=NodeStatus(phase=phase, reason="silent for 60 s"))))


async def take(session: Session, line: Line, taken: list[bytes]) -> None:
    while (frame := await line.receive()) not in {None, b"\0"}:
        assert frame is not None
        taken.append(frame[1:])
    await line.send(END + b'{"engines": [{"engine": "docker", "new": true}]}')


async def test_the_bytes_arrive_in_order_and_the_answer_comes_back(api: Api) -> None:
    await make_node(api)
    taken: list[bytes] = []
    seen: list[Session] = []

    async def serve(session: Session, line: Line) -> None:
        seen.append(session)
        await take(session, line, taken)

    pieces = [bytes([number]) * 200_000 for number in range(20)]
    query = [("kind", "archive"), ("size", str(20 * 200_000)), ("names", "shop/web:1"), ("names", "shop/web:2")]
    client = await api.client(await api.token("operator", "user:ani"))
    async with (
        agent(api.url, await api.token("node", "node:n1"), serve),
        await client.dial("/v1/nodes/n1/images", query=[*query, ("engine", "docker")]) as line,
    ):
        for piece in pieces:
            await line.send(b"\0" + piece)
        await line.send(b"\0")
        told = await line.receive()
    assert told == END + b'{"engines": [{"engine": "docker", "new": true}]}'
    assert taken == pieces
    spec = seen[0].spec
    assert spec.image is not None
    assert (spec.verb, spec.engine, spec.image.names) == ("load", "docker", ("shop/web:1", "shop/web:2"))
    await gone(api.store)
    (record,) = (await api.store.list("audit")).items
    assert record.spec.verb == "load"
    assert record.spec.about == "node n1"


async def test_a_node_that_reads_nothing_slows_the_sender(dev: Api) -> None:
    await make_node(dev)
    taking = asyncio.Event()
    taken: list[bytes] = []

    async def serve(session: Session, line: Line) -> None:
        await taking.wait()
        await take(session, line, taken)

    piece, count = b"x" * 500_000, 200
    sent = 0
    async with agent(dev.url, await dev.token("node", "node:n1"), serve):
        client = await dev.client()
        query = [("size", str(len(piece) * count))]
        async with await client.dial("/v1/nodes/n1/images", query=query) as line:

            async def send() -> None:
                nonlocal sent
                for _ in range(count):
                    await line.send(b"\0" + piece)
                    sent += 1
                await line.send(b"\0")

            sending = asyncio.create_task(send())
            before = -1
            while sent != before:  # It stops by itself.
                before = sent
                await asyncio.sleep(0.5)
            assert sent < count // 2
            taking.set()
            await sending
            assert await line.receive() is not None
    assert sum(map(len, taken)) == len(piece) * count


async def test_more_than_was_announced_is_not_carried(dev: Api) -> None:
    await make_node(dev)
    taken: list[bytes] = []

    async def serve(session: Session, line: Line) -> None:
        await take(session, line, taken)

    async with agent(dev.url, await dev.token("node", "node:n1"), serve):
        client = await dev.client()
        async with await client.dial("/v1/nodes/n1/images", query=[("size", "10")]) as line:
            await line.send(b"\0" + b"x" * 10)
            await line.send(b"\0" + b"x")
            told = await line.receive()
    assert told is not None
    assert told[:1] == END
    assert json.loads(told[1:])["code"] == "invalid"
    assert taken in ([], [b"x" * 10])
    await gone(dev.store)


async def refusal(client: Client, path: str, query: Query) -> tuple[int, str]:
    """What a plain web socket client is told before there is a connection."""
    import aiohttp

    try:
        await client.dial(path, query=query)
    except MandorError as error:
        cause = error.__cause__
        assert isinstance(cause, aiohttp.WSServerHandshakeError)
        return cause.status, error.message
    raise AssertionError("it was not refused")


async def test_what_cannot_be_is_refused_before_a_byte_is_sent(start_api: StartApi) -> None:
    api = await start_api(image_bytes_most=1000)
    await make_node(api)
    await make_node(api, "n2", NodePhase.DOWN)
    operator = await api.client(await api.token("operator", "user:ani"))
    cases: list[tuple[str, Query, int]] = [
        ("n9", [("size", "10")], 404),
        ("n2", [("size", "10")], 503),
        ("n1", [("size", "1001")], 413),
        ("n1", [], 400),
        ("n1", [("size", "-1")], 400),
        ("n1", [("size", "10"), ("metadata_bytes", "10")], 400),
        ("n1", [("size", "10"), ("kind", "floppy")], 400),
        ("n1", [("size", "10"), ("names", "two words")], 400),
        ("n1", [("size", "10"), ("id", "xyz")], 400),
        ("n1", [("size", "10"), ("nmaes", "x")], 400),
        ("n1", [("size", "10"), *[("names", f"n:{number}") for number in range(51)]], 400),
    ]
    for node, query, status in cases:
        assert (await refusal(operator, f"/v1/nodes/{node}/images", query))[0] == status, (node, query)
    assert not (await api.store.list("session")).items
    assert not (await api.store.list("audit")).items


@pytest.mark.parametrize(
    ("role", "namespaces"), [("viewer", ("*",)), ("operator", ("team-a",)), ("admin", ("team-a",)), ("node", ("*",))]
)
async def test_only_operators_of_the_whole_cluster_load_images(
    api: Api, role: str, namespaces: tuple[str, ...]
) -> None:
    await make_node(api)
    identity = "node:n1" if role == "node" else "user:ani"
    client = await api.client(await api.token(role, identity, namespaces))  # type: ignore[arg-type]
    assert (await refusal(client, "/v1/nodes/n1/images", [("size", "10")]))[0] == 403
