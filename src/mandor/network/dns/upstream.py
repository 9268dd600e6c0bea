"""Asks the name servers of the machine, with bounded numbers of pending queries and bounded waits."""

import asyncio
import secrets
import struct
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from mandor.network.dns.message import NO_ERROR, NO_NAME, code_of, is_answer_to, is_truncated

PENDING_MOST = 1_024  # queries that wait for other servers
PENDING_PER_CLIENT_MOST = 128
SERVERS_MOST = 3
ANSWER_SECONDS_MOST = 2.0  # per server
ROUNDS = 2  # attempts per server
PORT = 53
RESOLV_CONF = Path("/etc/resolv.conf")
LOOK_SECONDS = 2.0  # between two looks at the file of name servers

Place = tuple[str, int]


class Upstream:
    """The name servers that answer queries about other names."""

    def __init__(self, servers: Sequence[Place] = (), file: Path = RESOLV_CONF) -> None:
        """`servers`: asked instead of those in the machine's resolver configuration."""
        self._given, self._file = tuple(servers), file
        self._own: frozenset[Place] = frozenset()
        self._servers: tuple[Place, ...] = ()
        self._looked, self._changed = float("-inf"), -1
        self._pending: Counter[str] = Counter()
        self._total = 0

    def exclude(self, own: Place) -> None:
        """Never ask this server, which is this process itself."""
        self._own, self._changed, self._looked = frozenset({own}), -1, float("-inf")

    async def ask(self, query: bytes, client: str, *, tcp: bool = False) -> bytes | None:
        """Return the answer to a query, both without their ids; None: no server answered, or too many queries wait."""
        if self._total >= PENDING_MOST or self._pending[client] >= PENDING_PER_CLIENT_MOST:
            return None
        self._total += 1
        self._pending[client] += 1
        try:
            return await self._ask(query, tcp=tcp)
        finally:
            self._total -= 1
            self._pending[client] -= 1
            if not self._pending[client]:
                del self._pending[client]

    async def _ask(self, query: bytes, *, tcp: bool) -> bytes | None:
        refused: bytes | None = None
        for _ in range(ROUNDS):
            for server in self._known():
                message = secrets.token_bytes(2) + query
                try:
                    async with asyncio.timeout(ANSWER_SECONDS_MOST):
                        answer = await (_over_tcp(server, message) if tcp else _over_udp(server, message))
                except (OSError, EOFError, TimeoutError):
                    continue
                if code_of(answer) in {NO_ERROR, NO_NAME}:
                    return answer[2:]
                refused = answer[2:]
            if refused is not None:
                break
        return refused

    async def ask_completely(self, query: bytes, client: str) -> bytes | None:
        """Return the answer to a query; one that was truncated is asked for over TCP."""
        answer = await self.ask(query, client)
        if answer is not None and is_truncated(b"\0\0" + answer):
            return await self.ask(query, client, tcp=True)
        return answer

    def _known(self) -> tuple[Place, ...]:
        """Return the servers, read again when the file has changed."""
        now = asyncio.get_running_loop().time()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            found = self._given
            if not found:
                try:
                    changed = self._file.stat().st_mtime_ns
                    if changed == self._changed:
                        return self._servers
                    self._changed = changed
                    found = read_servers(self._file.read_text(encoding="utf-8", errors="replace"))
                except OSError:
                    return self._servers
            self._servers = tuple(each for each in found if each not in self._own)[:SERVERS_MOST]
        return self._servers


def read_servers(text: str) -> tuple[Place, ...]:
    """Return the name servers in a resolver configuration."""
    words = (line.split() for line in text.splitlines())
    return tuple((each[1], PORT) for each in words if len(each) > 1 and each[0] == "nameserver")


class _Exchange(asyncio.DatagramProtocol):
    """Waits for the answer to one query on a socket with a port of its own."""

    def __init__(self, query: bytes) -> None:
        self._query = query
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, place: object) -> None:
        if not self.answer.done() and is_answer_to(self._query, data):
            self.answer.set_result(data)

    def error_received(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


async def _over_udp(server: Place, query: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    transport, exchange = await loop.create_datagram_endpoint(lambda: _Exchange(query), remote_addr=server)
    try:
        transport.sendto(query)
        return await exchange.answer
    finally:
        transport.close()


async def _over_tcp(server: Place, query: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*server, limit=1 << 17)
    try:
        writer.write(struct.pack("!H", len(query)) + query)
        (length,) = struct.unpack("!H", await reader.readexactly(2))
        answer = await reader.readexactly(length)
    finally:
        writer.close()
    if not is_answer_to(query, answer):
        raise OSError("the answer belongs to another query")
    return answer
