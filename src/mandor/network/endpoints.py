"""Endpoints of services as one node sees them: pure. All data paths, the name server and explanations use them.

An instance on the same node, or in a network of the node, is reached at its own address; another instance at the
address of its node, through its published ports. Only ready instances without a stop order receive traffic.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from mandor.lib.loopback import is_loopback
from mandor.model.instance import Instance, InstanceStatus, PortStatus
from mandor.model.meta import Key
from mandor.model.phase import Phase
from mandor.model.service import Service, ServicePort, ServiceSpec, split_endpoint
from mandor.network.addresses import VirtualRange
from mandor.network.base import Endpoint, Frontend, FrontendKey


@dataclass(frozen=True, slots=True)
class Viewpoint:
    """The node that sends the traffic."""

    node: str
    address: str
    """Address of the node, for instances without an address of their own."""
    zone: str = ""
    machine_address: str = ""
    """Address of the machine that replaces loopback addresses of nodes; empty: none does."""
    networks: frozenset[str] = frozenset()
    """Networks of the cluster that the node is part of: their instances are reached at their own addresses."""


@dataclass(frozen=True, slots=True)
class SeenInstance:
    """A running instance, with the address and ports at which one node reaches it."""

    instance: Instance
    status: InstanceStatus
    address: str
    ports: tuple[tuple[PortStatus, int], ...]
    """Ports with the number at which each one is reached."""
    near: bool
    """Whether it is on the same node."""
    own: bool = False
    """Whether it is reached at its own address rather than through ports of its node."""

    @property
    def address6(self) -> str:
        """IPv6 address at which it is reached in its network, beside `address`; empty: none."""
        return self.status.address6 if self.own else ""

    @property
    def receives(self) -> bool:
        """Whether it receives new connections of services."""
        return self.status.ready

    def reached_at(self, name: str, port: ServicePort) -> int | None:
        """Return the number at which the target of a service's port is reached; None: it is not."""
        usable = [each for each in self.ports if each[0].protocol == port.protocol]
        wanted = name if port.target is None else port.target
        for declared, number in usable:
            if wanted in {declared.name, declared.port}:
                return number
        if port.target is None:
            return next((number for declared, number in usable if declared.port == port.port), None)
        return wanted if self.own and isinstance(wanted, int) else None


def seen_instance(instance: Instance, status: InstanceStatus, view: Viewpoint) -> SeenInstance | None:
    """Return the instance as the node reaches it; None: it does not run, is stopping or cannot be reached."""
    spec = instance.spec
    if status.phase is not Phase.RUNNING or spec.stop is not None or not spec.node:
        return None
    near = spec.node == view.node
    host = view.address if near else status.host
    own = bool(status.address) and (near or status.network in view.networks)
    if own:
        address, ports = status.address, tuple((each, each.port) for each in status.ports)
    elif status.address:
        address, ports = host, tuple((each, each.host) for each in status.ports if each.host is not None)
    else:
        address, ports = host, tuple((each, each.port) for each in status.ports)
    if view.machine_address and address and is_loopback(address):
        address = view.machine_address
    return SeenInstance(instance, status, address, ports, near, own) if address and (near or own or ports) else None


def frontends(
    services: Iterable[Service],
    instances: Sequence[SeenInstance],
    view: Viewpoint,
    virtual: VirtualRange,
    *,
    failing: Mapping[Key, Collection[str]] = MappingProxyType({}),
) -> list[Frontend]:
    """Return the frontends of all services with a virtual address.

    `failing`: addresses of `external` that get no traffic, by service.
    """
    members = by_workload(instances)
    found = []
    for service in services:
        spec = service.spec
        if not service.status.number or spec.headless or spec.external_name:
            continue
        addresses = virtual.addresses(service.status.number)
        for name, port in spec.port.items():
            found.append(
                Frontend(
                    key=FrontendKey(service.meta.namespace, service.meta.name, name),
                    addresses=addresses,
                    port=port.port,
                    protocol=port.protocol,
                    endpoints=endpoints(service, name, port, members, view, failing=failing.get(service.key, ())),
                    balance=spec.balance,
                    affinity_seconds=float(spec.affinity),
                )
            )
    return found


def by_workload(instances: Iterable[SeenInstance]) -> Mapping[tuple[str, str], Sequence[SeenInstance]]:
    """Group instances by namespace and workload."""
    found: dict[tuple[str, str], list[SeenInstance]] = {}
    for each in instances:
        found.setdefault((each.instance.meta.namespace, each.instance.spec.workload), []).append(each)
    return found


def endpoints(
    service: Service,
    name: str,
    port: ServicePort,
    members: Mapping[tuple[str, str], Sequence[SeenInstance]],
    view: Viewpoint,
    *,
    failing: Collection[str] = (),
) -> tuple[Endpoint, ...]:
    """Return the endpoints of one port of a service, sorted, the preferred ones only if there are any.

    `failing`: addresses of `external` that get no traffic.
    """
    if service.spec.external:
        return tuple(sorted({_parse(each, port) for each in service.spec.external if each not in failing}))
    chosen: list[tuple[SeenInstance, Endpoint]] = []
    for each in backing_instances(service, members):
        number = each.reached_at(name, port) if each.receives else None
        if number is not None:
            spec = each.instance.spec
            addresses = (each.address, *((each.address6,) if each.address6 else ()))
            chosen += [(each, Endpoint(address, number, each.instance.meta.name, spec.node)) for address in addresses]
    return tuple(sorted({endpoint for _, endpoint in _preferred(chosen, service.spec, view)}))


def backing_instances(
    service: Service, members: Mapping[tuple[str, str], Sequence[SeenInstance]]
) -> list[SeenInstance]:
    """Return the running instances of the service's workloads, ready or not."""
    return [
        each
        for source in service.spec.to
        for each in members.get((service.meta.namespace, source.workload), ())
        if not source.group or each.instance.spec.group == source.group
    ]


def _preferred(
    chosen: list[tuple[SeenInstance, Endpoint]], spec: ServiceSpec, view: Viewpoint
) -> list[tuple[SeenInstance, Endpoint]]:
    near = [each for each in chosen if each[0].near]
    if spec.near == "node" and near:
        return near
    if spec.near is not None and view.zone:
        same = [each for each in chosen if each[0].near or each[0].status.zone == view.zone]
        return same or chosen
    return chosen


def _parse(text: str, port: ServicePort) -> Endpoint:
    address, number = split_endpoint(text)
    target = port.target if isinstance(port.target, int) else port.port
    return Endpoint(address, number or target)
