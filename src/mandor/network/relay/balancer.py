"""The balancer for agents without root: a process of its own relays connections to loopback addresses."""

import asyncio
import logging
import shutil
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from mandor.errors import Unavailable
from mandor.network.base import Balancer, Frontend, FrontendKey, Traffic
from mandor.network.detached import Detached
from mandor.network.relay.message import Entry, Reply, Request

RESTART_SECONDS = 1.0  # between attempts to restart a relay process that ended
log = logging.getLogger(__name__)


class RelayBalancer(Balancer):
    """Controls the relay process of one folder; restarts the process if it ends."""

    name = "relay"
    addresses = "127.64.0.0/10"
    """Range for virtual addresses: all of 127.0.0.0/8 can be bound on Linux without configuration."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = Detached("mandor.network.relay.server", folder)
        self._lock = asyncio.Lock()
        self._table: dict[FrontendKey, Frontend] | None = None
        """Frontends in effect; None: not known."""
        self._problems: dict[FrontendKey, str] = {}
        self._watch: asyncio.Task[None] | None = None

    @property
    def problems(self) -> Mapping[FrontendKey, str]:
        """Reasons of frontends that are not served."""
        return self._problems

    async def probe(self) -> None:
        """Bind an address of the range."""
        try:
            with socket.socket() as line:
                line.bind(("127.64.0.1", 0))
        except OSError as error:
            raise Unavailable(f"the relay cannot bind loopback addresses: {error}") from error

    async def apply(self, frontends: Sequence[Frontend]) -> None:
        """Send the difference to the process, or the whole table if its state is not known."""
        desired = {each.key: each for each in frontends}
        async with self._lock:
            known = self._table if self._process.connected else None
            if known is None:
                request = Request(put=tuple(map(Entry.of, frontends)), whole=True)
            else:
                put = tuple(Entry.of(new) for key, new in desired.items() if known.get(key) != new)
                request = Request(put=put, delete=tuple(key for key in known if key not in desired))
            if known is None or request.put or request.delete:
                self._table = None
                await self._send(request)
                self._table = desired
            if self._watch is None:
                self._watch = asyncio.create_task(self._keep_running(), name="relay process")

    async def _send(self, request: Request) -> None:
        answer = await self._process.call(msgspec.msgpack.encode(request))
        problems = dict(msgspec.msgpack.decode(answer, type=Reply).problems)
        for key, text in problems.items():
            if self._problems.get(key) != text:
                log.warning("service %s/%s, port %s is not served: %s", *key, text)
        self._problems = problems

    async def _keep_running(self) -> None:
        while True:
            await self._process.ended()
            table = self._table
            if table is not None:
                log.warning("the relay process ended and is started again")
                try:
                    await self.apply(tuple(table.values()))
                    continue
                except Unavailable as error:
                    log.warning("the relay process does not start: %s", error)
                    self._table = table
            await asyncio.sleep(RESTART_SECONDS)

    async def traffic(self) -> Mapping[FrontendKey, Traffic]:
        """Return the counters of the process; bytes are payload."""
        async with self._lock:
            if self._table is None:
                return {}
            answer = await self._process.call(msgspec.msgpack.encode(Request()))
        return dict(msgspec.msgpack.decode(answer, type=Reply).traffic)

    async def close(self) -> None:
        """Close the control connection; the process goes on."""
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch
            self._watch = None
        async with self._lock:
            self._table = None
            await self._process.close()

    async def remove(self) -> None:
        """End the process and delete its folder."""
        await self.close()
        await self._process.stop()
        await asyncio.get_running_loop().run_in_executor(None, lambda: shutil.rmtree(self._folder, ignore_errors=True))
