"""Reads Endpoints and EndpointSlices: the addresses of Services without a selector."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import NamedTuple

from mandor.importers.kubernetes.meta import drop_labels, read_meta
from mandor.importers.kubernetes.shelf import place
from mandor.importers.part import Part
from mandor.model.service import ENDPOINTS_MOST

_SERVICE = "kubernetes.io/service-name"
_NO_HEALTH = "the address is used as soon as it is ready"


class Endpoint(NamedTuple):
    """One address with one port."""

    address: str
    port_name: str
    protocol: str
    port: int


@dataclass(slots=True)
class _Listed:
    part: Part
    endpoints: list[Endpoint]


@dataclass(slots=True)
class ServiceEndpoints:
    """Addresses of Services by namespace and name."""

    found: dict[tuple[str, str], list[_Listed]] = field(default_factory=dict)
    taken: set[tuple[str, str]] = field(default_factory=set)

    def read(self, part: Part, kind: str) -> None:
        part.text("apiVersion"), part.text("kind")
        meta = read_meta(part)
        drop_labels(part)
        if kind == "Endpoints":
            name, endpoints = meta.name, [each for subset in part.parts("subsets") for each in _of_subset(subset)]
        else:
            name, endpoints = meta.labels.get(_SERVICE, ""), _of_slice(part)
            part.part("metadata").ignore("name")
        self.found.setdefault((place(meta.namespace), name), []).append(_Listed(part, endpoints))

    def take(self, namespace: str, name: str) -> list[Endpoint]:
        """Return the addresses of a Service."""
        self.taken.add((namespace, name))
        return [each for listed in self.found.get((namespace, name), ()) for each in listed.endpoints]

    def drop_rest(self) -> None:
        """Report the objects that no Service uses."""
        for key, listed in self.found.items():
            for each in listed if key not in self.taken else ():
                each.part.drop_all("kind", "no Service without a selector has its name")


def external_addresses(
    part: Part, endpoints: list[Endpoint], ports: Mapping[str, tuple[str, str]]
) -> tuple[list[str], dict[str, int]]:
    """Return `external` of a service, and the target numbers of its ports unless `external` contains them.

    `ports`: names and protocols of the ports in the endpoints, by their names in the manifest.
    """
    by_port = {
        name: [each for each in endpoints if (each.port_name, each.protocol) == given] for name, given in ports.items()
    }
    if len(ports) == 1:
        (only,) = by_port.values()
        return _most(part, list(dict.fromkeys(_with_port(each) for each in only))), {}
    sets = {frozenset(each.address for each in found) for found in by_port.values()}
    numbers = {name: {each.port for each in found} for name, found in by_port.items()}
    if len(sets) != 1 or any(len(each) != 1 for each in numbers.values()):
        part.guess("kind", "it has several ports with different addresses", "write one `kind: service` for each port")
        return [], {}
    addresses = list(dict.fromkeys(each.address for each in endpoints))
    return _most(part, addresses), {name: min(each) for name, each in numbers.items()}


def _most(part: Part, addresses: list[str]) -> list[str]:
    if len(addresses) > ENDPOINTS_MOST:
        part.guess("kind", f"the first {ENDPOINTS_MOST} of its {len(addresses)} addresses are used")
    return addresses[:ENDPOINTS_MOST]


def _with_port(endpoint: Endpoint) -> str:
    address = f"[{endpoint.address}]" if ":" in endpoint.address else endpoint.address
    return f"{address}:{endpoint.port}"


def _of_subset(subset: Part) -> list[Endpoint]:
    subset.drop("notReadyAddresses", _NO_HEALTH)
    addresses = []
    for each in subset.parts("addresses"):
        addresses.append(_address(each, "ip", each.text("ip") or ""))
        for key in ("hostname", "nodeName", "targetRef"):
            each.ignore(key)
    return [Endpoint(address, *port) for port in _ports(subset) for address in addresses]


def _of_slice(part: Part) -> list[Endpoint]:
    if (kind := part.text("addressType")) not in {"IPv4", "IPv6", None}:
        raise part.wrong("addressType", f"{str(kind)[:40]!r} is not supported", "a Service of type ExternalName")
    addresses = []
    for each in part.parts("endpoints"):
        for key in ("hostname", "nodeName", "targetRef", "zone", "hints", "deprecatedTopology"):
            each.ignore(key)
        listed = [_address(each, "addresses", text) for text in each.texts("addresses")]
        conditions = each.part("conditions")
        for key in ("serving", "terminating"):
            conditions.ignore(key)
        if conditions.flag("ready", default=True):
            addresses += listed
        else:
            each.drop("addresses", _NO_HEALTH)
    return [Endpoint(address, *port) for port in _ports(part) for address in addresses]


def _ports(part: Part) -> list[tuple[str, str, int]]:
    found = []
    for each in part.parts("ports"):
        number, name = each.whole("port"), each.text("name") or ""
        protocol = (each.text("protocol") or "TCP").lower()
        each.drop("appProtocol", "a port is tcp or udp")
        if number is None or not 1 <= number <= 65535:
            raise each.wrong("port", "a port has a number from 1 to 65535")
        found.append((name, protocol, number))
    return found


def _address(part: Part, key: str, text: str) -> str:
    try:
        return str(ip_address(text))
    except ValueError:
        raise part.wrong(key, f"{text[:80]!r} is not an IP address") from None
