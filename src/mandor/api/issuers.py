"""Issuers: the OpenID providers whose ID tokens are accepted, their keys, and the roles that bindings give."""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec

from mandor.api.caller import Caller
from mandor.api.grants import rules_of
from mandor.api.id_token import IssuerKey, Unverified, Verified, matching, read_keys, read_unverified, verified
from mandor.api.rights import Rules, narrowed
from mandor.errors import Forbidden, MandorError, Unauthenticated, Unavailable
from mandor.lib.clock import Clock
from mandor.model.role import DEFAULT_ISSUER, Issuer, IssuerSpec, RoleBinding, check_issuer_url
from mandor.store.base import Store

log = logging.getLogger("mandor.api")

Fetch = Callable[[str, str], Awaitable[bytes]]
"""Reads a URL, trusting these certificates (PEM text; empty: the machine's), within bounds."""

KEYS_SECONDS = 600.0
"""Age at which the keys of an issuer are read again."""
RETRY_SECONDS = 30.0
"""Least time between two reads for a key that is not known: whatever tokens name, an issuer is not asked more often."""
FAILED_SECONDS = 5.0
"""Least time between two reads that failed."""
KNOWN_MOST = 10_000
"""Verified tokens that are remembered."""
TOKEN = "id-token:"  # noqa: S105 - what stands for the name of a token
"""Instead of a token's name; no stored token can have it."""


@dataclass(slots=True)
class _Keys:
    """Keys of one issuer, and when they were read."""

    keys: tuple[IssuerKey, ...] = ()
    read_at: float = float("-inf")
    tried_at: float = float("-inf")
    failed: bool = False
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)


class Issuers:
    """Turns ID tokens into callers."""

    def __init__(self, store: Store, clock: Clock, fetch: Fetch, default: IssuerSpec | None = None) -> None:
        self._store, self._clock, self._fetch = store, clock, fetch
        self.default = default
        self._keys: dict[tuple[str, str], _Keys] = {}
        self._known: dict[bytes, tuple[IssuerKey, IssuerSpec, Verified]] = {}

    async def identify(self, text: str) -> Caller:
        """Raise `Unauthenticated` unless a trusted issuer signed the token for this cluster."""
        token = read_unverified(text)
        name, issuer = await self._issuer(token)
        key = await self._key(issuer, token)
        digest = hashlib.sha256(text.encode()).digest()
        known = self._known.get(digest)
        if known is None or known[0] is not key or known[1] != issuer:
            found = verified(text, key, name, issuer, self._clock.now())
            if len(self._known) >= KNOWN_MOST:
                self._known.clear()
            self._known[digest] = key, issuer, found
        else:
            found = known[2]
        self._check_time(found)
        return await self._caller(found)

    async def check_valid(self, caller: Caller) -> None:
        """Raise once the token has expired, its issuer is not trusted any more, or its bindings have changed."""
        found = caller.verified
        assert found is not None
        self._check_time(found)
        if (found.issuer, found.workload) not in [
            (name, each.subjects == "workloads") for name, each in await self._trusted()
        ]:
            raise Unauthenticated("the issuer of the ID token is not trusted any more")
        if (await self._caller(found)).held != caller.held:
            raise Forbidden(f"the rights of {caller.identity} have changed", hint="send the request again")

    def _check_time(self, found: Verified) -> None:
        if found.expires_at <= self._clock.now():
            raise Unauthenticated("the ID token has expired", hint="`mandor login` gets another")

    # Rights.

    async def _caller(self, found: Verified) -> Caller:
        names: list[str] = []
        namespaces: set[str] = set()
        rules: list[Any] = []
        for binding in (await self._store.list(RoleBinding.kind)).items:
            if isinstance(binding, RoleBinding) and matches(binding, found):
                granted: Rules | None = await rules_of(self._store, binding.spec.role)
                if granted is not None:
                    names.append(binding.spec.role)
                    namespaces.update(binding.spec.namespaces)
                    rules += narrowed(granted, frozenset(binding.spec.namespaces))
        prefix = "workload" if found.workload else "oidc"
        return Caller(
            identity=f"{prefix}:{found.issuer}:{found.user}",
            role="+".join(dict.fromkeys(names)) or "unbound",
            namespaces=frozenset(namespaces),
            token=TOKEN,
            rules=tuple(rules),
            workload=found.workload,
            verified=found,
        )

    # Issuers and their keys.

    async def _trusted(self) -> list[tuple[str, IssuerSpec]]:
        stored = [(each.meta.name, each.spec) for each in (await self._store.list(Issuer.kind)).items]
        if self.default is None:
            return stored
        return [(DEFAULT_ISSUER, self.default), *(each for each in stored if each[0] != DEFAULT_ISSUER)]

    async def _issuer(self, token: Unverified) -> tuple[str, IssuerSpec]:
        for name, issuer in await self._trusted():
            if issuer.url == token.issuer and token.audience & set(issuer.audience):
                return name, issuer
        raise Unauthenticated("the ID token is for another audience, or its issuer is not trusted by this cluster")

    async def _key(self, issuer: IssuerSpec, token: Unverified) -> IssuerKey:
        held = self._keys.setdefault((issuer.url, issuer.ca), _Keys())
        found = matching(held.keys, token)
        now = self._clock.monotonic()
        if found is not None and now - held.read_at < KEYS_SECONDS:
            return found
        if found is not None and held.failed and now - held.tried_at < RETRY_SECONDS:
            return found  # the issuer does not answer just now
        await self._read(issuer, held, known=found is not None)
        found = matching(held.keys, token) or (found if held.failed else None)
        if found is not None:
            return found
        if not held.keys:
            raise Unavailable(f"the keys of {issuer.url} cannot be read", hint="the server's log has the details")
        raise Unauthenticated("the ID token is signed with a key that its issuer does not have")

    async def _read(self, issuer: IssuerSpec, held: _Keys, *, known: bool) -> None:
        async with held.reading:
            now = self._clock.monotonic()
            pause = FAILED_SECONDS if held.failed else RETRY_SECONDS
            if now - held.tried_at < pause and not (known and now - held.read_at >= KEYS_SECONDS and not held.failed):
                return
            held.tried_at = now
            try:
                held.keys = read_keys(await self._fetch(await self._keys_url(issuer), issuer.ca))
                held.read_at, held.failed = now, False
            except (MandorError, OSError, ValueError, msgspec.DecodeError) as error:
                held.failed = True
                log.warning("the keys of the issuer %s cannot be read: %s", issuer.url, error)

    async def _keys_url(self, issuer: IssuerSpec) -> str:
        base = issuer.url.rstrip("/")
        document = await self._fetch(f"{base}/.well-known/openid-configuration", issuer.ca)
        plain = msgspec.json.decode(document, type=dict[str, Any])
        if plain.get("issuer") != issuer.url:
            raise ValueError(f"the document of {issuer.url} is about {str(plain.get('issuer'))[:100]!r}")
        url = str(plain.get("jwks_uri", ""))
        if urlsplit(url).scheme != "https":
            check_issuer_url(url.partition("?")[0])
        return url


def matches(binding: RoleBinding, found: Verified) -> bool:
    """Return whether the binding grants its role to the bearer of the token."""
    spec = binding.spec
    if spec.issuer != found.issuer:
        return False
    if any(found.claims.get(name) != value for name, value in spec.claims.items()):
        return False
    if not spec.users and not spec.groups:
        return bool(spec.claims)
    return found.user in spec.users or bool(found.groups & set(spec.groups))
