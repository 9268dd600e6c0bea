"""Deletes connection tracking entries of UDP flows by netlink, so that clients leave endpoints that are gone."""

import errno
import os
import socket
import struct
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from typing import NamedTuple

_NETLINK_NETFILTER = 12
_GET, _DELETE = 0x0101, 0x0102
_REQUEST, _ACK, _DUMP = 1, 4, 0x300
_ERROR, _DONE = 2, 3
_TUPLE_ORIGINAL, _TUPLE_REPLY = 1, 2
_BUFFER_BYTES = 1 << 20
_SECONDS_MOST = 10.0


class Flow(NamedTuple):
    """One tracked UDP flow."""

    address: str
    """Destination to which the client sends."""
    port: int
    endpoint: str
    """Address that answers."""
    endpoint_port: int


def delete_flows(unwanted: Callable[[Flow], bool]) -> int:
    """Delete the UDP entries that the function selects and return their number; `OSError`: the kernel refuses."""
    deleted = 0
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as line:
        line.settimeout(_SECONDS_MOST)
        line.bind((0, 0))
        for family in (socket.AF_INET, socket.AF_INET6):
            chosen = [raw for flow, raw in _dump(line, family) if unwanted(flow)]
            for raw in chosen:
                line.send(_message(_DELETE, _REQUEST | _ACK, family, struct.pack("HH", len(raw) + 4, 0x8001) + raw))
                code = next(code for kind, code, _ in _receive(line) if kind == _ERROR)
                if code not in (0, -errno.ENOENT):
                    raise OSError(-code, os.strerror(-code))
                deleted += 1
    return deleted


def _dump(line: socket.socket, family: int) -> list[tuple[Flow, bytes]]:
    line.send(_message(_GET, _REQUEST | _DUMP, family))
    found: list[tuple[Flow, bytes]] = []
    while True:
        for kind, code, body in _receive(line):
            if kind == _DONE:
                return found
            if kind == _ERROR:
                raise OSError(-code, os.strerror(-code))
            parts = dict(_attributes(body[4:]))
            original, reply = _tuple(parts.get(_TUPLE_ORIGINAL, b"")), _tuple(parts.get(_TUPLE_REPLY, b""))
            if original is not None and reply is not None:
                flow = Flow(original[1], original[3], reply[0], reply[2])
                found.append((flow, parts[_TUPLE_ORIGINAL]))


def _tuple(data: bytes) -> tuple[str, str, int, int] | None:
    """Source, destination and their ports; None: not UDP."""
    parts = dict(_attributes(data))
    addresses, protocol = dict(_attributes(parts.get(1, b""))), dict(_attributes(parts.get(2, b"")))
    if protocol.get(1, b"")[:1] != bytes([socket.IPPROTO_UDP]) or not {2, 3} <= protocol.keys():
        return None
    source, destination = addresses.get(1) or addresses.get(3), addresses.get(2) or addresses.get(4)
    if source is None or destination is None:
        return None
    ports = (int.from_bytes(protocol[each][:2], "big") for each in (2, 3))
    return str(ip_address(source)), str(ip_address(destination)), *ports  # type: ignore[return-value]


def _message(kind: int, flags: int, family: int, body: bytes = b"") -> bytes:
    payload = struct.pack("BBH", family, 0, 0) + body
    return struct.pack("IHHII", 16 + len(payload), kind, flags, 1, 0) + payload


def _receive(line: socket.socket) -> Iterator[tuple[int, int, bytes]]:
    data = line.recv(_BUFFER_BYTES)
    while len(data) >= 16:
        length, kind, _, _, _ = struct.unpack_from("IHHII", data)
        body = data[16:length]
        yield kind, struct.unpack_from("i", body)[0] if kind == _ERROR else 0, body
        data = data[(length + 3) & ~3 :]


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 4:
        length, kind = struct.unpack_from("HH", data)
        if length < 4:
            return
        yield kind & 0x3FFF, data[4:length]
        data = data[(length + 3) & ~3 :]
