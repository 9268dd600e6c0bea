"""Egress: which addresses a program calls for what an API object says, judged after names are resolved.

Settings that an administrator writes (files, flags) are trusted and do not pass here. A host that stands in an object
of the API does: a webhook, an event bus, a log sink, a provisioner of a node pool. The policy is a list of patterns:

* `*`: every address except loopback, link-local (with the metadata services of clouds), unspecified, multicast and
  reserved ones;
* `HOST`, `HOST:PORT`, `*.DOMAIN`: a host by its name, wherever it leads;
* `10.0.0.0/8`, `127.0.0.1`, `[::1]:9090`: addresses, after names are resolved;
* `unix:/PATH`: a socket of this machine.

A connection is made to the very address that was judged, so a name that resolves to something else a moment later gains
nothing. An IPv4 address inside an IPv6 one (mapped, compatible, 6to4, NAT64, Teredo) is judged as the IPv4 address.
"""

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, NamedTuple
from urllib.parse import urlsplit

EVERYWHERE = "*"
UNIX = "unix:"
PATTERNS_MOST = 1000

Address = IPv4Address | IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""(host, port) → addresses; `OSError` if there are none."""

_NAT64 = IPv6Network("64:ff9b::/96")


class Refused(OSError):
    """The policy does not allow this address. An OSError, so that callers treat it as a connection that failed."""

    def __init__(self, message: str) -> None:
        super().__init__(errno.EACCES, message)

    def __str__(self) -> str:
        return str(self.strerror)


class _Pattern(NamedTuple):
    name: str
    network: IPv4Network | IPv6Network | None
    port: int | None

    def names(self, host: str, port: int) -> bool:
        if self.network is not None or self.name == EVERYWHERE or self.port not in {None, port}:
            return False
        if self.name.startswith("*."):
            return host.endswith(self.name[1:]) and len(host) > len(self.name) - 1
        return host == self.name

    def holds(self, address: Address, port: int) -> bool:
        if self.port not in {None, port}:
            return False
        if self.network is not None:
            return address in self.network
        return self.name == EVERYWHERE and not special(address)


@dataclass(frozen=True, slots=True)
class Target:
    """A host that may be called."""

    host: str
    port: int
    addresses: tuple[str, ...]
    """Addresses to connect to; empty if the host is allowed by name and resolved as usual."""


class Egress:
    """The egress policy. `allow` lists patterns; raises `ValueError` for an invalid one."""

    def __init__(self, allow: Iterable[str] = (EVERYWHERE,), resolve: Resolve | None = None) -> None:
        self.patterns = tuple(allow)
        if len(self.patterns) > PATTERNS_MOST:
            raise ValueError(f"{len(self.patterns)} patterns; at most {PATTERNS_MOST} are allowed")
        self._sockets = {each.removeprefix(UNIX) for each in self.patterns if each.startswith(UNIX)}
        self._patterns = [_parse(each) for each in self.patterns if not each.startswith(UNIX)]
        self._resolve = resolve or _system_resolve

    def check_url(self, url: str, usual_port: int = 0) -> None:
        """Raise `Refused` if the host of a URL is an address that is not allowed. A host name is checked when it is
        called.
        """
        host, port = host_of(url, usual_port)
        address = address_of(host)
        if address is not None and not self.names(host, port):
            self.judge(address, host, port)

    def check_socket(self, path: str) -> None:
        """Raise `Refused` unless a pattern lists this socket."""
        if path not in self._sockets:
            raise Refused(f"{path} is a socket that `egress_allow` does not allow: add unix:{path}")

    def names(self, host: str, port: int) -> bool:
        """Return whether a pattern matches this host by name."""
        host = host.lower().rstrip(".")
        return any(each.names(host, port) for each in self._patterns)

    def lists(self, host: str, port: int) -> bool:
        """Return whether a pattern other than `*` matches this host or its address."""
        address = address_of(host)
        if address is None or self.names(host, port):
            return self.names(host, port)
        plain = unwrapped(address)
        return any(each.network is not None and each.holds(plain, port) for each in self._patterns)

    def judge(self, address: Address, host: str, port: int) -> None:
        """Raise `Refused` unless a pattern includes this address."""
        plain = unwrapped(address)
        if not any(each.holds(plain, port) for each in self._patterns):
            shown = f"{host} ({plain})" if host != str(plain) else host
            kind = f"a {special(plain)} address" if special(plain) else "an address"
            raise Refused(f"{shown} is {kind} that `egress_allow` does not allow")

    async def target(self, host: str, port: int) -> Target:
        """Resolve a host and check all its addresses; raises `Refused` if one of them is not allowed."""
        host = host.strip("[]")
        if self.names(host, port):
            return Target(host, port, ())
        address = address_of(host)
        found = [str(address)] if address is not None else list(await self._resolve(host, port))
        if not found:
            raise Refused(f"{host} has no address")
        for each in found:
            self.judge(ip_address(each.partition("%")[0]), host, port)
        return Target(host, port, tuple(found))

    async def connect(self, host: str, port: int, **more: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection to a checked address, like `asyncio.open_connection`."""
        target = await self.target(host, port)
        last: OSError | None = None
        for each in target.addresses or (target.host,):
            try:
                return await asyncio.open_connection(each, port, **more)
            except OSError as error:
                last = error
        assert last is not None
        raise last

    def socket_factory(self, url: str) -> Callable[[Any], socket.socket] | None:
        """Return a factory of sockets for `aiohttp.TCPConnector` that checks each address. None if the host of the
        URL is allowed by name, so that its addresses are not checked.
        """
        host, port = host_of(url)
        if self.names(host, port):
            return None

        def make(info: tuple[int, int, int, str, tuple[Any, ...]]) -> socket.socket:
            self.judge(ip_address(str(info[4][0]).partition("%")[0]), host, int(info[4][1]))
            return socket.socket(info[0], info[1], info[2])

        return make


def host_of(url: str, usual_port: int = 0) -> tuple[str, int]:
    """Return host and port of a URL; raises `Refused` for a URL that parsers could read in two ways."""
    try:
        split = urlsplit(url)
        host, port = split.hostname or "", split.port
    except ValueError as error:
        raise Refused(f"{url[:100]!r} is not a URL: {error}") from None
    if not host or "@" in split.netloc or "\\" in url or any(letter <= " " or letter == "\x7f" for letter in url):
        raise Refused(f"{url[:100]!r} is not the URL of a host")
    return host.lower().rstrip("."), port or usual_port or {"http": 80, "https": 443}.get(split.scheme, 0)


def address_of(host: str) -> Address | None:
    """Return the address that a host denotes, in any notation that the system accepts: `127.1`, `0x7f000001`,
    `2130706433`.
    """
    try:
        return ip_address(host.partition("%")[0])
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(host))
    except (OSError, UnicodeError):
        return None


def unwrapped(address: Address) -> Address:
    """Return the IPv4 address embedded in an IPv6 address, if there is one."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    number = int(address)
    if address in _NAT64 or (number >> 32 == 0 and number > 1):
        return IPv4Address(number & 0xFFFFFFFF)
    return address


def special(address: Address) -> str:
    """Return the reason why `*` excludes this address; empty if it is included."""
    if address.is_loopback or (isinstance(address, IPv4Address) and int(address) >> 24 == 0):
        return "loopback" if address.is_loopback else "unspecified"
    if address.is_link_local or str(address) == "fd00:ec2::254":
        return "link-local"
    if address.is_unspecified:
        return "unspecified"
    if address.is_multicast or str(address) == "255.255.255.255":
        return "multicast"
    if isinstance(address, IPv6Address) and address.is_site_local:
        return "site-local"
    return "reserved" if isinstance(address, IPv4Address) and address.is_reserved else ""


def _parse(text: str) -> _Pattern:
    text = text.strip().lower()
    if text == EVERYWHERE:
        return _Pattern(EVERYWHERE, None, None)
    try:
        return _Pattern("", ip_network(text, strict=False), None)
    except ValueError:
        pass
    host, colon, digits = text.rpartition(":")
    port = int(digits) if colon and digits.isascii() and digits.isdecimal() else None
    host = host if port is not None else text
    if port is not None and not 0 < port < 65536:
        raise ValueError(f"{text[:80]!r} has an invalid port")
    bare = host.removeprefix("[").removesuffix("]")
    try:
        return _Pattern("", ip_network(bare, strict=False), port)
    except ValueError:
        pass
    words = host.removeprefix("*.")
    if not words or not words.isascii() or not all(letter.isalnum() or letter in "-._" for letter in words):
        raise ValueError(f"{text[:80]!r} is not a pattern: write *, HOST, HOST:PORT, *.DOMAIN or 10.0.0.0/8")
    return _Pattern(host.rstrip("."), None, port)


async def _system_resolve(host: str, port: int) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port or None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


STRICT = Egress()
"""The default policy."""
LOOPBACK = ("localhost", "127.0.0.0/8", "::1")
"""Patterns that `mandor dev` allows in addition to `*`."""
