"""Chooses the name server of this node."""

from collections.abc import Sequence
from ipaddress import IPv4Address
from pathlib import Path

from mandor.agent.name_keeper import NameServer
from mandor.errors import Invalid
from mandor.model.service import split_endpoint

AUTO, OFF = "auto", "off"
HINT = "`off`, `auto`, or an IPv4 address that containers reach, such as 169.254.53.53"


def make_name_server(dns: str, upstream: Sequence[str], data: Path) -> NameServer | None:
    """Return the name server; None: the node has none. `Invalid`: a setting has no meaning."""
    servers = tuple(_server(each) for each in upstream)
    if dns == OFF:
        return None
    from mandor.network.dns.names import NameServerProcess
    from mandor.network.dns.wire import candidates

    addresses = candidates() if dns == AUTO else (_address(dns),)
    folder = data / "network" / "dns"
    return NameServer(NameServerProcess(folder, addresses, upstream=servers), folder)


async def remove_name_server(data: Path) -> None:
    """End the name server that agents of this directory have used."""
    from mandor.network.dns.names import NameServerProcess

    folder = data / "network" / "dns"
    if folder.exists():
        await NameServerProcess(folder, ()).remove()


def _address(text: str) -> str:
    try:
        found = IPv4Address(text)
    except ValueError:
        raise Invalid(f"`dns` has no meaning with the value {text[:80]!r}", hint=HINT) from None
    if found.is_loopback or found.is_unspecified or found.is_multicast:
        raise Invalid(f"containers cannot reach a name server at {found}", hint=HINT)
    return str(found)


def _server(text: str) -> tuple[str, int]:
    try:
        address, port = split_endpoint(text)
    except ValueError as error:
        raise Invalid(f"`dns_upstream`: {error}", hint="10.0.0.53 or 10.0.0.53:5353") from None
    return address, port or 53
