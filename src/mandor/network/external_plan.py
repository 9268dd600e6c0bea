"""Chooses the addresses outside of the cluster that a node checks, and those that get no traffic from it: pure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

from mandor.model.meta import Key
from mandor.model.service import Service, ServiceHealth, split_endpoint
from mandor.network.addresses import LOOPBACK, ROUTED

CHECKED_MOST = 4096
"""Addresses that one node checks at most; further ones get traffic without a check."""
_VIRTUAL = tuple(ip_network(each) for one in (LOOPBACK, ROUTED) for each in (one.ipv4, one.ipv6) if each)

Refusal = Callable[[str, int], str]
"""(address, port) → the reason why the node must not connect there; empty: it may."""


@dataclass(frozen=True, slots=True)
class CheckedAddress:
    """One address of `external` with its check."""

    service: Key
    text: str
    """The address as `external` contains it."""
    address: str
    port: int
    """Port that is checked."""
    health: ServiceHealth


def check_plan(services: Iterable[Service], refusal: Refusal) -> tuple[list[CheckedAddress], dict[Key, dict[str, str]]]:
    """Return the addresses to check, and the refused addresses of each service with their reasons."""
    checked: list[CheckedAddress] = []
    refused: dict[Key, dict[str, str]] = {}
    for service in services:
        health = service.spec.health
        for text in service.spec.external:
            address, ports = _ports_of(service, text)
            used = ports if health is None else [*ports, health.tcp or ports[0]]
            reason = next(filter(None, (refusal(address, port) for port in used)), "")
            if reason:
                refused.setdefault(service.key, {})[text] = reason
            elif health is not None and len(checked) < CHECKED_MOST:
                checked.append(CheckedAddress(service.key, text, address, used[-1], health))
    return checked, refused


def is_virtual(address: str) -> bool:
    """Return whether the address is one of services: as an endpoint it would be balanced again, without end."""
    found = ip_address(address)
    plain = getattr(found, "ipv4_mapped", None) or found
    return any(plain in each for each in _VIRTUAL)


def _ports_of(service: Service, text: str) -> tuple[str, Sequence[int]]:
    """Return the address, and the port numbers at which the service's ports reach it."""
    address, number = split_endpoint(text)
    if number is not None:
        return address, [number]
    return address, [
        each.target if isinstance(each.target, int) else each.port for each in service.spec.port.values()
    ] or [0]
