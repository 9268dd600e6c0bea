"""OpenID Connect: forged and foreign ID tokens are refused, bindings decide, logins follow PKCE and device flow."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from mandor.api.auth import Auth
from mandor.api.issuers import Issuers
from mandor.api.settings import ApiSettings
from mandor.client import logins
from mandor.client.aio import Client
from mandor.client.login import Provider as LoginProvider
from mandor.client.login import Refused, fresh_token
from mandor.errors import Forbidden, Unauthenticated, Unavailable
from mandor.lib.clock import SystemClock
from mandor.model.meta import Meta
from mandor.model.record import Cluster, ClusterSpec
from mandor.model.role import Issuer, IssuerSpec, RoleBinding, RoleBindingSpec
from mandor.roots.oidc import HttpFetch
from mandor.store.base import Put
from mandor.store.memory import MemoryStore
from tests.api.conftest import Api, running_api
from tests.components import oidc

SCOPES = ("openid", "offline_access")


class MovedClock(SystemClock):
    """The machine's clock, moved by hand."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


@pytest.fixture
def provider() -> Iterator[oidc.Provider]:
    with oidc.running() as found:
        yield found


class Login:
    """An API server that trusts the provider."""

    def __init__(self, api: Api, issuers: Issuers, clock: MovedClock) -> None:
        self.api, self.issuers, self.clock = api, issuers, clock

    async def bind(self, name: str = "b", **spec: Any) -> None:
        stored = await self.api.store.get(RoleBinding(meta=Meta(name=name), spec=RoleBindingSpec(**spec)).key)
        meta = stored.meta if stored is not None else Meta(name=name)
        await self.api.store.commit(Put(RoleBinding(meta=meta, spec=RoleBindingSpec(**spec))))

    async def client(self, token: str) -> Client:
        return await self.api.client(token)

    async def refused(self, token: str) -> None:
        with pytest.raises(Unauthenticated):
            await self.issuers.identify(token)
        client = await self.client(token)
        with pytest.raises(Unauthenticated):
            await client.call("GET", "/v1/whoami", dict)


@asynccontextmanager
async def trusting(provider: oidc.Provider, **more: Any) -> AsyncIterator[Login]:
    clock = MovedClock()
    spec = IssuerSpec(url=provider.url, audience=(oidc.CLIENT,), **more)
    async with MemoryStore() as store, HttpFetch() as fetch:
        await store.commit(Put(Cluster(meta=Meta(name="cluster"), spec=ClusterSpec("c1"))))
        issuers = Issuers(store, clock, fetch, spec)
        auth = Auth(store, clock, tokens_required=True, issuers=issuers)
        settings = ApiSettings(tokens_required=True, login_scopes=SCOPES)
        async with running_api(store, settings, auth) as api:
            yield Login(api, issuers, clock)


@pytest.fixture
async def login(provider: oidc.Provider) -> AsyncIterator[Login]:
    async with trusting(provider) as found:
        yield found


def b64(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


async def test_a_token_of_the_issuer_is_accepted_and_bindings_decide(provider: oidc.Provider, login: Login) -> None:
    client = await login.client(provider.sign())
    you = await client.call("GET", "/v1/whoami", dict)
    assert (you["identity"], you["rules"]) == ("oidc:default:ani", [])
    with pytest.raises(Forbidden):
        await client.call("GET", "/v1/nodes", dict)
    await login.bind(role="viewer", groups=("shop",), namespaces=("shop",))
    assert (await client.call("GET", "/v1/nodes", dict))["items"] == []
    with pytest.raises(Forbidden):
        await client.call("GET", "/v1/workloads?namespace=other", dict)
    await login.bind("c", role="admin", users=("somebody-else",))
    with pytest.raises(Forbidden):
        await client.call("GET", "/v1/tokens", dict)


@pytest.mark.parametrize(
    "change",
    [
        {"aud": "another-client"},
        {"aud": ["a", "b"]},
        {"aud": None},
        {"iss": "http://127.0.0.1:1"},
        {"iss": None},
        {"exp": time.time() - 3600},
        {"exp": None},
        {"exp": "tomorrow"},
        {"exp": float("inf")},
        {"nbf": time.time() + 3600},
        {"iat": time.time() + 3600},
        {"iat": time.time() - 90_000, "exp": time.time() + 3600},
        {"iat": None},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"sub": "x" * 300},
        {"sub": "a\nb"},
    ],
)
async def test_a_token_with_wrong_claims_is_refused(
    provider: oidc.Provider, login: Login, change: dict[str, Any]
) -> None:
    await login.refused(provider.sign(**change))


async def test_a_token_that_is_not_signed_by_the_issuers_key_is_refused(provider: oidc.Provider, login: Login) -> None:
    kid = provider.rotate(rsa_key=True)
    public = provider.key.public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    der = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    claims = provider.claims()
    other = ec.generate_private_key(ec.SECP256R1())
    tokens = [f"{b64({'alg': alg, 'kid': kid})}.{b64(claims)}." for alg in ("none", "None", "NONE", "nOnE")]
    for secret in (pem, der, b"", b64(pem).encode(), json.dumps(provider.jwks()["keys"][0]).encode()):
        for alg, digest in (("HS256", hashlib.sha256), ("HS512", hashlib.sha512)):
            signed = f"{b64({'alg': alg, 'kid': kid, 'typ': 'JWT'})}.{b64(claims)}"
            tokens.append(f"{signed}.{b64(hmac.new(secret, signed.encode(), digest).digest())}")
    own = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(other.public_key()))
    tokens += [
        jwt.encode(claims, other, algorithm="ES256", headers={"kid": kid, **more})
        for more in (
            {},
            {"jwk": own},
            {"jku": "http://127.0.0.1:1/jwks"},
            {"x5u": "http://127.0.0.1:1/x"},
            {"x5c": ["MIIB"]},
            {"kid": "../../../../dev/null"},
            {"kid": "' UNION SELECT 'key"},
            {"kid": "http://127.0.0.1:1/jwks"},
            {"crit": ["exp"]},
        )
    ]
    good = provider.sign()
    head, body, signature = good.split(".")
    tokens += [
        f"{head}.{b64({**claims, 'sub': 'root', 'groups': ['admins']})}.{signature}",
        f"{head}.{body}.",
        f"{head}.{body}.{'A' * len(signature)}",
        f"{head}.{body}.{signature}.x",
        f"{head}.{body}",
        "..",
        "a.b.c",
        f"{b64([])}.{body}.{signature}",
        f"{b64({'alg': ['RS256']})}.{body}.{signature}",
        f"{head}.{b64(b'{' * 5000)}.{signature}",
        f"{head}.{'A' * 20_000}.{signature}",
    ]
    for token in tokens:
        with pytest.raises(Unauthenticated):
            await login.issuers.identify(token)
    assert (await login.issuers.identify(good)).identity == "oidc:default:ani"
    await login.refused(tokens[0])


async def test_tokens_with_unknown_keys_do_not_make_the_server_call_the_issuer(
    provider: oidc.Provider, login: Login
) -> None:
    await login.issuers.identify(provider.sign())
    other = ec.generate_private_key(ec.SECP256R1())
    for number in range(100):
        token = jwt.encode(provider.claims(), other, algorithm="ES256", headers={"kid": f"k{number}"})
        with pytest.raises(Unauthenticated):
            await login.issuers.identify(token)
    assert provider.reads["/jwks"] <= 2


async def test_keys_are_rotated_and_one_that_the_issuer_dropped_is_refused(
    provider: oidc.Provider, login: Login
) -> None:
    old = provider.sign()
    await login.issuers.identify(old)
    provider.rotate()
    login.clock.ahead += 31
    await login.issuers.identify(provider.sign())
    with pytest.raises(Unauthenticated):
        await login.issuers.identify(old)


async def test_an_issuer_that_is_away_takes_no_login_with_it(provider: oidc.Provider, login: Login) -> None:
    token = provider.sign()
    await login.issuers.identify(token)
    url, provider.url = provider.url, "http://127.0.0.1:1/other"  # its document is about another issuer now
    login.clock.ahead += 700
    assert (await login.issuers.identify(token)).user
    provider.url = url


async def test_an_issuer_whose_document_is_about_another_gives_no_keys(provider: oidc.Provider) -> None:
    async with trusting(provider) as login:
        token = provider.sign()
        provider.url += "/"
        with pytest.raises(Unavailable):
            await login.issuers.identify(token)


async def test_a_long_call_ends_with_its_token_its_binding_and_its_issuer(
    provider: oidc.Provider, login: Login
) -> None:
    await login.bind(role="operator", groups=("shop",))
    caller = await login.issuers.identify(provider.sign())
    auth = login.api.parts.auth
    await auth.check_valid(caller)
    await login.bind(role="viewer", groups=("shop",))
    with pytest.raises(Forbidden, match="have changed"):
        await auth.check_valid(caller)
    login.clock.ahead += 4000
    with pytest.raises(Unauthenticated):
        await auth.check_valid(caller)
    login.clock.ahead = 0.0
    login.issuers.default = None
    with pytest.raises(Unauthenticated):
        await auth.check_valid(caller)


async def test_a_user_name_of_the_issuer_is_never_a_user_of_the_cluster(provider: oidc.Provider, login: Login) -> None:
    for name in ("user:root", "admin", "node:n1", "component:scheduler", "default:ani"):
        caller = await login.issuers.identify(provider.sign(sub=name))
        assert caller.identity == f"oidc:default:{name}"
        assert caller.user
        assert not caller.node
        assert caller.held == ()


async def test_an_unverified_email_is_no_user_name(provider: oidc.Provider) -> None:
    async with trusting(provider, username_claim="email") as login:
        for more in ({}, {"email_verified": False}, {"email_verified": "true"}):
            with pytest.raises(Unauthenticated):
                await login.issuers.identify(provider.sign(email="root@corp.example", **more))
        caller = await login.issuers.identify(provider.sign(email="ani@corp.example", email_verified=True))
        assert caller.identity == "oidc:default:ani@corp.example"


async def test_bindings_of_one_issuer_are_not_for_the_users_of_another(provider: oidc.Provider, login: Login) -> None:
    await login.bind(role="admin", users=("ani",))
    with oidc.running() as second:
        spec = IssuerSpec(url=second.url, audience=(oidc.CLIENT,))
        await login.api.store.commit(Put(Issuer(meta=Meta(name="second"), spec=spec)))
        foreign = await login.issuers.identify(second.sign())
        assert (foreign.identity, foreign.held) == ("oidc:second:ani", ())
        # A token of the second issuer that says it is of the first.
        with pytest.raises(Unauthenticated):
            await login.issuers.identify(second.sign(iss=provider.url))


# Logging in.


def visit(url: str) -> None:
    """What a browser does."""
    threading.Thread(target=lambda: urlopen(url, timeout=20).read(), daemon=True).start()


def test_the_code_flow_gives_tokens_and_refreshes_them(provider: oidc.Provider) -> None:
    flow = LoginProvider.find(provider.url, oidc.CLIENT, SCOPES)
    tokens = flow.by_browser(visit, wait_seconds=30)
    kept = {"issuer": provider.url, "client_id": oidc.CLIENT, "scopes": list(SCOPES), **tokens}
    assert fresh_token(kept, time.time()) == (tokens["id_token"], None)
    token, changed = fresh_token(kept, tokens["expires_at"])
    assert changed is not None
    assert changed["refresh_token"] != tokens["refresh_token"]
    assert token != tokens["id_token"]
    with pytest.raises(Refused):  # used already
        fresh_token(kept, tokens["expires_at"])
    flow.revoke(changed["refresh_token"])
    with pytest.raises(Refused):
        fresh_token(changed, tokens["expires_at"] + 4000)


def test_the_device_flow_waits_for_the_user(provider: oidc.Provider) -> None:
    provider.device_pending = 3
    shown: list[str] = []
    flow = LoginProvider.find(provider.url, oidc.CLIENT, SCOPES)
    tokens = flow.by_device(lambda url, code: shown.append(f"{url} {code}"))
    assert shown == [f"{provider.url}/activate ABCD-EFGH"]
    assert jwt.decode(tokens["id_token"], options={"verify_signature": False})["sub"] == "ani"


def test_the_provider_is_strict(provider: oidc.Provider) -> None:
    flow = LoginProvider.find(provider.url, "another", SCOPES)
    with pytest.raises(Refused):
        flow.by_device(lambda url, code: None)
    with pytest.raises(oidc.Refusal):
        provider.authorize({"client_id": oidc.CLIENT, "redirect_uri": "http://evil.example/callback"})
    location = provider.authorize(
        {
            "client_id": oidc.CLIENT,
            "redirect_uri": "http://127.0.0.1:9/callback",
            "response_type": "code",
            "code_challenge_method": "S256",
            "code_challenge": "x" * 43,
            "scope": "openid",
            "state": "s",
        }
    )
    code = location.partition("code=")[2].partition("&")[0]
    form = {"grant_type": "authorization_code", "client_id": oidc.CLIENT, "code": code, "code_verifier": "wrong"}
    with pytest.raises(oidc.Refusal):
        provider.token({**form, "redirect_uri": "http://127.0.0.1:9/callback"})


def test_a_redirect_with_another_state_does_not_log_in(provider: oidc.Provider) -> None:
    flow = LoginProvider.find(provider.url, oidc.CLIENT, SCOPES)

    def attack(url: str) -> None:
        """Another page sends its own code to the listener first; then the user logs in."""
        port = url.partition("127.0.0.1%3A")[2].partition("%2F")[0]

        def work() -> None:
            for query in ("code=evil&state=wrong", "code=evil", "error=x&state="):
                with pytest.raises(HTTPError):
                    urlopen(f"http://127.0.0.1:{port}/callback?{query}", timeout=20)
            urlopen(url, timeout=20).read()

        threading.Thread(target=work, daemon=True).start()

    assert flow.by_browser(attack, wait_seconds=30)["id_token"]


def test_credentials_do_not_go_over_plain_http() -> None:
    with pytest.raises(Exception, match="is not https"):
        LoginProvider.find("http://id.example.com", "x", SCOPES)


async def test_mandor_login_keeps_the_tokens_where_only_the_user_reads_them(
    provider: oidc.Provider, login: Login, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("MANDOR_TOKEN", raising=False)
    provider.device_pending = 0
    await login.bind(role="viewer", users=("ani",))
    program = [sys.executable, "-m", "mandor.cli.main", "--server", login.api.url]

    async def run(*words: str) -> Any:
        return await asyncio.to_thread(subprocess.run, [*program, *words], capture_output=True, text=True, timeout=120)

    done = await run("login", "--device")
    assert done.returncode == 0, done.stderr
    assert "oidc:default:ani (viewer)" in done.stdout
    file = logins.config_folder() / logins.FILE
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    done = await run("auth", "whoami")
    assert "oidc:default:ani" in done.stdout, done.stderr
    assert (await run("auth", "can-i", "get", "nodes")).returncode == 0
    assert (await run("auth", "can-i", "delete", "nodes")).returncode == 1
    file.chmod(0o644)
    assert "others may read" in (await run("auth", "whoami")).stderr
    file.chmod(0o600)
    assert (await run("logout")).returncode == 0
    assert not provider.refresh_tokens
    assert (await run("auth", "whoami")).returncode != 0
