"""Chooses the addresses at which the agent connects to a port of an instance on its node: pure."""

from typing import NamedTuple

from mandor.errors import Invalid, NotFound
from mandor.lib.loopback import is_loopback
from mandor.model.instance import InstanceStatus, PortStatus

LOCAL = "127.0.0.1"


class ForwardTarget(NamedTuple):
    """One address at which the port of the instance may be reached."""

    address: str
    port: int
    own: bool
    """Whether the address is the instance's own, to be connected on a network of the node, not through a router."""


def forward_targets(name: str, status: InstanceStatus, port: str) -> list[ForwardTarget]:
    """Return the addresses of a TCP port of an instance, in the order in which they are tried.

    An instance with an address of its own is reached at any of its ports; one on the network of its node only at the
    ports that it declares, because the other ports of that address belong to other programs.
    """
    declared = next((each for each in status.ports if port in {each.name, str(each.port)}), None)
    if declared is not None and declared.protocol != "tcp":
        raise Invalid(f"the port {port} of {name} is a {declared.protocol} port", hint="only TCP ports are forwarded")
    number = declared.port if declared is not None else int(port) if port.isdecimal() else 0
    found = []
    if has_own_address(status) and 1 <= number <= 65535:
        found.append(ForwardTarget(status.address, number, own=True))
    if declared is not None:
        found += _on_node(status, declared)
    if not found:
        names = ", ".join(f"{each.name} ({each.port})" for each in status.ports if each.protocol == "tcp")
        raise NotFound(
            f"{name} has no port {port}", hint=f"its TCP ports: {names}" if names else "declare it in `ports`"
        )
    return found


def has_own_address(status: InstanceStatus) -> bool:
    """Return whether the instance has an address that is not one of its node."""
    return bool(status.address) and status.address != status.host and not is_loopback(status.address)


def _on_node(status: InstanceStatus, port: PortStatus) -> list[ForwardTarget]:
    if has_own_address(status):
        return [ForwardTarget(status.host or LOCAL, port.host, own=False)] if port.host is not None else []
    return [
        ForwardTarget(each, port.host or port.port, own=False) for each in dict.fromkeys((LOCAL, status.host)) if each
    ]
