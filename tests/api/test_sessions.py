"""Logs and exec: the node dials back, and the server connects it with the waiting caller."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest

from mandor.client.aio import Client, Line
from mandor.errors import Conflict, Forbidden, Invalid, MandorError, NotFound, Unavailable
from mandor.model.claim import Claim
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.meta import Key
from mandor.model.node import Node, NodePhase, NodeStatus
from mandor.model.phase import Phase
from mandor.model.record import Session
from mandor.store.base import Filter, Put, Store, Write
from mandor.store.memory import MemoryStore
from mandor.store.remote import RemoteStore
from mandor.testing.store import make_instance, make_node
from tests.api.conftest import Api, StartApi

OUT, ERR, END = b"\x01", b"\x02", b"\x03"
Serve = Callable[[Session, Line], Awaitable[None]]


async def running_instance(store: Store, name: str = "web-0", node: str = "n1") -> Instance:
    instance = make_instance(name, node=node).changed(status=InstanceStatus(phase=Phase.RUNNING))
    if await store.get(Key("node", "", node)) is None:
        await store.commit(Put(make_node(node)))
    await store.commit(Put(instance))
    found = await store.get(instance.key)
    assert isinstance(found, Instance)
    return found


@asynccontextmanager
async def agent(url: str, credential: str, serve: Serve, node: str = "n1") -> AsyncIterator[None]:
    """An agent's part: watches its sessions and dials back to the server that each names."""

    async def run() -> None:
        async with Client([url], token=credential) as client:
            store = RemoteStore(client)
            async for changes in store.watch("session", since=0, where=Filter(node=node)):
                for change in changes:
                    session = change.after
                    if isinstance(session, Session):
                        line = await client.dial(
                            f"/v1/sessions/{session.meta.name}",
                            server=session.spec.server,
                            headers={"x-mandor-session": session.spec.secret},
                        )
                        async with line:
                            await serve(session, line)

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def log_frame(*texts: str) -> bytes:
    lines = [{"at": 1.5, "stream": "stdout", "text": text} for text in texts]
    return OUT + b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


async def gone(store: Store) -> None:
    async with asyncio.timeout(30):
        while (await store.list("session")).items:
            await asyncio.sleep(0.01)


async def test_logs_come_from_the_agent_that_dials_back(api: Api) -> None:
    instance = await running_instance(api.store)
    seen: list[Session] = []

    async def serve(session: Session, line: Line) -> None:
        seen.append(session)
        await line.send(log_frame("hello", "world"))
        await line.send(ERR + log_frame("oops")[1:])

    viewer = await api.client(await api.token("viewer", "user:ani"))
    async with agent(api.url, await api.token("node", "node:n1"), serve):
        text = await viewer.request("GET", "/v1/instances/web-0/logs", query={"tail": 10, "follow": True})
        assert text == b"hello\nworld\noops\n"
        timed = await viewer.request("GET", "/v1/instances/web-0/logs", query={"timestamps": True})
        assert timed.startswith(b"1970-01-01T00:00:01.500Z hello\n")
        async with viewer.stream("/v1/instances/web-0/logs", accept="application/x-ndjson") as content:
            assert json.loads(await content.readline()) == {"at": 1.5, "stream": "stdout", "text": "hello"}
    spec = seen[0].spec
    assert (spec.verb, spec.uid, spec.node, spec.tail, spec.follow) == ("logs", instance.meta.uid, "n1", 10, True)
    assert spec.server == api.url
    await gone(api.store)


async def test_exec_carries_bytes_both_ways_and_the_exit_code(dev: Api) -> None:
    await running_instance(dev.store)
    seen: list[Session] = []

    async def serve(session: Session, line: Line) -> None:
        seen.append(session)
        while (frame := await line.receive()) is not None:
            if frame[:1] == b"\x04":
                await line.send(ERR + frame[1:])
            elif frame == b"\x00":
                await line.send(END + b'{"code":7}')
                return
            else:
                await line.send(OUT + frame[1:].upper())

    async with agent(dev.url, await dev.token("node", "node:n1"), serve):
        client = await dev.client()
        query = [("command", "sh"), ("command", "-c"), ("command", "exit 7"), ("terminal", "true"), ("rows", "50")]
        async with await client.dial("/v1/instances/web-0/exec", query=query) as line:
            big = bytes(range(256)) * 1000
            await line.send(b"\x00" + big)
            assert await line.receive() == OUT + big.upper()
            await line.send(b'\x04{"rows":9,"columns":9}')
            assert await line.receive() == ERR + b'{"rows":9,"columns":9}'
            await line.send(b"\x00")
            assert await line.receive() == END + b'{"code":7}'
            assert await line.receive() is None
    spec = seen[0].spec
    assert (spec.verb, spec.command, spec.terminal, spec.rows) == ("exec", ("sh", "-c", "exit 7"), True, 50)
    await gone(dev.store)
    (record,) = (await dev.store.list("audit")).items
    assert record.spec.verb == "exec"


async def test_a_caller_at_one_server_is_joined_with_an_agent_at_another(start_api: StartApi) -> None:
    store = MemoryStore()
    first = await start_api(store=store, tokens_required=False)
    second = await start_api(store=store, tokens_required=False)
    await running_instance(store)

    async def serve(session: Session, line: Line) -> None:
        await line.send(log_frame("from afar"))

    async with agent(second.url, await first.token("node", "node:n1"), serve):
        assert await (await first.client()).request("GET", "/v1/instances/web-0/logs") == b"from afar\n"


async def test_when_the_caller_goes_the_agent_learns_it(dev: Api) -> None:
    await running_instance(dev.store)
    closed = asyncio.Event()

    async def serve(session: Session, line: Line) -> None:
        await line.send(log_frame("tick"))
        while await line.receive() is not None:
            pass
        closed.set()

    async with agent(dev.url, await dev.token("node", "node:n1"), serve):
        session = await dev.session()
        answer = await session.get("/v1/instances/web-0/logs", params={"follow": "true"})
        assert await answer.content.readline() == b"tick\n"
        answer.close()
        async with asyncio.timeout(30):
            await closed.wait()
        closed.clear()
        line = await (await dev.client()).dial("/v1/instances/web-0/exec", query=[("command", "sh")])
        assert await line.receive() == log_frame("tick")
        await line.close()
        async with asyncio.timeout(30):
            await closed.wait()
    await gone(dev.store)


async def test_a_node_that_does_not_dial_in_time_is_unavailable(start_api: StartApi) -> None:
    dev = await start_api(tokens_required=False, dial_seconds=0.2)
    await running_instance(dev.store)
    client = await dev.client()
    with pytest.raises(Unavailable) as caught:
        await client.request("GET", "/v1/instances/web-0/logs")
    assert "n1" in caught.value.message
    async with await client.dial("/v1/instances/web-0/exec", query=[("command", "sh")]) as line:
        frame = await line.receive()
        assert frame is not None
        assert frame[:1] == END
        assert json.loads(frame[1:])["code"] == "unavailable"
    await gone(dev.store)
    assert len(dev.parts.sessions) == 0


async def test_what_the_agent_shows_went_wrong_reaches_the_caller(dev: Api) -> None:
    await running_instance(dev.store)

    async def serve(session: Session, line: Line) -> None:
        await line.send(END + b'{"code":"unsupported","detail":"this engine keeps no logs","hint":"use another"}')

    async with agent(dev.url, await dev.token("node", "node:n1"), serve):
        with pytest.raises(MandorError, match="keeps no logs") as caught:
            await (await dev.client()).request("GET", "/v1/instances/web-0/logs")
    assert (caught.value.code, caught.value.hint) == ("unsupported", "use another")


async def test_only_the_node_with_the_secret_may_take_a_session(api: Api) -> None:
    await running_instance(api.store)
    viewer = await api.client(await api.token("viewer", "user:ani"))
    asking = asyncio.create_task(viewer.request("GET", "/v1/instances/web-0/logs"))
    async with asyncio.timeout(30):
        while not (items := (await api.store.list("session")).items):
            await asyncio.sleep(0.01)
    session = items[0]
    assert isinstance(session, Session)
    right = await api.client(await api.token("node", "node:n1"))
    path = f"/v1/sessions/{session.meta.name}"
    secret = {"x-mandor-session": session.spec.secret}
    for client, headers in (
        (await api.client(await api.token("node", "node:n2")), secret),
        (right, {"x-mandor-session": "0" * 64}),
        (right, {}),
        (await api.client(await api.token("admin", "user:admin")), secret),
    ):
        with pytest.raises(Forbidden):
            await client.dial(path, headers=headers)
    with pytest.raises(NotFound):
        await right.dial("/v1/sessions/unknown", headers=secret)
    admin = await api.client(await api.token("admin", "user:boss"))
    assert session.spec.secret.encode() not in await admin.request("GET", "/v1/sessions")
    async with await right.dial(path, headers=secret) as line:
        with pytest.raises(NotFound):
            await right.dial(path, headers=secret)
        await line.send(log_frame("mine"))
    assert await asking == b"mine\n"


async def test_sessions_are_bounded(start_api: StartApi) -> None:
    dev = await start_api(tokens_required=False, sessions_most=1, dial_seconds=20)
    await running_instance(dev.store)
    client = await dev.client()
    first = asyncio.create_task(client.request("GET", "/v1/instances/web-0/logs"))
    async with asyncio.timeout(30):
        while not len(dev.parts.sessions):
            await asyncio.sleep(0.01)
    with pytest.raises(MandorError) as caught:
        await client.request("GET", "/v1/instances/web-0/logs")
    assert caught.value.code == "too_many"
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await gone(dev.store)


async def test_a_session_that_cannot_be_is_refused_at_once(api: Api) -> None:
    await running_instance(api.store)
    await api.store.commit(Put(make_instance("new-0")))
    await api.store.commit(Put(make_instance("old-0", node="n1").changed(status=InstanceStatus(phase=Phase.STOPPED))))
    operator = await api.client(await api.token("operator", "user:ani"))
    viewer = await api.client(await api.token("viewer", "user:budi"))
    stranger = await api.client(await api.token("operator", "user:cici", ("team",)))
    command = [("command", "sh")]
    with pytest.raises(Conflict):
        await operator.request("GET", "/v1/instances/new-0/logs")
    with pytest.raises(NotFound):
        await operator.request("GET", "/v1/instances/none-0/logs")
    with pytest.raises(Forbidden):
        await stranger.request("GET", "/v1/instances/web-0/logs")
    for client, name, query, error in (
        (viewer, "web-0", command, Forbidden),
        (stranger, "web-0", command, Forbidden),
        (operator, "old-0", command, Conflict),
        (operator, "none-0", command, NotFound),
    ):
        with pytest.raises(error):
            await client.dial(f"/v1/instances/{name}/exec", query=query)
    session = await api.session(await api.token("operator", "user:dodo"))
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await session.ws_connect("/v1/instances/web-0/exec")
    assert caught.value.status == 400
    assert list((await api.store.list("session")).items) == []


async def test_a_browser_offers_its_token_as_a_protocol(api: Api) -> None:
    await running_instance(api.store)

    async def serve(session: Session, line: Line) -> None:
        await line.send(END + b'{"code":0}')

    session, path = await api.session(), "/v1/instances/web-0/exec?command=sh"
    viewer, operator = await api.token("viewer", "user:budi"), await api.token("operator", "user:ani")
    for protocols, status in (
        (("mandor.exec",), 401),
        (("mandor.exec", "mandor.token.of.nobody"), 401),
        (("mandor.exec", f"mandor.token.{viewer}"), 403),
    ):
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await session.ws_connect(path, protocols=protocols)
        assert caught.value.status == status
    async with agent(api.url, await api.token("node", "node:n1"), serve):
        offered = ("mandor.exec", f"mandor.token.{operator}")
        async with session.ws_connect(path, protocols=offered) as socket:
            assert socket.protocol == "mandor.exec", "the token is not said again"
            assert await socket.receive_bytes() == END + b'{"code":0}'


async def test_a_task_that_does_not_exist_is_refused_with_a_guess(dev: Api) -> None:
    client = await dev.client()
    await client.request(
        "POST",
        "/v1/apply",
        body=b"name: shop\ngroups: {web: {tasks: {app: {command: [a]}, proxy: {command: [b]}}}}",
        content_type="application/yaml",
    )
    from mandor.model.workload import Workload, make_release

    workload = await dev.store.get(Key("workload", "default", "shop"))
    assert isinstance(workload, Workload)
    await dev.store.commit(Put(make_release(workload, 1)))
    instance = make_instance("shop-web-0", node="n1")
    spec = msgspec.structs.replace(instance.spec, workload="shop", group="web", release="shop.1")
    await dev.store.commit(Put(instance.changed(spec=spec)))
    with pytest.raises(Invalid) as caught:
        await client.request("GET", "/v1/instances/shop-web-0/logs", query={"task": "ap"})
    assert "`app`" in (caught.value.hint or "")
    with pytest.raises(Invalid) as caught:
        await client.request("GET", "/v1/instances/shop-web-0/logs")
    assert "app, proxy" in (caught.value.hint or "")


async def test_sessions_end_when_the_server_stops(start_api: StartApi) -> None:
    dev = await start_api(tokens_required=False)
    await running_instance(dev.store)

    async def serve(session: Session, line: Line) -> None:
        await line.send(log_frame("tick"))
        while await line.receive() is not None:
            pass

    async with agent(dev.url, await dev.token("node", "node:n1"), serve):
        session = await dev.session()
        answer = await session.get("/v1/instances/web-0/logs", params={"follow": "true"})
        assert await answer.content.readline() == b"tick\n"
        line = await (await dev.client()).dial("/v1/instances/web-0/exec", query=[("command", "sh")])
        dev.server.stop()
        async with asyncio.timeout(30):
            assert await answer.content.read() == b""
            while await line.receive() is not None:
                pass


async def test_a_session_with_a_node_that_is_down_ends_at_once_with_the_reason(start_api: StartApi) -> None:
    api = await start_api(tokens_required=False, dial_seconds=3600.0)
    instance = await running_instance(api.store)
    node = await api.store.get(Key("node", "", "n1"))
    assert isinstance(node, Node)
    down = NodeStatus(phase=NodePhase.DOWN, reason="no heartbeats for 45 s")
    await api.store.commit(Put(node.changed(status=down)))
    client = await api.client()
    async with asyncio.timeout(60):
        with pytest.raises(Unavailable, match="the node n1 of web-0 is Down: no heartbeats for 45 s") as raised:
            await client.request("GET", f"/v1/instances/{instance.meta.name}/logs")
        assert "mandor describe node n1" in (raised.value.hint or "")
        with pytest.raises(Unavailable):
            await client.dial(f"/v1/instances/{instance.meta.name}/exec", query=[("command", "sh")])
    assert not (await api.store.list("session")).items


async def test_a_session_with_a_node_that_was_deleted_ends_at_once(start_api: StartApi) -> None:
    api = await start_api(tokens_required=False, dial_seconds=3600.0)
    await api.store.commit(Put(make_instance("web-0", node="gone")))
    client = await api.client()
    async with asyncio.timeout(60):
        with pytest.raises(NotFound, match="the node gone of web-0 does not exist any more"):
            await client.request("GET", "/v1/instances/web-0/logs")


async def test_a_reservation_for_a_virtual_machine_has_no_logs(start_api: StartApi) -> None:
    api = await start_api(tokens_required=False, dial_seconds=3600.0)
    instance = make_instance("vm-1", node="host1")
    claim = Claim(task="vm-1", cpu_milli=1000, memory_bytes=1 << 30, pool="default")
    await api.store.commit(Put(instance.changed(spec=msgspec.structs.replace(instance.spec, claim=claim))))
    client = await api.client()
    async with asyncio.timeout(60):
        with pytest.raises(Conflict, match="reserves resources for a virtual machine"):
            await client.request("GET", "/v1/instances/vm-1/logs")


class AwayStore(MemoryStore):
    """Answers reads from memory while nothing can be written, as a store in etcd without a majority does."""

    away = False

    async def check_available(self) -> None:
        if self.away:
            raise Unavailable("etcd has no majority", hint="start the missing etcd members")

    async def commit(self, *writes: Write) -> int:
        if self.away:
            await asyncio.Event().wait()
        return await super().commit(*writes)


async def test_without_a_writable_store_sessions_end_at_once_and_the_server_is_not_ready(start_api: StartApi) -> None:
    store = AwayStore()
    api = await start_api(tokens_required=False, store=store)
    await running_instance(store)
    client = await api.client()
    await client.request("GET", "/readyz")
    store.away = True
    async with asyncio.timeout(60):
        with pytest.raises(Unavailable, match="etcd has no majority"):
            await client.request("GET", "/v1/instances/web-0/logs")
        with pytest.raises(Unavailable):
            await client.dial("/v1/nodes/n1/images", query=[("size", "10")])
        with pytest.raises(Unavailable, match="etcd has no majority") as raised:
            await client.request("GET", "/readyz")
    assert raised.value.hint == "start the missing etcd members"
    await client.request("GET", "/healthz")
    store.away = False
    await client.request("GET", "/readyz")
