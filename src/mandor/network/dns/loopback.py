"""Addresses on the loopback interface, added and removed by netlink (RFC 3549)."""

import errno
import os
import socket
import struct
from ipaddress import IPv4Address

_NETLINK_ROUTE = 0
_NEW_ADDRESS, _DELETE_ADDRESS, _ERROR = 20, 21, 2
_REQUEST, _ACKNOWLEDGE, _EXCLUSIVE, _CREATE = 0x1, 0x4, 0x200, 0x400
_HOST_SCOPE = 254
_ADDRESS, _LOCAL = 1, 2
_HEADER = struct.Struct("=IHHII")


def add_address(address: str) -> bool:
    """Add an IPv4 address to the loopback interface; return whether it was missing. Needs CAP_NET_ADMIN."""
    code = _change(address, _NEW_ADDRESS, _REQUEST | _ACKNOWLEDGE | _CREATE | _EXCLUSIVE)
    if code not in {0, errno.EEXIST}:
        raise OSError(code, os.strerror(code))
    return code == 0


def remove_address(address: str) -> None:
    """Remove an IPv4 address from the loopback interface, if it is there."""
    code = _change(address, _DELETE_ADDRESS, _REQUEST | _ACKNOWLEDGE)
    if code not in {0, errno.EADDRNOTAVAIL}:
        raise OSError(code, os.strerror(code))


def _change(address: str, kind: int, flags: int) -> int:
    """Return the error number of the kernel's answer; 0: done."""
    packed = IPv4Address(address).packed
    index = socket.if_nametoindex("lo")
    body = struct.pack("=BBBBI", socket.AF_INET, 32, 0, _HOST_SCOPE, index)
    body += b"".join(struct.pack("=HH", 8, each) + packed for each in (_LOCAL, _ADDRESS))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_ROUTE) as line:
        line.settimeout(5)
        line.send(_HEADER.pack(_HEADER.size + len(body), kind, flags, 1, 0) + body)
        answer = line.recv(4096)
    _, found, *_ = _HEADER.unpack_from(answer)
    if found != _ERROR:
        raise OSError(errno.EPROTO, "the kernel sent an unknown answer")
    (code,) = struct.unpack_from("=i", answer, _HEADER.size)
    return -int(code)
