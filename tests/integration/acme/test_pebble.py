"""Certificates from a real ACME server: orders, renewals, failures, restarts and changes of the leader."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from cryptography.x509 import load_pem_x509_certificate
from msgspec.structs import replace

from mandor.acme.client import AccountTerms
from mandor.controllers import certificate
from mandor.lib import x509
from mandor.model.acme_account import AcmeAccount
from mandor.model.meta import Meta
from mandor.model.record import Event
from mandor.model.route import Route
from mandor.model.secret import Secret, SecretSpec
from mandor.store.base import Delete, Put
from scripts.components import find
from tests.components.pebble import Pebble, running, serving
from tests.integration.acme.plane import Plane, failed, issued
from tests.integration.agent.harness import eventually

pytestmark = pytest.mark.real("pebble")


@pytest.fixture(autouse=True)
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of these tests lead to this machine for pebble alone."""
    monkeypatch.setattr(certificate, "UNSEEN_SECONDS", 0.0)


def fails_with(words: str, route: Route) -> bool:
    return words in str(route.status.certificate)


@pytest.fixture
def plane(pebble: Pebble) -> Iterator[Plane]:
    plane = Plane(pebble)
    with serving(pebble.challenge_port, plane.answer):
        yield plane


def verify(pebble: Pebble, host: str, chain: str) -> None:
    """Check the chain as a client does."""
    parts = x509.split_bundle(chain)
    assert host in x509.read(parts[0]).hosts
    certificates = [load_pem_x509_certificate(each.encode()) for each in (*parts, pebble.root())]
    for lower, upper in pairwise(certificates):
        lower.verify_directly_issued_by(upper)


async def test_a_route_gets_a_certificate_although_the_authority_rejects_nonces(plane: Plane) -> None:
    async with plane.leading() as controller:
        await plane.put("shop", "shop.example.com")
        route = await plane.when("shop", issued)
        state = route.status.certificate
        assert state is not None
        assert (state.secret, state.message) == ("tls-shop.example.com", "")
        assert route.status.challenges == {}
        values = await plane.secret(state.secret)
        assert sorted(values) == ["tls.crt", "tls.key"]
        verify(plane.pebble, "shop.example.com", values["tls.crt"])
        assert x509.read(x509.split_bundle(values["tls.crt"])[0]).ends_at == state.not_after
        lines = [line.strip() for family in controller.families() for line in family.lines()]
        assert 'mandor_acme_orders_total{result="issued"} 1' in lines
        assert any(line.startswith("mandor_route_certificate_seconds_left{") for line in lines)

        async def recorded() -> bool:
            events = (await plane.store.list(Event.kind)).items
            return any(isinstance(each, Event) and each.spec.reason == "CertificateIssued" for each in events)

        await eventually(recorded)


async def test_routes_of_one_host_share_one_certificate(plane: Plane) -> None:
    orders = plane.pebble.requests("Added order")
    await plane.put("shop", "shared.example.com")
    await plane.put("api", "shared.example.com", path="/api")
    async with plane.leading():
        first, second = await plane.when("shop", issued), await plane.when("api", issued)
        later = await plane.put("images", "shared.example.com", path="/images")
        later = await plane.when("images", issued)
    assert first.status.certificate == second.status.certificate == later.status.certificate
    assert plane.pebble.requests("Added order") == orders + 1


async def test_a_second_namespace_cannot_order_a_certificate_for_the_host_of_an_older_route(plane: Plane) -> None:
    await plane.put("shop", "taken.example.com")
    await plane.put("thief", "taken.example.com", namespace="other")
    async with plane.leading():
        await plane.when("shop", issued)
        thief = await plane.when("thief", failed, namespace="other")
        assert thief.status.certificate is not None
        assert not thief.status.certificate.secret
        assert "older route" in thief.status.certificate.message
        assert thief.status.challenges == {}
        shop = await plane.route("shop")
        await plane.store.commit(Delete(shop.key, shop.meta.version))
        await plane.when("thief", issued, namespace="other")


async def test_a_certificate_is_renewed_with_a_new_key_after_two_thirds_of_its_lifetime(plane: Plane) -> None:
    await plane.put("shop", "renewed.example.com")
    async with plane.leading():
        first = (await plane.when("shop", issued)).status.certificate
    assert first is not None
    before = await plane.secret(first.secret)
    plane.clock.ahead = 0.6 * (first.not_after - plane.clock.now())
    async with plane.leading():
        # The controller has looked at all hosts once this route has its state.
        await plane.put("late", "*.example.com")
        await plane.when("late", failed)
        assert await plane.secret(first.secret) == before
    changes = (await plane.stored(first.secret)).status.changes
    orders = plane.pebble.requests("Added order")
    plane.clock.ahead = 0.7 * (first.not_after - plane.clock.now() + plane.clock.ahead)
    async with plane.leading():

        async def renewed() -> bool:
            return (await plane.secret(first.secret))["tls.key"] != before["tls.key"]

        await eventually(renewed)
        await plane.when("shop", lambda route: issued(route) and not route.status.challenges)
    assert (await plane.stored(first.secret)).status.changes == changes + 1  # its users load it again
    # To this clock the new certificate looks old, too: that does not lead to one order after the other.
    assert plane.pebble.requests("Added order") == orders + 1


async def test_a_failed_challenge_is_reported_and_the_next_order_waits(pebble: Pebble) -> None:
    plane = Plane(pebble)
    await plane.put("shop", "unserved.example.com")
    with serving(pebble.challenge_port, lambda host, token: "something else"):
        async with plane.leading():
            route = await plane.when("shop", failed)
    state = route.status.certificate
    assert state is not None
    assert not state.secret
    assert "unauthorized" in state.message
    assert "something else" in state.message
    assert state.failures == 1
    assert 30 < state.retry_at - plane.clock.now() <= 60
    assert route.status.challenges == {}
    with serving(pebble.challenge_port, plane.answer):
        plane.clock.ahead = 61  # another leader, a minute later
        async with plane.leading():
            route = await plane.when("shop", issued)
    assert route.status.certificate is not None
    assert (route.status.certificate.failures, route.status.certificate.message) == (0, "")


async def test_the_secret_of_a_user_is_never_overwritten(plane: Plane) -> None:
    meta = Meta(name="tls-mine.example.com", namespace="default")
    own = Secret(meta=meta, spec=SecretSpec(sealed={"tls.crt": plane.sealer.seal("own", f"{meta.name}")}))
    await plane.store.commit(Put(own))
    await plane.put("shop", "mine.example.com")
    async with plane.leading():
        route = await plane.when("shop", failed)
        assert route.status.certificate is not None
        assert "a user wrote the secret tls-mine.example.com" in route.status.certificate.message
        found = await plane.stored(own.meta.name)
        assert found.spec == own.spec
        await plane.store.commit(Delete(found.key, found.meta.version))
        await plane.when("shop", issued)  # by its own


async def test_another_leader_continues_an_order_and_makes_no_second_one(pebble: Pebble) -> None:
    plane = Plane(pebble)
    await plane.put("shop", "moved.example.com")
    orders = pebble.requests("Added order")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificate, "UNSEEN_SECONDS", 600.0)  # the first leader stops while it waits for the gateways
        async with plane.leading():
            first = await plane.when("shop", lambda route: bool(route.status.challenges))
    key = (await plane.secret("tls-moved.example.com"))["next.key"]
    with serving(pebble.challenge_port, plane.answer) as asked:
        async with plane.leading():
            route = await plane.when("shop", issued)
    assert set(asked) == set(first.status.challenges)
    assert route.status.challenges == {}
    assert pebble.requests("Added order") == orders + 1
    assert (await plane.secret("tls-moved.example.com"))["tls.key"] == key


async def test_an_authority_that_is_away_and_forgets_everything_delays_a_certificate_and_no_more(
    own_pebble: Pebble,
) -> None:
    plane = Plane(own_pebble)
    await plane.put("shop", "shop.example.com")
    with serving(own_pebble.challenge_port, plane.answer):
        async with plane.leading():
            await plane.when("shop", issued)
        own_pebble.stop()
        await plane.put("api", "api.example.com")
        async with plane.leading():
            route = await plane.when("api", failed)
            assert route.status.certificate is not None
            assert "the certificate authority cannot be used" in route.status.certificate.message
            assert route.status.certificate.retry_at - plane.clock.now() <= 5
            assert issued(await plane.route("shop"))
            own_pebble.start()  # the account is unknown now
            await plane.when("api", issued)
    accounts = (await plane.store.list(AcmeAccount.kind)).items
    assert len(accounts) == 1


async def test_an_account_needs_the_agreement_and_the_external_account(tmp_path: Path) -> None:
    binary = find("pebble")
    assert binary is not None
    mac = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W"
    with running(binary, tmp_path / "pebble", bindings={"kid-1": mac}, PEBBLE_VA_ALWAYS_VALID="1") as pebble:
        plane = Plane(pebble, AccountTerms())
        await plane.put("shop", "bound.example.com")
        for terms, words in (
            (AccountTerms(), "acme_agree"),
            (AccountTerms(agreed=True), "acme_eab_id"),
            (AccountTerms(agreed=True, binding_id="kid-1", binding_key="AAAA" + mac[4:]), "the order failed"),
        ):
            plane.terms = terms
            async with plane.leading():
                route = await plane.when("shop", partial(fails_with, words))
            plane.clock.ahead += 7 * 3600
            assert not issued(route)
        plane.terms = AccountTerms(agreed=True, binding_id="kid-1", binding_key=mac)
        async with plane.leading():
            await plane.when("shop", issued)


async def test_a_route_that_stops_using_acme_loses_its_state_and_the_certificate_is_kept(plane: Plane) -> None:
    await plane.put("shop", "ended.example.com")
    async with plane.leading():
        route = await plane.when("shop", issued)
        await plane.store.commit(Put(route.changed(spec=replace(route.spec, tls="off"))))
        await plane.when("shop", lambda route: route.status.certificate is None)
    assert "tls.crt" in await plane.secret("tls-ended.example.com")
