"""Log sinks for syslog (RFC 5424): datagrams (RFC 5426), octet-counted streams (RFC 6587), or a local socket.

Syslog has no acknowledgements. Over a stream a batch counts as delivered when the other machine has received it; the
last batch is sent again if the connection turns out to be broken. Lost datagrams are not detected.
"""

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Sequence
from datetime import UTC, datetime
from ipaddress import ip_address
from urllib.parse import unquote, urlsplit

from mandor.agent.shipping.connection import Connection, Pair
from mandor.agent.shipping.line import SEVERITIES, Line
from mandor.agent.shipping.sink import Sink
from mandor.errors import Unavailable
from mandor.lib.egress import STRICT, Egress
from mandor.model.log_sink import PORTS, SYSLOG_UNIX, LogSinkSpec

USER, DAEMON = 1 << 3, 3 << 3
"""Facilities of tasks and of the agent."""
ENTERPRISE = "mandor@32473"
DATAGRAM_MOST = 8192
"""Largest size in bytes of a datagram; longer messages are cut, since receivers need not accept more."""
LOOK_SECONDS = 0.005
SYSTEM_LOG = "/dev/log"
"""The local socket that is always allowed."""


def message(line: Line) -> bytes:
    """Return `<14>1 TIME NODE WORKLOAD INSTANCE STREAM [mandor@… …] TEXT`, with `-` for missing values."""
    priority = (USER if line.instance else DAEMON) + SEVERITIES.get(line.severity, 6)
    at = datetime.fromtimestamp(line.at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    facts = {**line.facts, **line.labels}
    data = "".join(f' {_word(name, 32)}="{_escaped(value)}"' for name, value in facts.items())
    name, process = line.workload or "mandor-agent", line.instance or "-"
    head = f"<{priority}>1 {at} {_word(line.node, 255)} {_word(name, 48)} {_word(process, 128)} {line.stream}"
    return f"{head} [{ENTERPRISE}{data}] {line.text}".encode()


def _word(text: str, most: int) -> str:
    """Return a header field: printable characters without separators, at most `most`."""
    return "".join(letter if "!" <= letter <= "~" and letter not in '="]' else "_" for letter in text[:most]) or "-"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("]", r"\]")


class StreamSyslog(Sink):
    """Sends lines over a TCP stream."""

    def __init__(self, spec: LogSinkSpec, egress: Egress = STRICT) -> None:
        split, self._egress = urlsplit(spec.url), egress
        self._host, self._port = split.hostname or "", split.port or PORTS["syslog+tcp"]
        self._connection = Connection(f"{self._host}:{self._port}", float(spec.timeout), self._connect)
        self._unsure: Sequence[Line] = ()
        """The last batch, which the receiver may not have read when it closed the connection."""

    async def send(self, lines: Sequence[Line]) -> None:
        before = self._connection.made
        async with self._connection.use() as (_, writer):
            again = self._unsure if self._connection.made != before else ()
            writer.write(b"".join(_counted(message(each)) for each in (*again, *lines)))
            await writer.drain()
            await _arrived(writer)
        self._unsure = lines

    async def close(self) -> None:
        self._connection.drop()

    async def _connect(self) -> Pair:
        return await self._egress.connect(self._host, self._port)


def _counted(data: bytes) -> bytes:
    return b"%d %s" % (len(data), data)


async def _arrived(writer: asyncio.StreamWriter) -> None:
    """Wait until the other machine has acknowledged every byte."""
    peer = writer.get_extra_info("socket")
    while struct.unpack("i", fcntl.ioctl(peer.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"))[0]:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(LOOK_SECONDS)


class DatagramSyslog(Sink):
    """Sends datagrams over UDP or to a local socket."""

    def __init__(self, spec: LogSinkSpec, egress: Egress = STRICT) -> None:
        self._spec, self._egress = spec, egress
        self._socket: socket.socket | None = None

    async def send(self, lines: Sequence[Line]) -> None:
        try:
            await asyncio.to_thread(self._send, [message(each)[:DATAGRAM_MOST] for each in lines])
        except OSError as error:
            await self.close()
            raise Unavailable(f"{self._spec.url}: {error.strerror or error}") from error

    async def close(self) -> None:
        if self._socket is not None:
            open_one, self._socket = self._socket, None
            open_one.close()

    def _send(self, messages: Sequence[bytes]) -> None:
        if self._socket is None:
            self._socket = self._open()
        for each in messages:
            self._socket.send(each)

    def _open(self) -> socket.socket:
        split = urlsplit(self._spec.url)
        address: str | tuple[str, int]
        if self._spec.scheme == SYSLOG_UNIX:
            family, address = socket.AF_UNIX, unquote(split.path)
            if address != SYSTEM_LOG:
                self._egress.check_socket(address)
        else:
            host, port = split.hostname or "", split.port or PORTS["syslog+udp"]
            found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
            if not self._egress.names(host, port):
                self._egress.judge(ip_address(str(found[4][0]).partition("%")[0]), host, port)
            family, address = found[0], (str(found[4][0]), port)
        made = socket.socket(family, socket.SOCK_DGRAM)
        try:
            made.settimeout(float(self._spec.timeout))
            made.connect(address)
        except BaseException:
            made.close()
            raise
        return made
