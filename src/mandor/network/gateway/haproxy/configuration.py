"""Translates the state of a gateway into a configuration of HAProxy with its maps and its list of certificates. Pure.

A configuration has a generation: a hash of everything that only a reload can change. Endpoints in server slots,
certificates, challenges and redirects to HTTPS are not part of it, because the runtime API changes them.
"""

import hashlib
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mandor.network.gateway.base import CHALLENGE_PATH, CertificateKey, GatewayRoute, GatewayState
from mandor.network.gateway.haproxy.backend import backend_lines, tcp_backend_lines
from mandor.network.gateway.haproxy.slots import Slots
from mandor.network.gateway.haproxy.word import map_line, name, quoted
from mandor.network.gateway.routing import prefix_of, rank

CONFIG, CERTIFICATES, CERTIFICATE_LIST = "haproxy.cfg", "certificates", "certificates.list"
SOCKET, MASTER_SOCKET = "haproxy.sock", "master.sock"
HOSTS, EXACT, PREFIXES = "hosts.map", "exact.map", "prefixes.map"
SECURE, CHALLENGES = "secure.map", "challenges.map"
RUNTIME_MAPS = (SECURE, CHALLENGES)
"""Maps that change at run time."""
BUFFER_BYTES = 32768
"""Size of HAProxy's buffers: the largest head of a request, and the largest certificate at run time."""
WORKERS_MOST = 50  # workers of earlier configurations that still serve connections; the oldest is ended beyond that
ANY_HOST = "any"
_HEAD = """\
# Written by Mandor and replaced at each change.
global
    description {generation}
    log stdout format raw daemon notice
    stats socket {socket} mode 600 level admin expose-fd listeners
    stats timeout 1m
    mworker-max-reloads {workers}
    tune.bufsize {buffer}
    tune.ssl.default-dh-param 2048
    ssl-default-bind-options ssl-min-ver TLSv1.2

defaults
    log global
    mode http
    option dontlog-normal
    option dontlognull
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    timeout tunnel 1h
    timeout queue 5s
    timeout http-request 10s
    timeout http-keep-alive 60s
    retries 0
"""


@dataclass(frozen=True, slots=True)
class Listen:
    """An address and port on which the gateway accepts connections."""

    address: str
    port: int

    @property
    def text(self) -> str:
        parsed = ipaddress.ip_address(self.address)
        if parsed.version == 4:
            return f"{parsed}:{self.port}"
        return f"[{parsed}]:{self.port}" + (" v4v6" if parsed.is_unspecified else "")


@dataclass(frozen=True, slots=True)
class HaproxySettings:
    """Folder, addresses and ports of the proxy."""

    folder: Path
    """Folder of the configuration and the sockets; HAProxy and its caller must see it at the same path."""
    http: tuple[Listen, ...]
    https: tuple[Listen, ...]
    tcp_address: str = "0.0.0.0"
    https_port: int = 443
    """Port of HTTPS in the URLs of redirects."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """All files of HAProxy."""

    generation: str
    config: str
    maps: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Content of the maps by file name."""
    hosts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Certificates for HTTPS: host names by file name; empty: the names in the certificate."""

    def map_text(self, file: str) -> str:
        return "".join(map_line(key, value) for key, value in self.maps[file].items())

    def list_text(self, folder: Path) -> str:
        """Return the list of certificates that HAProxy reads."""
        lines = (list_line(folder, file, hosts) for file, hosts in self.hosts.items())
        return "".join(f"{line}\n" for line in lines)


def list_line(folder: Path, file: str, hosts: frozenset[str]) -> str:
    """Return a line of the list of certificates."""
    for host in hosts:
        name(host.removeprefix("*."))
    return " ".join([certificate_path(folder, file), *sorted(hosts)])


def certificate_path(folder: Path, file: str) -> str:
    return str(folder / CERTIFICATES / file)


def certificate_file(key: CertificateKey) -> str:
    """Return the file name of a certificate."""
    return name(f"{key.namespace}+{key.secret}.pem")


def backend_of(route: GatewayRoute) -> str:
    """Return the name of the backend of a route."""
    return name(f"{route.key.namespace}:{route.key.name}")


def render(state: GatewayState, slots: Mapping[str, Slots], settings: HaproxySettings) -> Configuration:
    """Return the configuration. `slots`: of every backend, by name.

    Raises `ValueError` for a value that cannot be expressed safely; the model does not accept such values.
    """
    available = set(state.certificates)
    web = [each for each in state.routes if each.spec.protocol == "http"]
    tcp = [each for each in state.routes if each.spec.protocol == "tcp"]
    front, maps, hosts = _web(web, settings, available)
    maps[SECURE] = {
        backend_of(each): "1"
        for each in web
        if each.certificate in available and each.spec.https_redirect and settings.https
    }
    maps[CHALLENGES] = {f"{key.host}{CHALLENGE_PATH}{key.token}": text for key, text in state.challenges.items()}
    fixed, complete = [front], [front]
    for route in tcp:
        if route.certificate is None or route.certificate in available:
            text = _tcp_frontend(route, settings)
            fixed.append(text)
            complete.append(text)
    for route in state.routes:
        backend = backend_of(route)
        lines = tcp_backend_lines(route, backend) if route.spec.protocol == "tcp" else backend_lines(route, backend)
        head = "\n".join(lines) + "\n"
        fixed.append(f"{head}{len(slots[backend])} slots\n")
        complete.append(head + "".join(_server(place, slots[backend], route) for place in range(len(slots[backend]))))
    head = _HEAD.replace("{workers}", str(WORKERS_MOST)).replace("{buffer}", str(BUFFER_BYTES))
    head = head.replace("{socket}", quoted(str(settings.folder / SOCKET)))
    listed = [f"{file} {key} {value}" for file in (HOSTS, EXACT, PREFIXES) for key, value in maps[file].items()]
    generation = hashlib.sha256("\n".join([head, *fixed, *listed]).encode()).hexdigest()[:32]
    config = "\n".join([head.replace("{generation}", generation), *complete])
    return Configuration(generation, config, maps, hosts)


def _server(place: int, slots: Slots, route: GatewayRoute) -> str:
    slot = slots[place]
    options = " proto h2" if route.spec.upstream == "h2" and route.spec.protocol == "http" else ""
    if slot is None:
        return f"    server s{place} 127.0.0.1:1 weight 1{options} disabled\n"
    parsed = ipaddress.ip_address(slot.address)
    address = f"[{parsed}]" if parsed.version == 6 else str(parsed)
    return f"    server s{place} {address}:{int(slot.port)} weight {int(slot.weight)}{options}\n"


def _web(
    routes: Sequence[GatewayRoute], settings: HaproxySettings, available: set[CertificateKey]
) -> tuple[str, dict[str, dict[str, str]], dict[str, frozenset[str]]]:
    """Return the frontend of HTTP and HTTPS, the maps that select routes, and the host names of certificates."""
    by_host: dict[str, list[GatewayRoute]] = {}
    certificates: dict[str, frozenset[str]] = {}
    for route in routes:
        by_host.setdefault(route.spec.host, []).append(route)
        if route.certificate in available and route.certificate is not None:
            file = certificate_file(route.certificate)
            named = {route.spec.host} if route.spec.host else set()
            certificates[file] = certificates.get(file, frozenset()) | named
    maps: dict[str, dict[str, str]] = {HOSTS: {}, EXACT: {}, PREFIXES: {}}
    rules: list[str] = []
    for number, (host, members) in enumerate(sorted(by_host.items())):
        group = f"h{number}" if host else ANY_HOST
        if host:
            maps[HOSTS][host] = group
        ordered = sorted(members, key=lambda each: rank(each.spec))  # stable: the older of two equal ones comes first
        if any(each.spec.headers or each.spec.methods or each.spec.path_match == "regex" for each in ordered):
            rules += [line for each in ordered for line in _rule(group, each)]
            continue
        for each in ordered:
            exact = each.spec.path_match == "exact"
            key = f"{group}{each.spec.path}" if exact else f"{group}{prefix_of(each.spec.path).rstrip('/')}/"
            maps[EXACT if exact else PREFIXES].setdefault(key, backend_of(each))
    folder = settings.folder
    lines = ["frontend web", *(f"    bind {each.text}" for each in settings.http)]
    listed = quoted(str(folder / CERTIFICATE_LIST))
    lines += [f"    bind {each.text} ssl crt-list {listed} strict-sni alpn h2,http/1.1" for each in settings.https]
    port = "" if settings.https_port == 443 else f":{settings.https_port}"
    lines += [
        "    http-request set-header X-Forwarded-For %[src]",
        "    http-request set-header X-Forwarded-Proto https if { ssl_fc }",
        "    http-request set-header X-Forwarded-Proto http if !{ ssl_fc }",
        "    http-request set-header X-Forwarded-Host %[req.fhdr(host)]",
        "    http-request del-header Forwarded",
        "    http-request set-var(txn.host) req.fhdr(host),field(1,:),lower",
        "    http-request set-var(txn.path) path",
        f"    http-request set-var(txn.answer) var(txn.host),concat(,txn.path),map_str({_file(folder, CHALLENGES)})"
        f" if {{ path_beg {CHALLENGE_PATH} }}",
        '    http-request return status 200 content-type text/plain lf-string "%[var(txn.answer)]"'
        " if { var(txn.answer) -m found }",
        f"    http-request set-var(txn.group) var(txn.host),map_str({_file(folder, HOSTS)})",
        f"    http-request set-var(txn.group) var(txn.host),regsub(^[^.]*,*),map_str({_file(folder, HOSTS)})"
        " if !{ var(txn.group) -m found }",
        f"    http-request set-var(txn.group) str({ANY_HOST}) if !{{ var(txn.group) -m found }}",
        f"    http-request set-var(txn.route) var(txn.group),concat(,txn.path),map_str({_file(folder, EXACT)})",
        f"    http-request set-var(txn.route) var(txn.group),concat(,txn.path,/),map_beg({_file(folder, PREFIXES)})"
        " if !{ var(txn.route) -m found }",
        *rules,
        '    http-request return status 404 content-type text/plain string "no route matches this request"'
        " if !{ var(txn.route) -m found }",
        f"    http-request set-var(txn.secure) var(txn.route),map_str({_file(folder, SECURE)}) if !{{ ssl_fc }}",
        f'    http-request redirect code 308 location "https://%[var(txn.host)]{port}%[pathq]"'
        " if { var(txn.secure) -m found }",
        "    use_backend %[var(txn.route)]",
    ]
    return "\n".join(lines) + "\n", maps, certificates


def _file(folder: Path, file: str) -> str:
    """Return a path for the argument of a converter, where commas, parentheses, quotes and spaces have a meaning."""
    path = str(folder / file)
    if any(each in path for each in ",()'\" \\$#") or not path.isascii() or not path.isprintable():
        raise ValueError(f"the folder {str(folder)!r} has characters that HAProxy cannot read; choose another --dir")
    return path


def _rule(group: str, route: GatewayRoute) -> list[str]:
    """Return the lines that select a route by rules, for hosts that maps are not enough for.

    Values of users are patterns of named conditions: there they cannot end a condition or begin another one.
    """
    spec, backend = route.spec, backend_of(route)
    lines, conditions = [], [f"group:{group}", f"path:{backend}"]
    lines.append(f"    acl group:{group} var(txn.group) -m str -- {group}")
    if spec.path_match == "regex":
        lines.append(f"    acl path:{backend} var(txn.path) -m reg -- {quoted(f'^(?:{spec.path})$')}")
    elif spec.path_match == "exact":
        lines.append(f"    acl path:{backend} var(txn.path) -m str -- {quoted(spec.path)}")
    else:
        base = prefix_of(spec.path).rstrip("/")
        lines.append(f"    acl path:{backend} var(txn.path) -m beg -- {quoted(base + '/')}")
        if base:
            lines.append(f"    acl path:{backend} var(txn.path) -m str -- {quoted(base)}")
    for number, (header, value) in enumerate(sorted(spec.headers.items())):
        condition = f"header{number}:{backend}"
        match = f"-m str -- {quoted(value)}" if value else "-m found"
        lines.append(f"    acl {condition} req.fhdr({name(header)}) {match}")
        conditions.append(condition)
    if spec.methods:
        lines.append(f"    acl method:{backend} method {' '.join(map(name, spec.methods))}")
        conditions.append(f"method:{backend}")
    lines.append(
        f"    http-request set-var(txn.route) str({backend}) if !{{ var(txn.route) -m found }} {' '.join(conditions)}"
    )
    return lines


def _tcp_frontend(route: GatewayRoute, settings: HaproxySettings) -> str:
    assert route.spec.port is not None
    bind = f"    bind {Listen(settings.tcp_address, route.spec.port).text}"
    if route.certificate is not None:
        bind += f" ssl crt {quoted(certificate_path(settings.folder, certificate_file(route.certificate)))}"
    return "\n".join(
        [
            f"frontend tcp:{route.spec.port}",
            "    mode tcp",
            bind,
            f"    timeout client {_milliseconds(float(route.spec.timeouts.idle))}",
            f"    default_backend {backend_of(route)}\n",
        ]
    )


def _milliseconds(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"
