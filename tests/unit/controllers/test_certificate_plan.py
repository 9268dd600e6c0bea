"""Certificates by ACME: which hosts get one, when it is renewed, and when a failed order is repeated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandor.acme.base import CONNECTION, RATE_LIMITED
from mandor.controllers.certificate_plan import (
    GIVEN_UP_SECONDS,
    KEPT_SECONDS,
    NO_ACCOUNT,
    OLD_SERVERS,
    RECHECK_SECONDS,
    WILDCARD,
    HostKey,
    HostView,
    Step,
    after_failure,
    current_state,
    decide,
    renewal_at,
    secret_name,
    waiting_state,
    with_state,
)
from mandor.model.meta import Meta, check_name
from mandor.model.route import Route, RouteCertificate, RouteCondition, RouteSpec, RouteStatus, RouteTarget
from mandor.model.secret import IssuedCertificate, Secret, SecretStatus

NOW = 1_000_000.0
DAY = 86_400.0
HOST = "shop.example.com"
KEY = HostKey("default", HOST)


def route(
    name: str = "shop",
    *,
    namespace: str = "default",
    host: str = HOST,
    tls: str = "",
    created_at: float = 1.0,
    accepted: bool = True,
    certificate: RouteCertificate | None = None,
) -> Route:
    conditions = {} if accepted else {"Accepted": RouteCondition(ok=False, reason="Conflict")}
    return Route(
        meta=Meta(name=name, namespace=namespace, created_at=created_at),
        spec=RouteSpec(host=host, tls=tls, to=(RouteTarget(service="shop"),)),
        status=RouteStatus(conditions=conditions, certificate=certificate),
    )


def secret(starts: float = NOW, ends: float = NOW + 90 * DAY, *, issued: bool = True, host: str = HOST) -> Secret:
    found = IssuedCertificate(host=host, not_before=starts, not_after=ends) if issued else None
    return Secret(meta=Meta(name=secret_name(HOST), namespace="default"), status=SecretStatus(issued=found))


def view(*routes: Route, **more: object) -> HostView:
    return HostView(KEY, list(routes), **more)  # type: ignore[arg-type]


def next_step(found: HostView, *, account: bool = True, upgraded: bool = True, now: float = NOW) -> Step:
    return decide(found, now=now, account=account, upgraded=upgraded)


def test_a_host_without_a_certificate_gets_one() -> None:
    assert next_step(view(route())) == Step(order=True)


@pytest.mark.parametrize("tls", ["off", "own-secret"])
def test_a_route_without_tls_by_acme_gets_none(tls: str) -> None:
    assert next_step(view(route(tls=tls))) == Step()


def test_without_an_account_the_message_says_what_to_set() -> None:
    assert next_step(view(route()), account=False).message == NO_ACCOUNT


def test_nothing_is_ordered_while_servers_are_being_upgraded() -> None:
    assert next_step(view(route()), upgraded=False) == Step(message=OLD_SERVERS, again_at=NOW + 60)


def test_a_wildcard_is_not_ordered() -> None:
    assert decide(
        HostView(HostKey("default", "*.example.com"), [route(host="*.example.com")]), now=NOW, account=True
    ) == Step(message=WILDCARD)


def test_a_route_that_is_not_accepted_orders_nothing() -> None:
    assert next_step(view(route(accepted=False))) == Step()
    assert next_step(view(route(accepted=False), route("second"))) == Step(order=True)


def test_the_namespace_with_the_oldest_route_gets_the_certificate() -> None:
    older = route("x", namespace="other", created_at=0.5)
    assert "older route" in next_step(view(route(), others=[older])).message
    assert "other/" not in next_step(view(route(), others=[older])).message  # nothing about the other namespace
    assert next_step(view(route(), others=[route("x", namespace="other", created_at=2.0)])).order
    assert next_step(view(route(), others=[route("x", namespace="other", created_at=0.5, accepted=False)])).order


def test_a_secret_of_a_user_is_left_alone() -> None:
    step = next_step(view(route(), secret=secret(issued=False)))
    assert not step.order
    assert "tls-shop.example.com" in step.message


def test_a_certificate_is_renewed_after_two_thirds_of_its_lifetime() -> None:
    assert not next_step(view(route(), secret=secret()), now=NOW + 56 * DAY).order
    assert next_step(view(route(), secret=secret()), now=NOW + 60 * DAY).order


@given(st.floats(1.0, 1e9), st.text("abcdefgh", min_size=1, max_size=20))
def test_renewals_are_spread_and_never_later_than_two_thirds(lifetime: float, name: str) -> None:
    at = renewal_at(IssuedCertificate(host=name, not_before=NOW, not_after=NOW + lifetime), None)
    assert 0.63 * lifetime <= at - NOW <= 0.667 * lifetime + 1e-3


def test_the_window_of_the_authority_decides() -> None:
    issued = secret().status.issued
    assert issued is not None
    at = renewal_at(issued, (NOW + 10 * DAY, NOW + 11 * DAY))
    assert NOW + 10 * DAY <= at <= NOW + 11 * DAY
    assert next_step(view(route(), secret=secret(), window=(NOW - 2.0, NOW - 1.0))).order  # revoked: renew now


def test_a_host_is_looked_at_every_day() -> None:
    assert next_step(view(route(), secret=secret())) == Step(again_at=NOW + RECHECK_SECONDS)


def test_a_failed_order_is_repeated_with_growing_delays() -> None:
    delays = []
    found = route()
    for _ in range(12):
        failures, retry_at, message = after_failure([found], "unauthorized", "no answer", None, NOW)
        delays.append(retry_at - NOW)
        state = current_state(view(found), message, failures, retry_at)
        found = with_state(found, state, {})
        step = next_step(view(found))
        assert not step.order
        assert step.message == message
        assert waiting_state(view(found), step.message, NOW) == state  # nothing is written again
        assert next_step(view(found), now=retry_at).order
    assert delays[:4] == [60, 120, 240, 480]
    assert delays[-1] == 6 * 3600


@pytest.mark.parametrize(
    ("type_", "asked", "delay"),
    [
        (CONNECTION, None, 5),
        (CONNECTION, 30.0, 30),
        (RATE_LIMITED, 3600.0, 3600),
        (RATE_LIMITED, None, 900),
        (RATE_LIMITED, 1e12, 7 * DAY),
        ("rejectedIdentifier", None, GIVEN_UP_SECONDS),
        ("dns", 1e12, GIVEN_UP_SECONDS),
    ],
)
def test_the_kind_of_problem_and_the_authority_determine_the_delay(
    type_: str, asked: float | None, delay: float
) -> None:
    failures, retry_at, _ = after_failure([route()], type_, "x", asked, NOW)
    assert (failures, retry_at - NOW) == (1, delay)


def test_a_failed_renewal_keeps_the_certificate_in_use() -> None:
    old = secret(NOW - 80 * DAY, NOW + 10 * DAY)
    found = current_state(view(route(), secret=old), "away", 3, NOW + 60)
    assert (found.secret, found.not_after, found.message) == ("tls-shop.example.com", NOW + 10 * DAY, "away")


def test_a_certificate_without_routes_is_deleted_long_after_its_end() -> None:
    unused = secret(NOW, NOW + DAY)
    assert next_step(view(secret=unused)) == Step(again_at=NOW + DAY)
    assert next_step(view(secret=unused), now=NOW + DAY + KEPT_SECONDS) == Step(delete=True)
    assert next_step(view(secret=secret(issued=False)), now=NOW + 1000 * DAY) == Step()  # of a user
    # A route that names the secret itself still uses it.
    assert next_step(view(route(tls="off"), secret=unused), now=NOW + 1000 * DAY) == Step()


def test_a_route_that_uses_no_acme_has_no_state_and_no_challenges() -> None:
    state, tokens = RouteCertificate(message="x"), {"token": "token.answer"}
    used = with_state(route(), state, tokens)
    assert (used.status.certificate, used.status.challenges) == (state, tokens)
    assert with_state(used, state, tokens) is used
    ended = with_state(used.changed(spec=route(tls="off").spec), state, tokens)
    assert (ended.status.certificate, ended.status.challenges) == (None, {})
    assert with_state(route(accepted=False), state, tokens).status.challenges == {}


def test_every_host_has_a_secret_of_its_own_with_a_valid_name() -> None:
    long = ".".join(["a" * 60] * 4)
    names = {secret_name(host) for host in (HOST, long, "b" + long[1:], "localhost")}
    assert len(names) == 4
    for each in names:
        check_name(each)
