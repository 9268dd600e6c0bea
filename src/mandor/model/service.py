"""Service: a stable name and virtual address for instances of workloads, or for addresses outside of the cluster."""

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, ClassVar, Literal, Protocol

from msgspec import Meta as Bounds
from msgspec import Struct, field

from mandor.lib.quantity import Seconds
from mandor.model.features import needs
from mandor.model.meta import InvalidField, Object, check_name
from mandor.model.route import Expose
from mandor.model.task import PortNumber

HEALTH_PATH = re.compile(r"/[!-~]{0,1023}")
"""Characters that cannot end the request line of a check."""
HOST_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
SERVICES_MOST = 32
"""Largest number of services of one workload."""
ENDPOINTS_MOST = 256
"""Largest number of addresses outside of the cluster."""
DRAIN_SECONDS = Seconds(30)
"""Longest wait for acknowledgements before a stopping instance gets its stop signal, unless a service sets `drain`."""


class ServicePort(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """One port of a service."""

    port: PortNumber
    """Port of the service."""
    target: str | PortNumber | None = None
    """Port of the instances: a name in `ports` of the group, or a number. Defaults to the name of the port, or to
    `port` if the group has no port of that name.
    """
    protocol: Literal["tcp", "udp"] = "tcp"


class ServiceHealth(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Check of addresses outside of the cluster, by every node that sends traffic to them."""

    tcp: PortNumber | None = None
    """Port that must accept a connection. Defaults to the port of the address."""
    http: str = ""
    """Path that must answer with a status below 400. Defaults to no HTTP request."""
    every: Seconds = Seconds(10)
    """Time between two checks, at least 1s. Defaults to 10s."""
    timeout: Seconds = Seconds(2)
    """Longest wait for an answer. Defaults to 2s."""
    failures: Annotated[int, Bounds(ge=1, le=100)] = 3
    """Failed checks in a row after which an address gets no traffic. Defaults to 3."""

    def __post_init__(self) -> None:
        if not 1 <= self.every <= 3600:
            raise InvalidField(f"the time {self.every} is out of range", "every", hint="1s to 1h")
        if not 0.1 <= self.timeout <= self.every:
            raise InvalidField("`timeout` must be at least 100ms and at most `every`", "timeout")
        if self.http and not HEALTH_PATH.fullmatch(self.http):
            raise InvalidField(f"{self.http[:80]!r} is not a path", "http", hint="/healthz")


class ServiceRules(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """How a service sends traffic to its endpoints."""

    port: dict[str, ServicePort] = {}
    """Ports of the service by name, at most 64. A number alone is the port of the service."""
    balance: Literal["round-robin", "least", "hash"] = "round-robin"
    """How connections are distributed. `hash`: by the address of the client. Defaults to `round-robin`."""
    near: Literal["node", "zone"] | None = None
    """Prefers ready endpoints on the node, or in the zone, of the client. Defaults to all endpoints."""
    affinity: Seconds = Seconds(0)
    """Time for which a client keeps its endpoint. Defaults to 0: every connection is balanced on its own."""
    headless: bool = False
    """Whether the name resolves to the addresses of all ready instances instead of a virtual one. Defaults to false.
    """
    drain: Seconds = DRAIN_SECONDS
    """Longest time that a stopping instance waits until all nodes have stopped sending it new connections. Defaults to
    30s.
    """
    aliases: tuple[str, ...] = ()
    """Further names of the service in its namespace, at most 16."""

    def __post_init__(self) -> None:
        if len(self.port) > 64:
            raise InvalidField(f"{len(self.port)} ports; at most 64 are allowed", "port")
        for name in self.port:
            check_name(name, "port name")
        used: dict[tuple[int, str], str] = {}
        for name, each in self.port.items():
            other = used.setdefault((each.port, each.protocol), name)
            if other != name:
                raise InvalidField(f"the ports {other} and {name} have the same number {each.port}", "port", name)
        if not 0 <= self.drain <= 3600:
            raise InvalidField(f"the time {self.drain} is out of range", "drain", hint="0s to 1h")
        if not 0 <= self.affinity <= 86400:
            raise InvalidField(f"the time {self.affinity} is out of range", "affinity", hint="0s to 24h")
        if len(self.aliases) > 16:
            raise InvalidField(f"{len(self.aliases)} aliases; at most 16 are allowed", "aliases")
        for alias in self.aliases:
            if not HOST_NAME.fullmatch(alias):
                raise InvalidField(f"the alias {alias[:80]!r} is not a host name", "aliases")


class WorkloadService(
    ServiceRules, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True
):
    """A service of a workload."""

    name: str = ""
    """Name of the service in the namespace. Defaults to the name of the workload."""
    group: str = ""
    """Group whose instances receive the traffic. Defaults to all groups that have the target ports."""
    expose: Annotated[Expose | None, needs("routes")] = None
    """Host and path at which gateways accept requests for the service from outside of the cluster. Defaults to none."""

    def __post_init__(self) -> None:
        ServiceRules.__post_init__(self)
        if self.name:
            check_name(self.name, "service name")
        if not (self.port or self.headless):
            raise InvalidField("the service has no port", "port", hint="for example `port: {http: 80}`")
        if self.expose is not None and choose_port(self.port, self.expose.port) is None:
            message = "`expose` needs a TCP port of the service"
            raise InvalidField(message, "expose", hint=f"port: {' or '.join(self.port) or 'http'}")


class ServiceSource(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Instances that receive the traffic of a service."""

    workload: str
    """Workload of the same namespace."""
    group: str = ""
    """Group of the workload. Defaults to all groups that have the target ports."""


class ServiceSpec(ServiceRules, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """A service with its sources: instances of workloads, addresses or a name outside of the cluster."""

    to: tuple[ServiceSource, ...] = ()
    """Workloads of the namespace whose instances receive the traffic, at most 32."""
    external: tuple[str, ...] = ()
    """Addresses outside of the cluster, as `10.0.0.5:5432`, at most 256. A service with one port may omit the port.
    """
    external_name: str = ""
    """Host name outside of the cluster that the service's name stands for."""
    health: ServiceHealth | None = None
    """Checks of `external`. Defaults to no checks."""

    def __post_init__(self) -> None:
        ServiceRules.__post_init__(self)
        if sum(map(bool, (self.to, self.external, self.external_name))) > 1:
            raise ValueError("a service has only one of `to`, `external` and `external_name`")
        if not (self.port or self.headless or self.external_name):
            raise InvalidField("the service has no port", "port", hint="for example `port: {http: 80}`")
        if self.external_name and not HOST_NAME.fullmatch(self.external_name):
            raise InvalidField(f"{self.external_name[:80]!r} is not a host name", "external_name")
        if len(self.to) > SERVICES_MOST:
            raise InvalidField(f"{len(self.to)} workloads; at most {SERVICES_MOST} are allowed", "to")
        if len(self.external) > ENDPOINTS_MOST:
            raise InvalidField(f"{len(self.external)} addresses; at most {ENDPOINTS_MOST} are allowed", "external")
        if self.health is not None and (self.headless or not self.external):
            message = "`health` checks the addresses of `external`, of a service that is not headless"
            raise InvalidField(message, "health", hint='external: ["10.0.0.5:5432"]')
        for number, each in enumerate(self.external):
            try:
                split_endpoint(each)
            except ValueError as error:
                raise InvalidField(str(error), "external", str(number), hint="10.0.0.5:5432") from None


class ServiceStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Written by the service controller."""

    owner: str = ""
    """Workload whose `services` declare this service; empty: a user wrote it."""
    number: int = 0
    """Number of the service in the range of virtual addresses, unique in the cluster; 0: not assigned yet."""
    message: str = ""
    """Reason why the service gets no virtual address; empty: there is none."""


class Service(Object, frozen=True, tag="service"):
    """A stable name and virtual address for instances of workloads, or for addresses outside of the cluster."""

    kind: ClassVar[str] = "service"
    plural: ClassVar[str] = "services"

    spec: ServiceSpec
    status: ServiceStatus = field(default_factory=ServiceStatus)


def split_endpoint(text: str) -> tuple[str, int | None]:
    """Split `address:port`, `[address]:port` or `address`; raises `ValueError` for anything else."""
    address, port = text, None
    if text.startswith("["):
        address, _, rest = text[1:].partition("]")
        given = rest.removeprefix(":") if rest else None
    elif text.count(":") == 1:
        address, _, given = text.partition(":")
    else:
        given = None
    if given is not None:
        if not given.isdecimal() or not 1 <= int(given) <= 65535:
            raise ValueError(f"{text[:80]!r} has no valid port")
        port = int(given)
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        raise ValueError(f"{text[:80]!r} is not an IP address with an optional port") from None
    return str(parsed), port


def choose_port(ports: Mapping[str, ServicePort], wanted: str | int | None) -> str | None:
    """Return the name of the TCP port that a route means; None: there is none, or more than one without `http`."""
    usable = {name: each.port for name, each in ports.items() if each.protocol == "tcp"}
    if wanted is None:
        return next(iter(usable)) if len(usable) == 1 else "http" if "http" in usable else None
    return next((name for name, number in usable.items() if wanted in {name, number}), None)


class DeclaredPort(Protocol):
    """A port in `ports` of a group."""

    @property
    def port(self) -> int | None: ...

    @property
    def protocol(self) -> str: ...


def check_services(services: Sequence[WorkloadService], ports: Mapping[str, Mapping[str, DeclaredPort]]) -> None:
    """Check the services of a workload. `ports`: the declared ports of its groups, by group."""
    if len(services) > SERVICES_MOST:
        raise InvalidField(f"{len(services)} services; at most {SERVICES_MOST} are allowed", "services")
    names = [each.name for each in services]
    for number, each in enumerate(services):
        place = ("services", str(number))
        if each.name in names[:number]:
            raise InvalidField("two services have the same name", *place, "name", hint="give each its own `name`")
        if each.group and each.group not in ports:
            raise InvalidField(f"the workload has no group {each.group!r}", *place, "group")
        chosen = [ports[each.group]] if each.group else list(ports.values())
        for name, port in each.port.items():
            if not any(_targets(name, port, *declared) for group in chosen for declared in group.items()):
                known = sorted({name for group in chosen for name in group})
                hint = f"declared in `ports`: {', '.join(known)}" if known else "declare the port in `ports`"
                wanted = name if port.target is None else port.target
                message = f"no task has the {port.protocol} port {wanted!r}"
                raise InvalidField(message, *place, "port", name, hint=hint)


def target_ports(services: Iterable[WorkloadService], group: str, ports: Mapping[str, DeclaredPort]) -> list[str]:
    """Return the names of the declared ports of a group that services send traffic to."""
    wanted = [each for service in services if service.group in {"", group} for each in service.port.items()]
    return [name for name, port in ports.items() if any(_targets(*each, name, port) for each in wanted)]


def _targets(name: str, port: ServicePort, declared_name: str, declared: DeclaredPort) -> bool:
    """Return whether a service's port sends traffic to a declared port."""
    if port.protocol != declared.protocol:
        return False
    if port.target is None:
        return declared_name == name or declared.port == port.port
    return port.target in {declared_name, declared.port}
