"""Ports of an instance on its node."""

from collections.abc import Mapping

import msgspec

from mandor.agent.order import Order
from mandor.model.group import AUTO
from mandor.model.instance import PortStatus
from mandor.model.node import Capabilities


def publishes(order: Order, engine: str, capabilities: Mapping[str, Capabilities]) -> bool:
    """Return whether the engine forwards node ports to the instance; otherwise the instance uses the node's network."""
    known = capabilities.get(engine)
    if known is None or "ports" not in known.extras:
        return False
    tasks = order.template.tasks.values() if order.template is not None else ()
    return all(task.options.get(engine, {}).get("network") != "host" for task in tasks)


def ports_of(order: Order, *, published: bool) -> tuple[PortStatus, ...]:
    """Return the ports of an instance. `published`: see `publishes`; if False, tasks listen on the node ports."""
    chosen = order.instance.spec.ports or {}
    found = []
    for name, port in (order.template.ports if order.template is not None else {}).items():
        host = chosen.get(name) if port.host == AUTO else port.host
        assert not isinstance(host, str)
        inside = (port.port or host) if published or host is None else host
        if inside is not None:
            found.append(PortStatus(name=name, port=inside, host=host, protocol=port.protocol))
    return tuple(found)


def on_node_too(ports: tuple[PortStatus, ...]) -> tuple[PortStatus, ...]:
    """Return the ports of an instance that has its own network and listens on the numbers of the node's ports."""
    return tuple(msgspec.structs.replace(each, host=each.port) for each in ports)


def unchosen(order: Order) -> str:
    """Return a port name for which the scheduler should have chosen a node port and did not; empty: there is none."""
    chosen = order.instance.spec.ports or {}
    ports = order.template.ports if order.template is not None else {}
    return next((name for name, port in ports.items() if port.host == AUTO and name not in chosen), "")
