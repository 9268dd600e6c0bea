"""Services of workloads and their numbers."""

from __future__ import annotations

from typing import Any

from mandor.controllers.network_service_plan import (
    FIRST_NUMBER,
    NUMBERS,
    NUMBERS_EACH,
    needs_number,
    plan_services,
    with_number,
)
from mandor.model.manifest import load_manifests
from mandor.model.meta import Meta
from mandor.model.service import Service, ServicePort, ServiceSource, ServiceSpec, ServiceStatus
from mandor.model.workload import Workload
from mandor.store.base import Delete, Put

MANIFEST = "{name: shop, image: shop:1, ports: {http: 8080}, services: [{port: {http: 80}}]}"


def workload(text: str = MANIFEST) -> Workload:
    (document,) = load_manifests(text)
    assert isinstance(document.object, Workload)
    return document.object


def service(name: str = "shop", *, owner: str = "shop", **spec: Any) -> Service:
    given = {"port": {"http": ServicePort(port=80)}, "to": (ServiceSource(workload="shop"),), **spec}
    status = ServiceStatus(owner=owner, number=70)
    return Service(meta=Meta(name=name, namespace="default", version=3), spec=ServiceSpec(**given), status=status)


def test_a_declared_service_is_created_with_the_name_of_its_workload() -> None:
    (write,) = plan_services(workload().key, workload(), []).writes
    assert isinstance(write, Put)
    assert isinstance(write.value, Service)
    assert write.value.meta.name == "shop"
    assert write.value.status.owner == "shop"
    assert write.value.spec == service().spec


def test_a_service_that_matches_is_left_alone() -> None:
    assert plan_services(workload().key, workload(), [service()]).writes == []


def test_a_changed_declaration_changes_the_service_and_keeps_its_number() -> None:
    (write,) = plan_services(workload().key, workload(), [service(balance="least")]).writes
    assert isinstance(write, Put)
    assert isinstance(write.value, Service)
    assert (write.value.spec.balance, write.value.status.number) == ("round-robin", 70)


def test_the_services_of_a_deleted_workload_are_deleted_and_others_kept() -> None:
    others = [service("own", owner=""), service("other", owner="web")]
    (write,) = plan_services(workload().key, None, [service(), *others]).writes
    assert isinstance(write, Delete)
    assert write.key.name == "shop"


def test_a_name_that_another_service_has_is_reported_and_not_taken() -> None:
    for owner, said in (("", "an object of kind service"), ("web", "workload web")):
        draft = plan_services(workload().key, workload(), [service(owner=owner)])
        assert draft.writes == []
        (note,) = draft.notes
        assert note.reason == "ServiceNameTaken"
        assert said in note.message
        assert note.warning


def test_a_number_depends_on_the_name_and_is_unique() -> None:
    first = with_number(service(), (), 0).status.number
    assert first == with_number(service(), (), 0).status.number
    second = with_number(service(), (first,), 1).status.number
    assert second != first
    assert FIRST_NUMBER <= second < FIRST_NUMBER + NUMBERS


def test_a_service_without_a_free_number_has_a_message_with_the_reason() -> None:
    waiting = with_number(service().changed(status=ServiceStatus()), range(FIRST_NUMBER, FIRST_NUMBER + NUMBERS), 5)
    assert waiting.status == ServiceStatus(
        message=f"all {NUMBERS} virtual addresses of the cluster are in use: delete a service"
    )
    served = with_number(waiting, (), 5)
    assert served.status.number
    assert not served.status.message


def test_one_namespace_cannot_use_all_virtual_addresses() -> None:
    waiting = with_number(service().changed(status=ServiceStatus()), (), NUMBERS_EACH)
    assert needs_number(waiting)
    assert f"namespace default has {NUMBERS_EACH} virtual addresses" in waiting.status.message


def test_headless_services_and_external_names_need_no_number() -> None:
    plain = service().changed(status=ServiceStatus())
    assert needs_number(plain)
    assert not needs_number(plain.changed(spec=service(headless=True).spec))
    assert not needs_number(plain.changed(spec=ServiceSpec(external_name="db.example")))
