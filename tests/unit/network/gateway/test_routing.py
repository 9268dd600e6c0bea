"""Which requests a route receives, and the weights of its endpoints."""

from __future__ import annotations

from mandor.model.meta import Meta
from mandor.model.route import Route, RouteCondition, RouteSpec, RouteStatus, RouteTarget
from mandor.network.base import Endpoint
from mandor.network.endpoints import Viewpoint
from mandor.network.gateway.routing import gateway_state, requests_of, weighted

TO = (RouteTarget(service="shop"),)
ACCEPTED = {"Accepted": RouteCondition(ok=True, reason="Accepted")}


def route(name: str, created_at: float, *, accepted: bool = True) -> Route:
    meta = Meta(name=name, namespace="default", uid=name, created_at=created_at)
    status = RouteStatus(conditions=ACCEPTED if accepted else {}, challenges={"token": name})
    return Route(meta=meta, spec=RouteSpec(host="shop.test", to=TO), status=status)


def ends(*numbers: int) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(f"10.0.0.{number}", 80) for number in numbers)


def test_equivalent_conditions_are_the_same_requests() -> None:
    one = RouteSpec(host="a.test", path="/x/", headers={"X-A": "1"}, methods=("GET", "PUT"), to=TO)
    same = RouteSpec(host="a.test", path="/x", headers={"x-a": "1"}, methods=("PUT", "GET"), to=TO)
    assert requests_of(one) == requests_of(same)
    others = [
        RouteSpec(host="a.test", path="/x", to=TO),
        RouteSpec(host="a.test", path="/x/", path_match="exact", to=TO),
        RouteSpec(host="b.test", path="/x", headers={"x-a": "1"}, methods=("PUT", "GET"), to=TO),
        RouteSpec(protocol="tcp", port=80, to=TO),
    ]
    assert len({requests_of(each) for each in (one, *others)}) == 5


def test_only_accepted_routes_are_served_and_the_older_of_two_first() -> None:
    routes = [route("new", 2.0), route("old", 1.0), route("waits", 0.0, accepted=False)]
    state = gateway_state(routes, {}, {}, Viewpoint("n1", "10.0.0.9"), lambda _: None)
    assert [each.key.name for each in state.routes] == ["old"]
    assert list(state.challenges.values()) == ["old"]


def test_the_share_of_a_service_does_not_depend_on_its_number_of_instances() -> None:
    for many in (1, 3, 20):
        found = {each.address: each.weight for each in weighted([(95, ends(*range(100, 100 + many))), (5, ends(1))])}
        canary = found.pop("10.0.0.1")
        assert abs(canary / (canary + sum(found.values())) - 0.05) < 0.005, many


def test_a_service_without_instances_leaves_its_share_and_one_with_weight_0_gets_nothing() -> None:
    assert [each.address for each in weighted([(95, ()), (5, ends(1))])] == ["10.0.0.1"]
    assert [each.address for each in weighted([(1, ends(2)), (0, ends(1))])] == ["10.0.0.2"]
    assert weighted([(1, ())]) == ()


def test_one_more_instance_changes_no_weight_of_the_others() -> None:
    few, more = weighted([(100, ends(1, 2))]), weighted([(100, ends(1, 2, 3))])
    assert set(few) <= set(more)
