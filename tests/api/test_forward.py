"""Forwarded connections: a local port, the server, the agent and a real TCP server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mandor.agent.forward import PortForwarder
from mandor.agent.stream import END
from mandor.client.aio import Client, Line
from mandor.client.forward import CONNECTIONS_MOST, PortForward, fixed
from mandor.errors import Forbidden, Invalid, MandorError, NotFound
from mandor.lib.tcp_reset import reset as tcp_reset
from mandor.model.instance import InstanceStatus, PortStatus
from mandor.model.phase import Phase
from mandor.model.record import Role, Session
from mandor.network.forward_plan import forward_targets
from mandor.store.base import Put
from tests.api.conftest import Api
from tests.api.test_sessions import agent, running_instance
from tests.components.ports import free_port

Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
BIG = bytes(range(256)) * 20_000  # 5 MB


@asynccontextmanager
async def tcp_server(handle: Handle) -> AsyncIterator[int]:
    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handle(reader, writer)
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(closing, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def reverse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer only after the end of the request."""
    data = await reader.read(-1)
    writer.write(data[::-1])
    await writer.drain()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


@asynccontextmanager
async def forwarding(
    dev: Api, port: int, *, wanted: str = "http", failed: Callable[[MandorError], None] = print
) -> AsyncIterator[PortForward]:
    """A local port that leads to the port `http` of web-0."""
    declared = (PortStatus(name="http", port=port),)
    status = InstanceStatus(phase=Phase.RUNNING, host="127.0.0.1", ports=declared)
    forwarder = PortForwarder(lambda spec: forward_targets(spec.instance, status, spec.port))
    serving: set[asyncio.Task[None]] = set()

    async def serve(session: Session, line: Line) -> None:
        try:
            await forwarder.serve(session.spec, line)
        except MandorError as error:
            await line.send(bytes([END]) + f'{{"code": "{error.code}", "detail": "{error.message}"}}'.encode())

    async with dialling(dev, serve, serving):
        client = await dev.client()
        async with PortForward(client, fixed("web-0", wanted), failed=failed) as local:
            yield local
    await asyncio.gather(*serving, return_exceptions=True)


@asynccontextmanager
async def dialling(
    dev: Api, serve: Callable[[Session, Line], Awaitable[None]], serving: set[asyncio.Task[None]]
) -> AsyncIterator[None]:
    """An agent that serves several sessions at the same time."""
    await running_instance(dev.store)
    client = Client([dev.url], token=await dev.token("node", "node:n1"))

    async def one(session: Session) -> None:
        spec = session.spec
        headers = {"x-mandor-session": spec.secret}
        async with await client.dial(f"/v1/sessions/{session.meta.name}", server=spec.server, headers=headers) as line:
            await serve(session, line)

    async def run() -> None:
        async for changes in dev.store.watch("session", since=0):
            for change in changes:
                if isinstance(change.after, Session):
                    task = asyncio.ensure_future(one(change.after))
                    serving.add(task)

    watching = asyncio.create_task(run())
    try:
        yield
    finally:
        watching.cancel()
        for task in serving:
            task.cancel()
        await asyncio.gather(watching, *serving, return_exceptions=True)
        await client.close()


async def ask(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    writer.write_eof()
    await writer.drain()
    answer = await reader.read(-1)
    writer.close()
    return answer


async def test_bytes_pass_both_ways_and_the_end_of_one_direction_keeps_the_other_open(dev: Api) -> None:
    async with tcp_server(reverse) as port, forwarding(dev, port) as local:
        assert await ask(local.port, BIG) == BIG[::-1]


async def test_several_connections_are_open_at_the_same_time(dev: Api) -> None:
    async with tcp_server(echo) as port, forwarding(dev, port) as local:
        lines = [await asyncio.open_connection("127.0.0.1", local.port) for _ in range(5)]
        for number, (_, writer) in enumerate(lines):
            writer.write(f"line {number}\n".encode())
        for number, (reader, _) in enumerate(lines):
            assert await reader.readline() == f"line {number}\n".encode()
        for _, writer in lines:
            writer.close()


async def test_a_client_that_does_not_read_stops_the_instance_from_sending(dev: Api) -> None:
    sent = 0
    closed = asyncio.Event()

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        try:
            while True:
                writer.write(bytes(65536))
                await writer.drain()
                sent += 65536
        finally:
            closed.set()

    async with tcp_server(flood) as port, forwarding(dev, port) as local:
        _, writer = await asyncio.open_connection("127.0.0.1", local.port, limit=1024)
        before = -1
        async with asyncio.timeout(60):
            while sent != before or not sent:
                before = sent
                await asyncio.sleep(0.5)
        assert sent < 64 << 20
        writer.transport.abort()
        async with asyncio.timeout(60):
            await closed.wait()


async def test_a_connection_that_the_instance_breaks_off_is_reset(dev: Api) -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        tcp_reset(writer.transport)

    async with tcp_server(reset) as port, forwarding(dev, port) as local:
        reader, writer = await asyncio.open_connection("127.0.0.1", local.port)
        writer.write(b"hello\n")
        with pytest.raises(ConnectionResetError):
            await reader.read(-1)
        writer.close()


async def test_a_port_without_a_listener_is_reported_and_later_connections_work(dev: Api) -> None:
    errors: list[MandorError] = []
    port = free_port()
    async with forwarding(dev, port, failed=errors.append) as local:
        with pytest.raises(ConnectionResetError):
            await ask(local.port, b"x")
        assert "cannot connect to the port http of web-0" in errors[0].message
        server = await asyncio.start_server(reverse_and_close, "127.0.0.1", port)
        async with server:
            assert await ask(local.port, b"abc") == b"cba"


async def reverse_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reverse(reader, writer)
    writer.close()


async def test_a_port_of_another_program_on_the_node_is_refused(dev: Api) -> None:
    errors: list[MandorError] = []
    async with (
        tcp_server(echo) as secret,
        tcp_server(echo) as port,
        forwarding(dev, port, wanted=str(secret), failed=errors.append) as local,
    ):
        with pytest.raises(ConnectionResetError):
            await ask(local.port, b"x")
        assert isinstance(errors[0], NotFound)


async def test_connections_beyond_the_limit_are_refused_and_reported(dev: Api) -> None:
    errors: list[MandorError] = []
    async with tcp_server(echo) as port, forwarding(dev, port, failed=errors.append) as local:
        lines = [await asyncio.open_connection("127.0.0.1", local.port) for _ in range(CONNECTIONS_MOST)]
        for _, writer in lines:
            writer.write(b"x")
        for reader, _ in lines:
            assert await reader.read(1) == b"x"
        with pytest.raises(ConnectionResetError):
            await ask(local.port, b"x")
        assert errors[0].code == "too_many"
        for _, writer in lines:
            writer.close()


async def test_each_connection_is_audited_with_its_port(dev: Api) -> None:
    async with tcp_server(reverse) as port, forwarding(dev, port) as local:
        assert await ask(local.port, b"ab") == b"ba"
    audit: list[Any] = [each.spec for each in (await dev.store.list("audit")).items]
    (record,) = [each for each in audit if each.verb == "forward"]
    assert record.about == "instance default/web-0"
    assert {each.path: each.after for each in record.entries[0].changes} == {"node": "n1", "port": "http"}


async def test_forwarding_is_a_permission_of_its_own(api: Api) -> None:
    await running_instance(api.store)
    node = await api.token("node", "node:n1")
    roles: tuple[tuple[Role, type[MandorError] | None], ...] = (("viewer", Forbidden), ("operator", None))
    for role, refused in roles:
        client = await api.client(await api.token(role, f"user:{role}"))
        seen: list[str] = []

        async def serve(session: Session, line: Line, seen: list[str] = seen) -> None:
            seen.append(session.spec.port)
            await line.send(bytes([END]) + b"{}")

        async with agent(api.url, node, serve):
            if refused is not None:
                with pytest.raises(refused):
                    await client.dial("/v1/instances/web-0/forward", query=[("port", "80")])
            else:
                async with await client.dial("/v1/instances/web-0/forward", query=[("port", "80")]) as line:
                    assert await line.receive() == bytes([END]) + b"{}"
                assert seen == ["80"]


@pytest.mark.parametrize(
    "query",
    [[], [("port", "")], [("port", "a/b")], [("port", "127.0.0.1:22")], [("port", "80"), ("address", "127.0.0.1")]],
)
async def test_the_request_names_a_port_and_nothing_else(dev: Api, query: list[tuple[str, str]]) -> None:
    await running_instance(dev.store)
    with pytest.raises((Invalid, MandorError)) as caught:
        await (await dev.client()).dial("/v1/instances/web-0/forward", query=query)
    assert "400" in str(caught.value) or "422" in str(caught.value)


async def test_an_instance_that_has_ended_or_does_not_exist_is_refused(dev: Api) -> None:
    over = await running_instance(dev.store, "web-1")
    await dev.store.commit(Put(over.changed(status=InstanceStatus(phase=Phase.FAILED))))
    client = await dev.client()
    for name in ("web-1", "web-9"):
        with pytest.raises(MandorError):
            await client.dial(f"/v1/instances/{name}/forward", query=[("port", "80")])


async def test_a_frame_of_another_channel_ends_the_session(dev: Api) -> None:
    async def serve(session: Session, line: Line) -> None:
        while await line.receive() is not None:
            pass

    await running_instance(dev.store)
    async with agent(dev.url, await dev.token("node", "node:n1"), serve):
        query: Any = [("port", "80")]
        async with await (await dev.client()).dial("/v1/instances/web-0/forward", query=query) as line:
            await line.send(b"\x04{}")
            frame = await line.receive()
            assert frame is not None
            assert b"channel 0" in frame
