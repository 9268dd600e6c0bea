"""Routes of workloads and the conditions of routes."""

from __future__ import annotations

from typing import Any

from mandor.controllers.route_plan import SecretState, plan_routes, with_conditions
from mandor.model.manifest import load_manifests
from mandor.model.meta import Meta
from mandor.model.route import Route, RouteCertificate, RouteCondition, RouteSpec, RouteStatus, RouteTarget
from mandor.model.service import Service, ServicePort, ServiceSpec
from mandor.model.workload import Workload
from mandor.store.base import Delete, Put

MANIFEST = """
name: shop
image: shop:1
ports: {http: 8080}
services: [{port: {http: 80}, expose: {host: shop.test, path: /a, tls: shop-tls}}]
"""
GOOD = SecretState("uid.1", not_after=1000.0)


def workload(text: str = MANIFEST) -> Workload:
    (document,) = load_manifests(text)
    assert isinstance(document.object, Workload)
    return document.object


def route(name: str = "shop", *, namespace: str = "default", status: RouteStatus | None = None, **spec: Any) -> Route:
    given = {"host": "shop.test", "to": (RouteTarget(service="shop"),), "tls": "shop-tls"} | spec
    meta = Meta(name=name, namespace=namespace, uid=f"{namespace}-{name}", version=3)
    return Route(meta=meta, spec=RouteSpec(**given), status=status or RouteStatus())


def service(**spec: Any) -> Service:
    given = {"port": {"http": ServicePort(port=80)}, **spec}
    return Service(meta=Meta(name="shop", namespace="default"), spec=ServiceSpec(**given))


def conditions(found: Route) -> dict[str, RouteCondition]:
    return found.status.conditions


def test_an_exposed_service_gets_a_route_of_its_name() -> None:
    (write,) = plan_routes(workload().key, workload(), []).writes
    assert isinstance(write, Put)
    assert isinstance(write.value, Route)
    assert (write.value.meta.name, write.value.status.owner) == ("shop", "shop")
    assert (write.value.spec.host, write.value.spec.path, write.value.spec.tls) == ("shop.test", "/a", "shop-tls")
    assert write.value.spec.to == (RouteTarget(service="shop"),)


def test_a_route_of_a_user_is_left_alone_and_an_event_is_recorded() -> None:
    draft = plan_routes(workload().key, workload(), [route()])
    assert not draft.writes
    assert [note.reason for note in draft.notes] == ["RouteNameTaken"]


def test_a_route_that_is_no_longer_declared_is_deleted() -> None:
    owned = route(status=RouteStatus(owner="shop"))
    for left in (None, workload(MANIFEST.replace(", expose: {host: shop.test, path: /a, tls: shop-tls}", ""))):
        assert plan_routes(workload().key, left, [owned, route("other")]).writes == [Delete(owned.key, 3)]


def test_the_newer_of_two_routes_is_in_conflict_and_names_only_routes_of_its_namespace() -> None:
    here, there = route("first"), route("first", namespace="private")
    found = conditions(with_conditions(route(), here, {}, None, now=0))
    assert (found["Accepted"].ok, found["Accepted"].reason) == (False, "Conflict")
    assert found["Accepted"].message == "route first is older and has the same host, path and conditions"
    message = conditions(with_conditions(route(), there, {}, None, now=0))["Accepted"].message
    assert "private" not in message
    assert "first" not in message


def test_a_missing_service_or_port_is_named() -> None:
    own = route()

    def resolved(services: dict[str, Service], given: Route = own) -> tuple[str, str]:
        found = conditions(with_conditions(given, given, services, None, now=0))["Resolved"]
        return found.reason, found.message

    assert resolved({"shop": service()})[0] == "Resolved"
    assert resolved({}) == ("ServiceMissing", "there is no service shop in this namespace")
    admin = route(to=(RouteTarget(service="shop", port="admin"),))
    assert resolved({"shop": service()}, admin) == (
        "PortMissing",
        "service shop has no TCP port admin; its ports: http",
    )
    assert resolved({"shop": service(port={}, external_name="db.test")})[0] == "ExternalName"


def test_a_certificate_must_exist_fit_and_be_valid() -> None:
    own = route()

    def certificate(secret: SecretState | None, now: float = 0.0, given: Route = own) -> tuple[str, str]:
        found = with_conditions(given, given, {}, secret, now=now)
        return conditions(found)["Certificate"].reason, found.status.secret_id

    assert certificate(GOOD) == ("Ready", "uid.1")
    assert certificate(None) == ("SecretMissing", "")
    assert certificate(GOOD, now=1000.0) == ("Expired", "")
    assert certificate(SecretState("uid.1", "it is for other.test", "HostMismatch")) == ("HostMismatch", "")
    assert certificate(None, given=route(tls="auto")) == ("NotIssued", "")
    issued = RouteStatus(certificate=RouteCertificate(secret="shop-acme"))
    assert certificate(GOOD, given=route(tls="auto", status=issued)) == ("Ready", "uid.1")


def test_a_route_without_tls_has_no_certificate_condition_and_unchanged_conditions_are_not_written_again() -> None:
    plain = route(tls="off")
    found = with_conditions(plain, plain, {"shop": service()}, None, now=0)
    assert conditions(found).keys() == {"Accepted", "Resolved"}
    assert with_conditions(found, found, {"shop": service()}, None, now=5) is found
