"""Callers that leave in one moment: their connections are taken down a few at a time, and nothing of them stays."""

import asyncio
import socket
import struct
from itertools import pairwise

import pytest

from mandor.api.http.connection import CLOSED_EACH_PASS
from tests.api.conftest import StartApi
from tests.api.test_slow_watchers import open_silent

WATCHERS = 3 * CLOSED_EACH_PASS


@pytest.mark.req("S0-16")
@pytest.mark.parametrize("way", ["end", "reset"])
async def test_connections_that_close_together_are_closed_in_steps(start_api: StartApi, way: str) -> None:
    api = await start_api()
    token = await api.token("viewer", "user:ani")
    callers = [await open_silent(api, token) for _ in range(WATCHERS)]
    assert len(api.parts.streams) == WATCHERS
    for each in callers:
        if way == "end":
            each.shutdown(socket.SHUT_WR)
        else:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            each.close()
    open_streams = [len(api.parts.streams)]
    async with asyncio.timeout(30):
        while open_streams[-1]:
            await asyncio.sleep(0)
            open_streams.append(len(api.parts.streams))
    for each in callers:
        each.close()
    ended = [before - after for before, after in pairwise(open_streams)]
    assert max(ended) <= CLOSED_EACH_PASS
    state = api.server.server_state
    async with asyncio.timeout(30):
        while state.connections or state.tasks:
            await asyncio.sleep(0)
    api.parts.streams.check("user:ani")
    assert len(api.parts.store.index.idle_timers) == 1  # type: ignore[attr-defined]  # the server's own
