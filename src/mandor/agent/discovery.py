"""Names and addresses of the instances of a namespace, as reachable from one node: pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from mandor.engines.base import Resolver, variable
from mandor.lib.loopback import is_loopback
from mandor.model.instance import PortStatus, instance_prefix
from mandor.model.service import Service, split_endpoint
from mandor.network.addresses import VirtualRange
from mandor.network.endpoints import SeenInstance, backing_instances, by_workload

INSTANCES_MOST = 500
"""Largest number of instances in a hosts file; those of the same node come first."""
VARIABLES_MOST = 128
ADDRESSES_MOST = 8
"""Largest number of addresses in one variable."""
RESERVED = frozenset({"localhost", "ip6-localhost", "ip6-loopback"})
BEGINNING = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
UNKNOWN_ADDRESS = "127.0.1.1"
"""Address of an instance in its own hosts file until its engine reports one."""


class Discovery(NamedTuple):
    """Hosts file and environment variables with which an instance finds others of its namespace."""

    hosts: str = ""
    """Path of the hosts file; empty: there is none."""
    variables: Mapping[str, str] = MappingProxyType({})
    resolver: Resolver | None = None
    """Name server of the node, for engines that can use it instead of the hosts file; None: there is none."""


NO_DISCOVERY = Discovery()


@dataclass(frozen=True, slots=True)
class ReachableInstance:
    """A running instance, as other instances of its namespace on one node reach it."""

    name: str
    workload: str
    group: str
    near: bool
    """Whether it is on the same node."""
    ready: bool
    address: str
    ports: tuple[tuple[str, int], ...]
    """Port names and numbers, on that address."""
    alike: bool
    """Whether every port has the number that the instance listens on, so that its name alone is enough to connect."""
    aliases: tuple[str, ...] = ()


def reachable(seen: SeenInstance) -> ReachableInstance:
    """Return the instance with the names and numbers that hosts files and variables contain."""
    spec, status = seen.instance.spec, seen.status
    return ReachableInstance(
        name=seen.instance.meta.name,
        workload=spec.workload,
        group=spec.group,
        near=seen.near,
        ready=status.ready,
        address=seen.address,
        ports=tuple((each.name, number) for each, number in seen.ports),
        alike=len(seen.ports) == len(status.ports) and all(_alike(each, number) for each, number in seen.ports),
        aliases=status.aliases,
    )


class NamedService(NamedTuple):
    """The names of a service, and the addresses to which they resolve."""

    names: tuple[str, ...]
    addresses: tuple[str, ...]


def service_names(service: Service) -> tuple[str, ...]:
    """Return the names of a service: its own, with its namespace, as Kubernetes and Consul write them, and aliases."""
    name, namespace = service.meta.name, service.meta.namespace
    full = f"{name}.{namespace}"
    zones = (full, f"{full}.mandor", f"{full}.svc.cluster.local", f"{full}.svc", f"{name}.service.consul")
    return (name, *zones, *service.spec.aliases)


def named_services(
    services: Iterable[Service], seen: Sequence[SeenInstance], virtual: VirtualRange | None
) -> list[NamedService]:
    """Return the names of services with their addresses.

    `virtual`: virtual addresses that the reader of the names can reach; None: names resolve to the ready instances
    that are reached at the numbers of the service's ports.
    """
    members = by_workload(seen)
    found = []
    for service in sorted(services, key=lambda each: each.key):
        spec, number = service.spec, service.status.number
        if virtual is not None and number and not spec.headless:
            addresses: Iterable[str] = virtual.addresses(number)
        elif spec.external:
            addresses = dict.fromkeys(split_endpoint(each)[0] for each in spec.external)
        else:
            ready = (each for each in backing_instances(service, members) if each.receives)
            answering = (each for each in ready if _answers(each, service))
            addresses = dict.fromkeys(one for each in answering for one in (each.address, each.address6) if one)
        found.append(NamedService(service_names(service), tuple(addresses)))
    return found


def _answers(seen: SeenInstance, service: Service) -> bool:
    """Return whether a client that knows only the name of the service reaches the instance at the right ports."""
    if service.spec.headless:
        return all(_alike(each, number) for each, number in seen.ports)
    return all(seen.reached_at(name, port) == port.port for name, port in service.spec.port.items())


def _alike(port: PortStatus, number: int) -> bool:
    return port.port == number


def reached_by_container(instances: Sequence[ReachableInstance], machine: str) -> Sequence[ReachableInstance]:
    """Return the instances as a container with a network of its own reaches them.

    `machine`: an address of this machine on one of its networks. It replaces loopback addresses of nodes, which are the
    container's own inside it; several agents on one machine have such an address.
    """
    if not machine or not any(is_loopback(each.address) for each in instances):
        return instances
    return [replace(each, address=machine) if is_loopback(each.address) else each for each in instances]


def chosen(instances: Iterable[ReachableInstance]) -> list[ReachableInstance]:
    """Sort by same node, then readiness; return at most `INSTANCES_MOST`."""
    order = sorted(
        instances, key=lambda each: (not each.near, not each.ready, each.workload, len(each.name), each.name)
    )
    return order[:INSTANCES_MOST]


def hosts_file(
    instances: Sequence[ReachableInstance], own: Sequence[str], services: Sequence[NamedService] = ()
) -> str:
    """Return the content of a hosts file. `own`: the names of its instance, present even before it has an address.

    `<instance>` is present while it runs, so that members of a forming cluster find each other; `<workload>` and
    `<group>.<workload>` name ready instances, and only those whose ports have the numbers that they listen on. Aliases
    do the same, unless an instance or a workload has the name. A service takes precedence over a workload of its name.
    """
    served = {name for each in services for name in each.names} - {each.name for each in instances}
    workloads = {each.workload for each in instances}
    taken = workloads | {each.name for each in instances}
    lines = []
    for each in instances:
        names = [each.name] if each.name == each.workload or each.name not in workloads else []
        if each.ready and each.alike:
            names += [f"{each.group}.{each.workload}", each.workload]
            names += [alias for alias in each.aliases if alias not in taken]
        if each.name == own[0]:
            names += [name for name in own if name not in names]
        names = [name for name in names if name not in RESERVED and name not in served]
        if names:
            lines.append(f"{each.address} {' '.join(dict.fromkeys(names))}\n")
    if not any(each.name == own[0] for each in instances):
        lines.insert(0, f"{UNKNOWN_ADDRESS} {' '.join(own)}\n")
    for service in services:
        names = [name for name in service.names if name in served and name not in RESERVED]
        lines += [f"{address} {' '.join(names)}\n" for address in service.addresses if names]
    return BEGINNING + "".join(lines)


def variables(instances: Sequence[ReachableInstance], own: str) -> dict[str, str]:
    """Return `MANDOR_ADDR_<WORKLOAD>_<PORT>`, with groups `MANDOR_ADDR_<WORKLOAD>_<GROUP>_<PORT>`: address and port of
    every other ready instance, separated by commas, same node first, as of the start of the task."""
    found: dict[str, list[str]] = {}
    for each in instances:
        if not each.ready or each.name == own:
            continue
        shown = f"[{each.address}]" if ":" in each.address else each.address
        for name, number in each.ports:
            key = f"MANDOR_ADDR_{variable(instance_prefix(each.workload, each.group))}_{variable(name)}"
            if key in found or len(found) < VARIABLES_MOST:
                addresses = found.setdefault(key, [])
                if len(addresses) < ADDRESSES_MOST:
                    addresses.append(f"{shown}:{number}")
    return {key: ",".join(addresses) for key, addresses in sorted(found.items())}
