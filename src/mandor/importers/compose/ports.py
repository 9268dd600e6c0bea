"""Compose's `ports` and `expose`: ports of a task, and the ports of the node that lead there."""

import ipaddress
import re
from typing import Any

from mandor.importers.base import fitting_name
from mandor.importers.compose.draft import Draft
from mandor.importers.part import Part

_SHORT = re.compile(
    r"(?:(?P<address>\[[^\]]*\]|[^:]*):(?=[^:]*:))?(?:(?P<host>[\d-]*):)?(?P<port>\d+(?:-\d+)?)(?:/(?P<protocol>\w+))?"
)
RANGE_MOST = 64


def read_ports(draft: Draft, service: Part) -> None:
    for index, each in enumerate(service.mixed("ports")):
        if isinstance(each, Part):
            _long(draft, each)
        else:
            _short(draft, service, "ports", index, each)
    for index, text in enumerate(service.texts("expose")):
        _short(draft, service, "expose", index, text)


def _long(draft: Draft, part: Part) -> None:
    target = part.whole("target")
    if target is None:
        raise part.wrong("target", "a port has a `target`")
    protocol = part.text("protocol", "tcp") or "tcp"
    address = part.text("host_ip", "") or ""
    published = part.text("published")
    if (mode := part.text("mode", "host")) == "ingress":
        part.guess("mode", "the port is published on the node of the instance only; there is no routing mesh")
    elif mode != "host":
        raise part.wrong("mode", f"{mode!r} is neither host nor ingress")
    if "app_protocol" in part:
        part.drop("app_protocol", "ports have no application protocol")
    name = part.text("name")
    try:
        hosts: list[int | None] = list(_range(published)) if published else [None]
    except ValueError as error:
        raise part.wrong("published", str(error)) from None
    if published and len(hosts) > 1:
        part.guess("published", "the first of these ports is used")
    _add(draft, part, "host_ip", None, target, hosts[0], protocol, address, name)


def _short(draft: Draft, service: Part, key: str, index: int, text: str) -> None:
    match = _SHORT.fullmatch(text.strip())
    if match is None:
        raise service.wrong(key, f"{text[:40]!r} is not a port; write `80`, `8080:80` or `127.0.0.1:53:53/udp`")
    try:
        targets = _range(match["port"])
        hosts: list[int | None] = list(_range(match["host"])) if match["host"] else [None] * len(targets)
    except ValueError as error:
        raise service.wrong(key, str(error)) from None
    if len(hosts) != len(targets):
        if len(targets) > 1:
            raise service.wrong(key, f"{text[:40]!r} names ranges of different lengths")
        hosts = hosts[:1]
        service.note(key, "guessed", f"of the node's ports {match['host']} the first is used")
    for target, host in zip(targets, hosts, strict=True):
        exposed = key == "expose"
        _add(
            draft, service, key, index, target, host, match["protocol"] or "tcp", match["address"] or "", None, exposed
        )


def _add(
    draft: Draft,
    part: Part,
    key: str,
    index: int | None,
    target: int,
    host: int | None,
    protocol: str,
    address: str,
    name: str | None,
    exposed: bool = False,
) -> None:
    protocol = protocol.lower()
    if not 1 <= target <= 65535 or not 1 <= (host or 1) <= 65535:
        raise part.wrong(key, f"{target if not 1 <= target <= 65535 else host} is not a port number")
    if protocol not in {"tcp", "udp"}:
        _note_dropped(part, key, index, f"{protocol} is not supported; ports are tcp or udp")
        return
    port: dict[str, Any] = {"port": target}
    if not exposed:
        port["host"] = host or "auto"
    if address and not exposed:
        if _loopback(address):
            del port["host"]
            _note_dropped(
                part,
                key,
                index,
                f"the port is not published: it would be open on all addresses, not only on {address}",
            )
        elif address not in {"0.0.0.0", "::", "[::]"}:
            part.note(key, "guessed", f"the port is published on all addresses of the node, not only on {address}")
    if protocol != "tcp":
        port["protocol"] = protocol
    wanted = fitting_name(name) if name else f"port-{target}" + ("" if protocol == "tcp" else f"-{protocol}")
    number = 2
    while wanted in draft.ports:
        if exposed or draft.ports[wanted] == port:
            return
        wanted, number = f"port-{target}-{number}", number + 1
    draft.ports[wanted] = port


def _note_dropped(part: Part, key: str, index: int | None, why: str) -> None:
    if index is not None and isinstance(part.peek(key), list):
        part.drop_item(key, index, why)
    else:
        part.note(key if key in part else "target", "dropped", why)


def _loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address == "localhost"


def _range(text: str) -> list[int]:
    first, dash, last = text.partition("-")
    try:
        low, high = int(first), int(last) if dash else int(first)
    except ValueError:
        raise ValueError(f"{text!r} is not a port, nor a range of them") from None
    if not low <= high < low + RANGE_MOST:
        raise ValueError(f"{text} is not a range of at most {RANGE_MOST} ports")
    return list(range(low, high + 1))
