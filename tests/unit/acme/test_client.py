"""The ACME client against an authority that follows a script: renewal information, hostile and broken answers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from mandor.acme.account import StoredAccount
from mandor.acme.base import CONNECTION, RATE_LIMITED, AcmeProblem, RenewalWindow
from mandor.acme.client import AccountTerms, AcmeClient
from mandor.acme.jws import AccountKey, base64url, certificate_id, from_base64url
from mandor.acme.transport import Answer, Transport
from mandor.lib import x509
from mandor.lib.clock import ManualClock
from mandor.lib.egress import Egress
from mandor.lib.sealing import Sealer
from mandor.store.memory import MemoryStore

BASE = "https://ca.example"
DIRECTORY = {"newNonce": f"{BASE}/nonce", "newAccount": f"{BASE}/account", "newOrder": f"{BASE}/order"}
PENDING = {"status": "pending", "finalize": f"{BASE}/f/1", "authorizations": [f"{BASE}/z/1"]}
CHALLENGE = {"type": "http-01", "url": f"{BASE}/c/1", "token": "a" * 43}
Reply = Callable[[Any], tuple[int, dict[str, str], Any]]


class Script(Transport):
    """Answers by URL; every request is recorded with its payload."""

    def __init__(self, **replies: Any) -> None:
        super().__init__(f"{BASE}/directory", Egress())
        self.replies = replies
        self.sent: list[tuple[str, Any]] = []
        self.directory: dict[str, Any] = dict(DIRECTORY)

    async def send(self, method: str, url: str, body: bytes | None = None, accept: str = "application/json") -> Answer:
        name = url.removeprefix(BASE).strip("/").replace("/", "_")
        payload = json.loads(from_base64url(json.loads(body)["payload"]) or b"null") if body else None
        self.sent.append((name, payload))
        defaults: dict[str, Any] = {
            "directory": (200, {}, self.directory),
            "nonce": (200, {}, ""),
            "account": (201, {"Location": f"{BASE}/a/1"}, {"status": "valid"}),
            "order": (201, {"Location": f"{BASE}/o/1"}, PENDING),
            "z_1": (200, {}, {"status": "pending", "challenges": [CHALLENGE]}),
        }
        found = self.replies.get(name, defaults.get(name, (404, {}, {})))
        if isinstance(found, list):
            found = found.pop(0) if len(found) > 1 else found[0]
        status, headers, text = found
        data = text.encode() if isinstance(text, str) else json.dumps(text).encode()
        return Answer(url, status, {"Replay-Nonce": "n", **headers}, data)


def make_client(script: Script, clock: ManualClock | None = None) -> AcmeClient:
    stored = StoredAccount(MemoryStore(), Sealer(os.urandom(32)))
    terms = AccountTerms(agreed=True)
    return AcmeClient(f"{BASE}/directory", stored, terms, script, clock or ManualClock())


def issued_pair() -> str:
    authority = x509.make_authority("ca", now=1e9, seconds=1e9)
    return x509.issue(authority, x509.public_key(x509.new_key()), "x", hosts=["x"], server=True, now=1e9, seconds=1e6)


async def failure_of(script: Script) -> AcmeProblem:
    with pytest.raises(AcmeProblem) as caught:
        await make_client(script).order("shop.example.com")
    return caught.value


async def test_the_answer_to_a_challenge_is_the_token_with_the_thumbprint_of_the_key() -> None:
    order = await make_client(Script()).order("shop.example.com")
    (challenge,) = order.challenges
    token, _, thumbprint = challenge.answer.partition(".")
    assert (token, len(from_base64url(thumbprint))) == ("a" * 43, 32)


async def test_renewal_information_is_read_and_the_new_order_names_the_old_certificate() -> None:
    pem = issued_pair()
    name = certificate_id(pem)
    window = {"suggestedWindow": {"start": "2033-05-18T03:33:20Z", "end": "2033-05-19T03:33:20Z"}}
    script = Script(**{f"r_{name}": (200, {"Retry-After": "3600"}, window)})
    script.directory["renewalInfo"] = f"{BASE}/r"
    client = make_client(script)
    assert await client.window(pem) == RenewalWindow(2_000_000_000.0, 2_000_086_400.0, 3600.0)
    await client.order("shop.example.com", replaces=pem)
    assert script.sent[-2] == (
        "order",
        {"identifiers": [{"type": "dns", "value": "shop.example.com"}], "replaces": name},
    )


async def test_an_authority_without_renewal_information_gives_none() -> None:
    assert await make_client(Script()).window(issued_pair()) is None


def test_the_id_of_a_certificate_is_that_of_rfc_9773() -> None:
    """Serial numbers whose first bit is set have a zero byte in front, as in the example of the standard."""
    issuer, serial = certificate_id(issued_pair()).split(".")
    assert len(from_base64url(issuer)) == 20
    assert from_base64url(serial)[0] < 0x80


async def test_an_order_that_has_failed_is_replaced_by_a_new_one() -> None:
    script = Script(o_0=(404, {}, {"type": "urn:ietf:params:acme:error:malformed", "detail": "no order"}))
    assert (await make_client(script).order("shop.example.com", f"{BASE}/o/0")).url == f"{BASE}/o/1"


async def test_an_open_order_is_continued() -> None:
    script = Script(o_0=(200, {}, {"status": "ready", "finalize": f"{BASE}/f/0"}))
    order = await make_client(script).order("shop.example.com", f"{BASE}/o/0")
    assert (order.url, order.status) == (f"{BASE}/o/0", "ready")
    assert "order" not in [name for name, _ in script.sent]


async def test_a_rate_limit_has_the_time_of_the_header() -> None:
    problem = await failure_of(Script(order=(429, {"Retry-After": "7200"}, {"detail": "too many"})))
    assert (problem.type, problem.retry_seconds, problem.detail) == (RATE_LIMITED, 7200.0, "too many")


async def test_a_nonce_is_replaced_a_limited_number_of_times() -> None:
    bad: tuple[int, Any, Any] = (400, {}, {"type": "urn:ietf:params:acme:error:badNonce", "detail": "bad nonce"})
    good = (201, {"Location": f"{BASE}/o/1"}, PENDING)
    assert (await make_client(Script(order=[bad, bad, good])).order("shop.example.com")).status == "pending"
    assert (await failure_of(Script(order=bad))).type == "badNonce"


@pytest.mark.parametrize(
    "replies",
    [
        {"directory": (200, {}, "not json")},
        {"directory": (200, {}, [])},
        {"directory": (200, {}, {"newNonce": 5})},
        {"directory": (500, {}, "")},
        {"account": (201, {}, {})},
        {"order": (201, {}, PENDING)},
        {"order": (201, {"Location": f"{BASE}/o/1"}, {"status": "pending"})},
        {"order": (201, {"Location": f"{BASE}/o/1"}, {"status": "pending", "authorizations": [5]})},
        {"z_1": (200, {}, {"status": "pending", "challenges": "none"})},
        {"z_1": (200, {}, {"status": "pending", "challenges": [5, {"type": "dns-01"}]})},
        {"z_1": (200, {}, {"status": "pending", "challenges": [{**CHALLENGE, "token": "../../etc/passwd"}]})},
        {"z_1": (200, {}, {"status": "pending", "challenges": [{**CHALLENGE, "token": "x"}]})},
        {"z_1": (200, {}, {"status": "invalid", "challenges": [{"error": "x"}]})},
    ],
)
async def test_a_broken_answer_is_a_problem_with_words_and_never_an_exception_of_another_kind(
    replies: dict[str, Any],
) -> None:
    assert (await failure_of(Script(**replies))).detail


async def test_the_words_of_a_failed_challenge_reach_the_user_in_one_line() -> None:
    error = {"type": "urn:ietf:params:acme:error:dns", "detail": "no address\n\x1b[31mfor the host " + "x" * 10_000}
    invalid = {"status": "invalid", "challenges": [{**CHALLENGE, "status": "invalid", "error": error}]}
    problem = await failure_of(Script(z_1=(200, {}, invalid)))
    assert problem.type == "dns"
    assert problem.detail.startswith("no address")
    assert len(problem.detail) <= 500
    assert problem.detail.isprintable()


async def test_an_order_that_never_becomes_ready_is_given_up() -> None:
    class Hurried(ManualClock):
        async def sleep(self, seconds: float) -> None:
            self._time += seconds

    script = Script(o_1=(200, {"Retry-After": "999999"}, PENDING), c_1=(200, {}, {}))
    client = make_client(script, Hurried())
    order = await client.order("shop.example.com")
    with pytest.raises(AcmeProblem) as caught:
        await client.validate(order)
    assert caught.value.type == CONNECTION
    assert len(script.sent) < 60


@pytest.mark.parametrize("url", ["http://ca.example/x", "file:///etc/passwd", "https://127.0.0.1/", "https://a@b/"])
async def test_an_authority_cannot_lead_a_server_to_other_addresses(url: str) -> None:
    transport = Transport(f"{BASE}/directory", Egress())
    with pytest.raises(AcmeProblem) as caught:
        await transport.send("GET", url)
    assert caught.value.type == CONNECTION
    await transport.close()


async def test_a_host_with_an_address_that_the_policy_forbids_is_not_called() -> None:
    transport = Transport(f"{BASE}/directory", Egress())
    assert await transport.file("localhost", "token") is None


def test_the_directory_needs_https() -> None:
    with pytest.raises(ValueError, match="https"):
        Transport("http://ca.example/directory", Egress())


async def test_every_directory_has_an_account_of_its_own_and_all_servers_use_the_same_key() -> None:
    store, sealer = MemoryStore(), Sealer(os.urandom(32))
    first, second = StoredAccount(store, sealer), StoredAccount(store, sealer)
    one = await first.load(f"{BASE}/directory")
    assert await second.load(f"{BASE}/directory") == one
    assert (await first.load(f"{BASE}/staging")).key != one.key
    assert AccountKey(one.key).public["kty"] == "EC"


def test_base64url_is_without_padding() -> None:
    assert base64url(b"\xff\xfe") == "__4"
    assert from_base64url("__4") == b"\xff\xfe"
