"""Who can be found under which name and address, as seen from one node: pure.

A name server or a load balancer would begin here, too: instances in, names and addresses out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from mandor.engines.base import variable
from mandor.model.instance import Instance, InstanceStatus, PortStatus, instance_prefix
from mandor.model.phase import Phase

NEIGHBOURS_MOST = 500
"""So many instances a hosts file names; those of the same node come first."""
VARIABLES_MOST = 128
ADDRESSES_MOST = 8
"""So many addresses one variable names."""
RESERVED = frozenset({"localhost", "ip6-localhost", "ip6-loopback"})
BEGINNING = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
UNKNOWN_ADDRESS = "127.0.1.1"
"""Its own, until its engine has told it."""


class Discovery(NamedTuple):
    """What an instance is given when it begins."""

    hosts: str = ""
    """The path of its hosts file; empty: there is none."""
    variables: Mapping[str, str] = MappingProxyType({})


NO_DISCOVERY = Discovery()


@dataclass(frozen=True, slots=True)
class ReachableInstance:
    """An instance that runs, as another one of its namespace reaches it."""

    name: str
    workload: str
    group: str
    near: bool
    """It is on the same node."""
    ready: bool
    address: str
    ports: tuple[tuple[str, int], ...]
    """Names and numbers, on that address."""
    alike: bool
    """All its ports have the numbers there that it listens on: whoever knows only its name finds it."""


def neighbour_of(instance: Instance, status: InstanceStatus, node: str, node_address: str) -> ReachableInstance | None:
    """As seen from a node; None: it does not run, is told to stop, or cannot be reached from there."""
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
    )


def _alike(port: PortStatus, number: int) -> bool:
    return port.port == number


def chosen(neighbours: Iterable[ReachableInstance]) -> list[ReachableInstance]:
    """The nearest first, then those that are ready; no more than a file can take."""
    order = sorted(
        neighbours, key=lambda each: (not each.near, not each.ready, each.workload, len(each.name), each.name)
    )
    return order[:NEIGHBOURS_MOST]


def hosts_file(neighbours: Sequence[ReachableInstance], own: Sequence[str]) -> str:
    """`own`: the names of the instance whose file it is, which it finds even before it has an address.

    `<instance>` is there while it runs, so that members of a cluster that forms find each other; `<workload>` and
    `<group>.<workload>` lead to those that are ready, and only where the ports have the numbers they listen on.
    """
    workloads = {each.workload for each in neighbours}
    lines = []
    for each in neighbours:
        names = [each.name] if each.name == each.workload or each.name not in workloads else []
        if each.ready and each.alike:
            names += [f"{each.group}.{each.workload}", each.workload]
        if each.name == own[0]:
            names += [name for name in own if name not in names]
        names = [name for name in names if name not in RESERVED]
        if names:
            lines.append(f"{each.address} {' '.join(dict.fromkeys(names))}\n")
    if not any(each.name == own[0] for each in neighbours):
        lines.insert(0, f"{UNKNOWN_ADDRESS} {' '.join(own)}\n")
    return BEGINNING + "".join(lines)


def variables(neighbours: Sequence[ReachableInstance], own: str) -> dict[str, str]:
    """`MANDOR_ADDR_<WORKLOAD>_<PORT>`, with groups `MANDOR_ADDR_<WORKLOAD>_<GROUP>_<PORT>`: the addresses of all others
    that are ready, each with its port, separated by commas, the nearest first; as they were when the task began."""
    found: dict[str, list[str]] = {}
    for each in neighbours:
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
