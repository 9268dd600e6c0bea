"""Names and addresses of the instances of a namespace, as reachable from one node: pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from mandor.engines.base import variable
from mandor.lib.loopback import is_loopback
from mandor.model.instance import Instance, InstanceStatus, PortStatus, instance_prefix
from mandor.model.phase import Phase

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


def reachable_from(
    instance: Instance, status: InstanceStatus, node: str, node_address: str
) -> ReachableInstance | None:
    """Return the instance as reachable from `node`; None: it does not run, is stopping or cannot be reached."""
    spec = instance.spec
    if status.phase is not Phase.RUNNING or spec.stop is not None or not spec.node:
        return None
    near = spec.node == node
    host = node_address if near else status.host
    if near or not status.address:
        address, ports = status.address or host, [(each, each.port) for each in status.ports]
    else:
        address, ports = host, [(each, each.host) for each in status.ports if each.host is not None]
    if not address or not (near or ports):
        return None
    return ReachableInstance(
        name=instance.meta.name,
        workload=spec.workload,
        group=spec.group,
        near=near,
        ready=status.ready,
        address=address,
        ports=tuple((each.name, number) for each, number in ports),
        alike=len(ports) == len(status.ports) and all(_alike(each, number) for each, number in ports),
        aliases=status.aliases,
    )


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


def hosts_file(instances: Sequence[ReachableInstance], own: Sequence[str]) -> str:
    """Return the content of a hosts file. `own`: the names of its instance, present even before it has an address.

    `<instance>` is present while it runs, so that members of a forming cluster find each other; `<workload>` and
    `<group>.<workload>` name ready instances, and only those whose ports have the numbers that they listen on. Aliases
    do the same, unless an instance or a workload has the name.
    """
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
        names = [name for name in names if name not in RESERVED]
        if names:
            lines.append(f"{each.address} {' '.join(dict.fromkeys(names))}\n")
    if not any(each.name == own[0] for each in instances):
        lines.insert(0, f"{UNKNOWN_ADDRESS} {' '.join(own)}\n")
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
