"""Admission of networks, and of workloads that use them."""

from collections.abc import Iterator
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

import msgspec

from mandor.api.allowance import forms_of
from mandor.api.pending_objects import PendingObjects
from mandor.errors import Conflict, Invalid
from mandor.lib.words import did_you_mean
from mandor.model.group import Group, GroupTemplate
from mandor.model.meta import Key, Object
from mandor.model.network import DEFAULT_NETWORK, ENGINE_NETWORK, Network
from mandor.model.node import Node
from mandor.model.workload import Workload
from mandor.network.addresses import ROUTED
from mandor.store.base import Store

Range = IPv4Network | IPv6Network

TASK_RANGE = "10.94.0.0/16"
"""Range of the bridges that process engines make by themselves."""
_RESERVED = {
    ROUTED.ipv4: "the virtual addresses of services",
    ROUTED.ipv6: "the virtual addresses of services",
    TASK_RANGE: "the bridges of process engines",
}


def check_network_change(before: Object | None, after: Object) -> None:
    """Raise `Conflict` for a change of the addresses or the backend of a network."""
    if not isinstance(before, Network) or not isinstance(after, Network) or before.spec.same_ranges(after.spec):
        return
    raise Conflict(
        f"the subnets, `node_prefix` and `backend` of the network {after.meta.name} cannot be changed: "
        f"{len(before.live_slices)} nodes hand out addresses of {before.spec.subnet}",
        hint="create a network of another name, name it in the workloads, and delete this one",
        path="spec.subnet",
    )


async def admit_network(value: Network, pending: PendingObjects) -> None:
    """Raise `Conflict` if a range of the network overlaps with another one that the cluster uses."""
    for path, mine in _ranges(value):
        for text, what in _RESERVED.items():
            if _overlap(mine, ip_network(text)):
                raise _overlapping(path, mine, f"{text}, {what}")
        for other in await pending.all(Network):
            for _, theirs in _ranges(other):
                if other.key != value.key and _overlap(mine, theirs):
                    raise _overlapping(path, mine, f"{theirs} of the network {other.meta.name}")
        for node in await pending.all(Node):
            if _contains(mine, node.status.address):
                raise _overlapping(path, mine, f"the address {node.status.address} of the node {node.meta.name}")


async def check_networks_of(value: Workload, pending: PendingObjects) -> None:
    """Raise `Invalid` for a group whose network does not exist, is not for its namespace, or cannot be used."""
    for path, form in forms_of(value):
        if not form.overlay:
            continue
        if options := next(_network_options(form), ""):
            raise Invalid(
                f"`network: {form.network}` and {options} exclude each other",
                hint=f"remove {options}, or write `network: {ENGINE_NETWORK}`",
                path=f"{path}.network",
            )
        found = await pending.find(Network, Key(Network.kind, "", form.network))
        if found is None:
            known = [each.meta.name for each in await pending.all(Network)]
            raise Invalid(
                f"there is no network {form.network}",
                hint=f"{did_you_mean(form.network, [*known, ENGINE_NETWORK])} An admin creates a network with a "
                f"manifest: `kind: network`, `name: {form.network}`, `subnet: 10.92.0.0/16`",
                path=f"{path}.network",
            )
        if not _open_to(found, value.meta.namespace):
            raise Invalid(
                f"the namespace {value.meta.namespace} may not use the network {form.network}",
                hint=f"an admin adds it to `namespaces` of the network; it lists {len(found.spec.namespaces)}",
                path=f"{path}.network",
            )


async def with_default_network(value: Workload, pending: PendingObjects) -> Workload:
    """Return the workload with the default network in groups that name none and can use it."""
    groups = value.spec.groups
    if all(each.network for each in groups.values()):
        return value
    default = await pending.find(Network, Key(Network.kind, "", DEFAULT_NETWORK))
    if default is None or not _open_to(default, value.meta.namespace):
        return value
    filled = {name: _filled(each) for name, each in groups.items()}
    return value.changed(spec=msgspec.structs.replace(value.spec, groups=filled))


async def check_network_unused(store: Store, value: Network) -> None:
    """Raise `Conflict` if a workload still uses the network."""
    users = [
        each
        for each in (await store.list(Workload.kind)).items
        if isinstance(each, Workload) and any(form.overlay == value.meta.name for _, form in forms_of(each))
    ]
    if users:
        raise Conflict(
            f"{len(users)} workloads use the network {value.meta.name}, for example {users[0].key}",
            hint="delete them, or give their groups another `network`",
            left=len(users),
        )


ATTACHING = frozenset({"docker", "process"})
"""Engines whose units can be attached to networks; a group that allows only others keeps the network of its engine."""


def _filled(group: Group) -> Group:
    usable = all(not form.engine or ATTACHING & set(form.engine) for form in group.forms)
    if group.network or not usable or any(next(_network_options(form), "") for form in group.forms):
        return group
    return msgspec.structs.replace(group, network=DEFAULT_NETWORK)


def _network_options(form: GroupTemplate) -> Iterator[str]:
    """Yield the options with which a task of the group has another network."""
    for task in form.tasks.values():
        for engine, options in task.options.items():
            if options.get("network") is not None:
                yield f"`options.{engine}.network`"
            if options.get("type") == "virtual-machine":
                yield f"`options.{engine}.type: virtual-machine`"


def _open_to(network: Network, namespace: str) -> bool:
    return not network.spec.namespaces or namespace in network.spec.namespaces


def _ranges(network: Network) -> list[tuple[str, Range]]:
    spec = network.spec
    found: list[tuple[str, Range]] = [("spec.subnet", spec.range4)]
    return found if spec.range6 is None else [*found, ("spec.subnet6", spec.range6)]


def _overlap(first: Range, second: Range) -> bool:
    return first.version == second.version and first.overlaps(second)


def _contains(whole: Range, address: str) -> bool:
    try:
        return ip_address(address) in whole
    except ValueError:
        return False  # a host name, or no address yet


def _overlapping(path: str, mine: Range, other: str) -> Conflict:
    return Conflict(
        f"the range {mine} overlaps with {other}",
        hint="choose a range that nothing else in the cluster uses",
        path=path,
    )
