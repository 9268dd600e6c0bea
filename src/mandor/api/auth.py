"""Who is calling: bearer tokens, or, without any, only this machine and no web page."""

import hashlib
import hmac
import ipaddress
import secrets
from functools import lru_cache
from urllib.parse import urlsplit

from mandor.api.caller import LOCAL, Caller
from mandor.api.request import Headers, header
from mandor.errors import Forbidden, Unauthenticated
from mandor.lib.clock import Clock
from mandor.model.meta import Key, Meta
from mandor.model.record import ALL_NAMESPACES, Role, Token, TokenSpec
from mandor.store.base import Store

PREFIX = "mdr_"
KNOWN_MOST = 50_000
"""So many callers are remembered; then it begins anew."""

# Tokens.


def hash_secret(secret: str) -> str:
    # Secrets are 256 random bits, so one fast hash is enough: there is nothing to guess.
    return hashlib.sha256(secret.encode()).hexdigest()


def same_secret(token: Token, secret: str) -> bool:
    return hmac.compare_digest(token.spec.hash, hash_secret(secret))


def make_token(
    role: Role,
    identity: str,
    *,
    name: str = "",
    secret: str = "",
    namespaces: tuple[str, ...] = (ALL_NAMESPACES,),
    expires_at: float = 0.0,
) -> tuple[Token, str]:
    """A new token object, and the text its bearer shows; the text is kept nowhere."""
    name = name or secrets.token_hex(6)
    secret = secret or secrets.token_hex(32)
    spec = TokenSpec(
        role=role, identity=identity, hash=hash_secret(secret), namespaces=namespaces, expires_at=expires_at
    )
    return Token(meta=Meta(name=name), spec=spec), f"{PREFIX}{name}_{secret}"


def node_token_name(node: str) -> str:
    """A node has at most one credential, so it is found by the node's name."""
    return f"node.{node}"


def split_token(text: str) -> tuple[str, str] | None:
    """(name, secret), or None if it cannot be a token."""
    name, _, secret = text.removeprefix(PREFIX).rpartition("_")
    return (name, secret) if text.startswith(PREFIX) and name and secret else None


# A machine without tokens.


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@lru_cache(maxsize=64)
def _names_loopback(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return is_loopback(name)


def check_local(headers: Headers) -> None:
    """A web page can make a browser send requests here; what it cannot do is forge Host and Origin."""
    host = header(headers, b"host") or ""
    if not _names_loopback(host):
        raise Forbidden(
            f"the host {host!r} is not this machine",
            hint="without tokens the server answers only to 127.0.0.1, [::1] and localhost",
        )
    origin = header(headers, b"origin")
    if origin is not None and urlsplit(origin).netloc != host:
        raise Forbidden(f"the origin {origin!r} is foreign", hint="web pages may not use a server without tokens")
    if header(headers, b"sec-fetch-site") in {"cross-site", "same-site"}:
        raise Forbidden("the request comes from a web page of another origin")


class Auth:
    """Finds the caller of a request."""

    def __init__(self, store: Store, clock: Clock, *, tokens_required: bool) -> None:
        self._store = store
        self._clock = clock
        self._tokens_required = tokens_required
        self._known: dict[str, tuple[Token, Caller]] = {}
        """Who showed this text, and the token it was compared with: while that is the one that is stored, there is
        nothing to compute."""

    async def identify(self, headers: Headers) -> Caller:
        text = header(headers, b"authorization")
        if text is not None:
            scheme, _, given = text.partition(" ")
            if scheme.lower() != "bearer":
                raise Unauthenticated(f"the scheme {scheme!r} is unknown", hint="send `Authorization: Bearer TOKEN`")
            return await self.bearer(given.strip())
        if self._tokens_required:
            raise Unauthenticated(
                "a token is needed", hint="send `Authorization: Bearer TOKEN`; `mandor token create` makes one"
            )
        check_local(headers)
        return LOCAL

    async def bearer(self, text: str) -> Caller:
        parts = split_token(text)
        found = await self._store.get(Key("token", "", parts[0])) if parts is not None else None
        if parts is None or not isinstance(found, Token):
            raise Unauthenticated("nobody knows this token", hint="it may have been revoked")
        token, caller = self._known.get(text, (None, None))
        if caller is None or token is not found:
            proof = hash_secret(parts[1])
            if not _is_one_of(found, proof):
                raise Unauthenticated("nobody knows this token", hint="it may have been revoked")
            spec = found.spec
            caller = Caller(spec.identity, spec.role, frozenset(spec.namespaces), found.meta.name, proof)
            if len(self._known) >= KNOWN_MOST:
                self._known.clear()
            self._known[text] = found, caller
        if not self._lasts(found, caller.proof):
            raise Unauthenticated("the token has expired", hint="`mandor token create` makes another")
        return caller

    async def check_still(self, caller: Caller) -> None:
        """For what goes on for hours: raise `Unauthenticated` once the token was revoked or has expired."""
        found = await self._store.get(Key("token", "", caller.token)) if caller.token else None
        if caller.token and not (isinstance(found, Token) and self._lasts(found, caller.proof)):
            raise Unauthenticated("the token was revoked, or has expired")

    def _lasts(self, token: Token, proof: str) -> bool:
        """For whoever showed this secret: the one that it has, or for a while the one before."""
        spec, former = token.spec, token.spec.former
        if spec.expires_at and spec.expires_at <= self._clock.now():
            return False
        return proof == spec.hash or (former is not None and proof == former.hash and former.until > self._clock.now())


def _is_one_of(token: Token, proof: str) -> bool:
    former = token.spec.former
    if former is not None and hmac.compare_digest(former.hash, proof):
        return True
    return hmac.compare_digest(token.spec.hash, proof)
