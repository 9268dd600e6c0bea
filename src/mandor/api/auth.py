"""Authentication: bearer tokens and client certificates; without tokens only local callers that are no web page."""

import hashlib
import hmac
import secrets
from functools import lru_cache
from urllib.parse import urlsplit

from mandor.api.caller import LOCAL, Caller
from mandor.api.certificates import CertificateAuthority
from mandor.api.grants import rules_of
from mandor.api.http.client_certificate import ClientCertificate
from mandor.api.http.request import Headers, Source, header
from mandor.api.issuers import Issuers
from mandor.api.rights import Rules, narrowed
from mandor.errors import Forbidden, Unauthenticated
from mandor.lib.clock import Clock
from mandor.lib.loopback import is_loopback
from mandor.model.meta import Key, Meta
from mandor.model.record import ALL_NAMESPACES, JoinTerms, Role, Token, TokenSpec
from mandor.store.base import Store

PREFIX = "mdr_"
NO_RULES: Rules = ()
BY_KEY = "key:"
"""Prefix of the proof of a caller with a client certificate; the id of its key follows."""
CACHED_MOST = 50_000
"""Cached callers; the cache is cleared when it is full."""

HERE = Source()

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
    custom: str = "",
    name: str = "",
    secret: str = "",
    namespaces: tuple[str, ...] = (ALL_NAMESPACES,),
    expires_at: float = 0.0,
    join: JoinTerms | None = None,
) -> tuple[Token, str]:
    """Return a new token object, and the text that its bearer sends; the text is not stored."""
    name = name or secrets.token_hex(6)
    secret = secret or secrets.token_hex(32)
    spec = TokenSpec(
        role=role,
        custom=custom,
        identity=identity,
        hash=hash_secret(secret),
        namespaces=namespaces,
        expires_at=expires_at,
        join=join,
    )
    return Token(meta=Meta(name=name), spec=spec), f"{PREFIX}{name}_{secret}"


def node_token_name(node: str) -> str:
    """Return the name of a node's credential; a node has at most one."""
    return f"node.{node}"


def split_token(text: str) -> tuple[str, str] | None:
    """Return (name, secret), or None for a text that cannot be a token; a fingerprint at its end is ignored."""
    name, _, secret = text.removeprefix(PREFIX).rpartition("_")
    secret = secret.partition(".")[0]  # The fingerprint of the authority follows, for clients.
    return (name, secret) if text.startswith(PREFIX) and name and secret else None


# A server without tokens.


@lru_cache(maxsize=64)
def _names_loopback(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return is_loopback(name)


def check_local(headers: Headers) -> None:
    """Raise `Forbidden` for requests of web pages: a browser sends them, but the page cannot forge Host and Origin."""
    host = header(headers, b"host") or ""
    if not _names_loopback(host):
        raise Forbidden(
            f"the host {host!r} is not this machine",
            hint="a server without tokens accepts only the hosts 127.0.0.1, [::1] and localhost",
        )
    origin = header(headers, b"origin")
    if origin is not None and _host_of(origin) != host:
        raise Forbidden(
            f"the origin {origin!r} is not this server", hint="web pages may not use a server without tokens"
        )
    if header(headers, b"sec-fetch-site") in {"cross-site", "same-site"}:
        raise Forbidden("the request comes from a web page of another origin")


def check_private(source: Source) -> None:
    """Raise `Forbidden` for a token that was sent over plain HTTP from another machine, where it can be intercepted."""
    if source.scheme in {"http", "ws"} and source.address and not is_loopback(source.address):
        raise Forbidden(
            "a token was sent over plain HTTP from another machine, where it can be intercepted",
            hint="use https, and revoke this token: `mandor token revoke NAME`",
        )


def _host_of(origin: str) -> str:
    """Return the host and port of an origin; empty if it is not a URL."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


class Auth:
    """Authenticates the caller of a request."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        tokens_required: bool,
        issuers: Issuers | None = None,
        authority: CertificateAuthority | None = None,
    ) -> None:
        """`authority`: issues the certificates of nodes; None: nodes authenticate with secrets only."""
        self.issuers = issuers
        """Authenticates ID tokens; None: they are not accepted."""
        self._authority = authority
        self._store = store
        self._clock = clock
        self._tokens_required = tokens_required
        self._known: dict[str, tuple[Token, Rules, Caller]] = {}
        """Cached callers by the text of their token, valid while the store returns the same token and rules."""

    async def identify(self, headers: Headers, source: Source = HERE, *, enrols: bool = False) -> Caller:
        """Return the caller of a request; raise `Unauthenticated` or `Forbidden`.

        `enrols`: accept the secret of a node that has a certificate, for a request for its next certificate.
        """
        text = header(headers, b"authorization")
        if text is not None:
            check_private(source)
            scheme, _, given = text.partition(" ")
            if scheme.lower() != "bearer":
                raise Unauthenticated(
                    f"the authorization scheme {scheme!r} is not supported", hint="send `Authorization: Bearer TOKEN`"
                )
            caller = await self.bearer(given.strip())
            if caller.role == "node" and source.secure and not enrols:
                await self._check_unbound(caller)
            return caller
        if source.certificate is not None:
            return await self.certificate(source.certificate)
        if self._tokens_required:
            raise Unauthenticated(
                "this server requires a token",
                hint="send `Authorization: Bearer TOKEN`, made by `mandor token create`",
            )
        check_local(headers)
        return LOCAL

    async def bearer(self, text: str) -> Caller:
        if self.issuers is not None and not text.startswith(PREFIX) and text.count(".") == 2:
            return await self.issuers.identify(text)
        parts = split_token(text)
        found = await self._store.get(Key("token", "", parts[0])) if parts is not None else None
        if parts is None or not isinstance(found, Token):
            raise Unauthenticated("the token is unknown", hint="it may have been revoked")
        rules = await self._rules_of(found)
        token, known, caller = self._known.get(text, (None, None, None))
        if caller is None or token is not found or known is not rules:
            proof = hash_secret(parts[1])
            if not _is_one_of(found, proof):
                raise Unauthenticated("the token is unknown", hint="it may have been revoked")
            spec = found.spec
            namespaces = frozenset(spec.namespaces)
            role, held = spec.custom or spec.role, narrowed(rules, namespaces)
            caller = Caller(spec.identity, role, namespaces, found.meta.name, proof, held)
            if len(self._known) >= CACHED_MOST:
                self._known.clear()
            self._known[text] = found, rules, caller
        if not self._is_valid(found, caller.proof):
            raise Unauthenticated("the token has expired", hint="`mandor token create` creates another")
        return caller

    async def certificate(self, certificate: ClientCertificate) -> Caller:
        """Return the node that a client certificate names.

        The certificate has to be issued by an authority that is trusted now, for the key in the node's credential.
        """
        name, authority = certificate.node, self._authority
        if not name or authority is None:
            raise Unauthenticated("the client certificate does not name a node", hint="users authenticate with a token")
        if not authority.trusts(certificate):
            raise Unauthenticated(
                f"the certificate of {name} has expired, or its authority is no longer trusted",
                hint="the agent gets a new certificate when it starts",
            )
        found = await self._store.get(Key("token", "", node_token_name(name)))
        proof = BY_KEY + certificate.presented.key
        if not isinstance(found, Token) or not self._is_valid(found, proof):
            raise Unauthenticated(
                f"the certificate of {name} is not for the key in its credential", hint="the node may have been deleted"
            )
        if certificate.authenticated is None or certificate.authenticated[0] is not found:
            spec = found.spec
            caller = Caller(spec.identity, spec.role, frozenset(spec.namespaces), found.meta.name, proof)
            certificate.authenticated = found, caller
        return certificate.authenticated[1]

    async def _check_unbound(self, caller: Caller) -> None:
        """Raise `Unauthenticated` if the node has a certificate: its secret alone may be stolen."""
        found = await self._store.get(Key("token", "", caller.token))
        if self._authority is not None and isinstance(found, Token) and found.spec.key:
            raise Unauthenticated(
                f"{caller.identity} has to authenticate with its certificate; its secret alone is not enough",
                hint="the agent gets a new certificate when it starts",
            )

    async def check_valid(self, caller: Caller) -> None:
        """Raise `Unauthenticated` if the caller's token was revoked or expired, and `Forbidden` if its rights changed.

        Called repeatedly for calls that last.
        """
        if not caller.token:
            return
        if caller.verified is not None and self.issuers is not None:
            await self.issuers.check_valid(caller)
            return
        found = await self._store.get(Key("token", "", caller.token))
        if not (isinstance(found, Token) and self._is_valid(found, caller.proof)):
            raise Unauthenticated("the token was revoked, or has expired")
        spec = found.spec
        held = narrowed(await self._rules_of(found), frozenset(spec.namespaces)) if caller.user else caller.rules
        if (spec.identity, spec.custom or spec.role, held) != (caller.identity, caller.role, caller.rules):
            raise Forbidden(f"the rights of {caller.identity} have changed", hint="send the request again")

    async def _rules_of(self, token: Token) -> Rules:
        """Return the rules of a token; empty if its role was deleted."""
        return await rules_of(self._store, token.spec.custom or token.spec.role) or NO_RULES

    def _is_valid(self, token: Token, proof: str) -> bool:
        """Return whether a proof is valid now: the current secret or key, or during an overlap the former one."""
        spec, former = token.spec, token.spec.former
        if spec.expires_at and spec.expires_at <= self._clock.now():
            return False
        if proof in _proofs(spec.hash, spec.key):
            return True
        return former is not None and proof in _proofs(former.hash, former.key) and former.until > self._clock.now()


def is_current(token: Token, proof: str) -> bool:
    """Return whether the proof is the current secret or key of the token, and not the former one."""
    return proof in _proofs(token.spec.hash, token.spec.key)


def _proofs(secret: str, key: str) -> tuple[str, ...]:
    return (secret, BY_KEY + key) if key else (secret,)


def _is_one_of(token: Token, proof: str) -> bool:
    former = token.spec.former
    if former is not None and hmac.compare_digest(former.hash, proof):
        return True
    return hmac.compare_digest(token.spec.hash, proof)
