"""Watchers that read nothing: what stands unread is bounded, and they are cut off."""

import asyncio
import socket

import pytest

from mandor.api.http import connection
from mandor.api.watch import PIECE_BYTES
from mandor.store.base import Put
from mandor.testing.store import make_instance
from tests.api.conftest import Api, StartApi

WATCHERS = 100
EVENTS = 1_000


async def open_silent(api: Api, token: str) -> socket.socket:
    """A watch of which only the head is read."""
    loop = asyncio.get_running_loop()
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.setblocking(False)
    host, _, port = api.url.removeprefix("http://").partition(":")
    await loop.sock_connect(plain, (host, int(port)))
    head = f"GET /v1/watch?kind=instance HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\n\r\n"
    await loop.sock_sendall(plain, head.encode())
    assert (await loop.sock_recv(plain, 100)).startswith(b"HTTP/1.1 200")
    return plain


def unread(api: Api) -> list[int]:
    return [each.transport.get_write_buffer_size() for each in api.server.server_state.connections]


async def until_settled(api: Api) -> list[int]:
    before: list[int] = []
    async with asyncio.timeout(60):
        while not before or unread(api) != before:
            before = unread(api)
            await asyncio.sleep(0.1)
    return before


@pytest.mark.req("S0-20")
async def test_what_slow_watchers_leave_unread_is_bounded_and_then_they_are_cut_off(
    start_api: StartApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "UNREAD_SECONDS_MOST", 3600.0)
    api = await start_api()
    token = await api.token("viewer", "user:slow")
    silent = [await open_silent(api, token) for _ in range(WATCHERS)]
    try:
        for start in range(0, EVENTS, 100):
            await api.store.commit(*[Put(make_instance(f"i-{start + number}")) for number in range(100)])
            await asyncio.sleep(0)
        sizes = await until_settled(api)
        assert max(sizes) > 0, "nothing stands unread, so this shows nothing"
        assert max(sizes) <= connection.WAITING_BYTES_MOST + PIECE_BYTES
        # Somebody who reads gets everything meanwhile.
        client = await api.client(await api.token("viewer", "user:reads"))
        async with client.stream("/v1/watch", query={"kind": "instance", "since": 1}) as lines:
            async with asyncio.timeout(60):
                found = [await lines.readline() for _ in range(EVENTS)]
        assert all(b'"after":{' in line for line in found)
        # From now on patience is short: whoever is told something more is waited for no longer.
        monkeypatch.setattr(connection, "UNREAD_SECONDS_MOST", 0.01)
        late = [await open_silent(api, token) for _ in range(5)]
        silent += late
        for start in range(EVENTS, 3 * EVENTS, 100):
            await api.store.commit(*[Put(make_instance(f"i-{start + number}")) for number in range(100)])
            await asyncio.sleep(0)
        async with asyncio.timeout(60):
            while api.parts.request_metrics.cut < len(late):
                await asyncio.sleep(0.05)
            while len(api.parts.streams) > WATCHERS:
                await asyncio.sleep(0.05)
    finally:
        for each in silent:
            each.close()
    async with asyncio.timeout(60):
        while len(api.parts.streams):
            await asyncio.sleep(0.05)


async def test_a_stopping_server_does_not_wait_for_callers_that_do_not_read(
    start_api: StartApi, caplog: pytest.LogCaptureFixture
) -> None:
    """It would wait five seconds for the answers, and then complain that they are broken off."""
    api = await start_api()
    token = await api.token("viewer", "user:slow")
    silent = [await open_silent(api, token) for _ in range(3)]
    try:
        for start in range(0, 3 * EVENTS, 100):
            await api.store.commit(*[Put(make_instance(f"i-{start + number}")) for number in range(100)])
            await asyncio.sleep(0)
        assert max(await until_settled(api)) > 0, "nothing stands unread, so this shows nothing"
        api.server.stop()
        async with asyncio.timeout(60):
            while api.server.server_state.connections or api.server.server_state.tasks:
                await asyncio.sleep(0.05)
    finally:
        for each in silent:
            each.close()
    assert [each.getMessage() for each in caplog.records if each.levelname == "ERROR"] == []
