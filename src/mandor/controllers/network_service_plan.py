"""Decides which service objects a workload has, and the numbers of services: pure."""

from collections.abc import Container, Iterable
from zlib import crc32

from msgspec.structs import replace

from mandor.controllers.draft import Draft
from mandor.model.meta import Key, Meta
from mandor.model.service import Service, ServiceRules, ServiceSource, ServiceSpec, ServiceStatus
from mandor.model.workload import Workload
from mandor.network.addresses import NUMBER_MOST, RESERVED_NUMBERS
from mandor.store.base import Delete, Put

FIRST_NUMBER = RESERVED_NUMBERS + 1
NUMBERS = NUMBER_MOST - RESERVED_NUMBERS
"""Numbers of services in the cluster; each is one virtual address."""
NUMBERS_EACH = 16_384
"""Most numbers of one namespace, so that no namespace can use all of them."""
_RULES = ServiceRules.__struct_fields__


def wanted_services(workload: Workload) -> dict[str, ServiceSpec]:
    """Return the services that a workload declares, by name."""
    name = workload.meta.name
    return {
        each.name or name: ServiceSpec(
            **{field: getattr(each, field) for field in _RULES},
            to=(ServiceSource(workload=name, group=each.group),),
        )
        for each in workload.spec.services
    }


def plan_services(key: Key, workload: Workload | None, existing: Iterable[Service]) -> Draft:
    """Return the writes that make the services of a workload match its declaration.

    `existing`: all services of the namespace. A service that a user or another workload owns is left alone.
    """
    draft = Draft()
    services = {each.meta.name: each for each in existing}
    wanted = wanted_services(workload) if workload is not None else {}
    for name, spec in wanted.items():
        known = services.get(name)
        if known is None:
            meta = Meta(name=name, namespace=key.namespace, labels=dict(workload.meta.labels) if workload else {})
            draft.writes.append(Put(Service(meta=meta, spec=spec, status=ServiceStatus(owner=key.name))))
        elif known.status.owner != key.name and workload is not None:
            owner = f"workload {known.status.owner}" if known.status.owner else "an object of kind service"
            draft.note(
                workload,
                "ServiceNameTaken",
                f"service {name} is not created: {owner} has this name already",
                warning=True,
            )
        elif known.spec != spec:
            draft.writes.append(Put(known.changed(spec=spec)))
    for name, each in services.items():
        if each.status.owner == key.name and name not in wanted:
            draft.writes.append(Delete(each.key, each.meta.version))
    return draft


def needs_number(service: Service) -> bool:
    """Return whether the service should have a virtual address and has none."""
    return not (service.status.number or service.spec.headless or service.spec.external_name)


def with_number(service: Service, used: Container[int], held: int) -> Service:
    """Return the service with a free number, or with the reason why it gets none.

    `used`: numbers of all services. `held`: how many of them the namespace of the service has. A service that is
    created again gets the same number where possible.
    """
    if held >= NUMBERS_EACH:
        namespace = service.meta.namespace
        return _without_number(service, f"namespace {namespace} has {held} virtual addresses, the most it may have")
    start = crc32(f"{service.meta.namespace}/{service.meta.name}".encode()) % NUMBERS
    for step in range(NUMBERS):
        number = FIRST_NUMBER + (start + step) % NUMBERS
        if number not in used:
            return service.changed(status=replace(service.status, number=number, message=""))
    return _without_number(service, f"all {NUMBERS} virtual addresses of the cluster are in use: delete a service")


def _without_number(service: Service, message: str) -> Service:
    return service.changed(status=replace(service.status, message=message))
