"""The table of the name server of a node, from services and instances: pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mandor.model.instance import InstanceStatus
from mandor.model.service import Service, split_endpoint
from mandor.network.addresses import VirtualRange
from mandor.network.base import NameRecord, NameTable, ServiceTarget
from mandor.network.endpoints import SeenInstance, Viewpoint, backing_instances, by_workload, endpoints

ADDRESSES_MOST = 500
"""Largest number of addresses of one name; those of the same node come first."""
LABEL_MOST = 63
NAME_MOST = 200
"""Largest number of characters of a name without its zone."""


@dataclass(slots=True)
class _Record:
    """One name while the table is made."""

    addresses: dict[str, None] = field(default_factory=dict)
    services: dict[ServiceTarget, None] = field(default_factory=dict)
    alias: str = ""

    def done(self) -> NameRecord:
        return NameRecord(tuple(self.addresses)[:ADDRESSES_MOST], tuple(self.services)[:ADDRESSES_MOST], self.alias)


def name_table(
    services: Iterable[Service],
    instances: Sequence[SeenInstance],
    clients: Mapping[str, str],
    view: Viewpoint,
    virtual: VirtualRange | None,
) -> NameTable:
    """Return the names of services and instances.

    An instance precedes a service of its name, a service its aliases and a workload, and a workload an alias of an
    instance. `clients`: namespaces of the instances of the node by address. `virtual`: virtual addresses that all
    clients of the node reach; None: services resolve to the ready instances that are reached at the numbers of the
    service's ports.
    """
    ordered = sorted(instances, key=lambda each: (not each.near, each.instance.meta.name, each.instance.meta.namespace))
    found: dict[str, dict[str, _Record]] = {
        rank: {} for rank in ("instance", "service", "service alias", "workload", "alias")
    }
    reverse: dict[str, str] = {}
    members = by_workload(ordered)
    for service in sorted(services, key=lambda each: each.key):
        _add_service(found, reverse, service, members, view, virtual)
    for each in ordered:
        _add_instance(found, reverse, each)
    records: dict[str, NameRecord] = {}
    for rank in found.values():
        for name, record in rank.items():
            if name not in records and _possible(name):
                records[name] = record.done()
    return NameTable(
        records=_with_known_targets(records),
        clients=clients,
        reverse={address: name for address, name in reverse.items() if name in records},
    )


def _add_service(
    found: dict[str, dict[str, _Record]],
    reverse: dict[str, str],
    service: Service,
    members: Mapping[tuple[str, str], Sequence[SeenInstance]],
    view: Viewpoint,
    virtual: VirtualRange | None,
) -> None:
    spec, namespace = service.spec, service.meta.namespace
    full = f"{service.meta.name}.{namespace}"
    record = found["service"].setdefault(full, _Record())
    backing = backing_instances(service, members)
    if spec.external_name:
        record.alias = spec.external_name.lower().rstrip(".")
    elif virtual is not None and service.status.number and not spec.headless:
        for address in virtual.addresses(service.status.number):
            record.addresses[address] = None
            reverse.setdefault(address, full)
        for name, port in spec.port.items():
            _add_port(found, service, name, port.protocol, ServiceTarget(full, port.port))
    elif spec.external:
        for text in spec.external:
            record.addresses[split_endpoint(text)[0]] = None
        for name, port in spec.port.items():
            for endpoint in endpoints(service, name, port, members, view):
                _add_port(found, service, name, port.protocol, ServiceTarget(full, endpoint.port))
    else:
        _add_ready(found, record, service, backing)
    for each in backing:
        own = f"{each.instance.meta.name}.{full}"
        found["instance"].setdefault(own, _Record()).addresses[each.address] = None
    for alias in spec.aliases:
        found["service alias"].setdefault(f"{alias.lower()}.{namespace}", record)


def _add_ready(
    found: dict[str, dict[str, _Record]], record: _Record, service: Service, backing: Sequence[SeenInstance]
) -> None:
    """Add the ready instances of a service that a client reaches by the name and the numbers of the service's ports.

    SRV records contain all of them, because they have the numbers of the instances' ports."""
    full = f"{service.meta.name}.{service.meta.namespace}"
    for each in backing:
        if not each.receives:
            continue
        own = f"{each.instance.meta.name}.{full}"
        reached = {name: each.reached_at(name, port) for name, port in service.spec.port.items()}
        if service.spec.headless:
            if all(declared.port == number for declared, number in each.ports):
                record.addresses[each.address] = None
        elif all(reached[name] == port.port for name, port in service.spec.port.items()):
            record.addresses[each.address] = None
        for name, port in service.spec.port.items():
            if (number := reached[name]) is not None:
                _add_port(found, service, name, port.protocol, ServiceTarget(own, number))


def _add_port(
    found: dict[str, dict[str, _Record]], service: Service, name: str, protocol: str, target: ServiceTarget
) -> None:
    """Add an SRV record to the service and to `_<port>._<protocol>.<service>`."""
    full = f"{service.meta.name}.{service.meta.namespace}"
    found["service"][full].services[target] = None
    found["service"].setdefault(f"_{name.lower()}._{protocol}.{full}", _Record()).services[target] = None


def _add_instance(found: dict[str, dict[str, _Record]], reverse: dict[str, str], each: SeenInstance) -> None:
    meta, spec, status = each.instance.meta, each.instance.spec, each.status
    own = f"{meta.name}.{meta.namespace}".lower()
    found["instance"].setdefault(own, _Record()).addresses[each.address] = None
    if each.near and status.address == each.address:
        reverse.setdefault(each.address, own)
    if not status.ready:
        return
    alike = len(each.ports) == len(status.ports) and all(port.port == number for port, number in each.ports)
    if not alike:
        return
    for name in (spec.workload, f"{spec.group}.{spec.workload}"):
        found["workload"].setdefault(f"{name}.{meta.namespace}", _Record()).addresses[each.address] = None
    for alias in status.aliases:
        found["alias"].setdefault(f"{alias.lower()}.{meta.namespace}", _Record()).addresses[each.address] = None


def _possible(name: str) -> bool:
    return len(name) <= NAME_MOST and all(0 < len(label) <= LABEL_MOST for label in name.split("."))


def _with_known_targets(records: Mapping[str, NameRecord]) -> dict[str, NameRecord]:
    """Leave out SRV records of hosts that are not in the table: their name is no host name."""
    return {
        name: record
        if all(each.host in records for each in record.services)
        else record._replace(services=tuple(each for each in record.services if each.host in records))
        for name, record in records.items()
    }


def clients_of(instances: Iterable[tuple[str, InstanceStatus]]) -> dict[str, str]:
    """Return the namespaces of instances by address. An address that instances of two namespaces have is left out."""
    found: dict[str, str] = {}
    for namespace, status in instances:
        if status.address and found.setdefault(status.address, namespace) != namespace:
            found[status.address] = ""
    return {address: namespace for address, namespace in found.items() if namespace}
