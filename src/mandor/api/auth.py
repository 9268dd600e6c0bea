"""Who is calling: bearer tokens, or, without any, only this machine and no web page."""

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
"""Begins the proof of a caller that showed a certificate: the id of its key follows."""
KNOWN_MOST = 50_000
"""So many callers are remembered; then it begins anew."""

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
    """A new token object, and the text its bearer shows; the text is kept nowhere."""
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
    """A node has at most one credential, so it is found by the node's name."""
    return f"node.{node}"


def split_token(text: str) -> tuple[str, str] | None:
    """(name, secret), or None if it cannot be a token; a fingerprint at its end is left out."""
    name, _, secret = text.removeprefix(PREFIX).rpartition("_")
    secret = secret.partition(".")[0]  # The fingerprint of the authority follows, for clients.
    return (name, secret) if text.startswith(PREFIX) and name and secret else None


# A machine without tokens.


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
    if origin is not None and _host_of(origin) != host:
        raise Forbidden(f"the origin {origin!r} is foreign", hint="web pages may not use a server without tokens")
    if header(headers, b"sec-fetch-site") in {"cross-site", "same-site"}:
        raise Forbidden("the request comes from a web page of another origin")


def check_private(source: Source) -> None:
    """Raise `Forbidden` for a token that came over plain HTTP from another machine: others may have read it."""
    if source.scheme in {"http", "ws"} and source.address and not is_loopback(source.address):
        raise Forbidden(
            "a token was sent over plain HTTP from another machine, where others can read it",
            hint="use https, and revoke this token: `mandor token revoke NAME`",
        )


def _host_of(origin: str) -> str:
    """The host and port of an origin; empty where it has none, or is no URL."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


class Auth:
    """Finds the caller of a request."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        tokens_required: bool,
        issuers: Issuers | None = None,
        authority: CertificateAuthority | None = None,
    ) -> None:
        """`authority`: issues the certificates of nodes; None: nodes show their secrets only."""
        self.issuers = issuers
        """Turns ID tokens into callers; None: none are accepted."""
        self._authority = authority
        self._store = store
        self._clock = clock
        self._tokens_required = tokens_required
        self._known: dict[str, tuple[Token, Rules, Caller]] = {}
        """Callers by the text they showed, with the token and the rules they were made from: while the store has the
        same ones, there is nothing to compute."""

    async def identify(self, headers: Headers, source: Source = HERE, *, enrols: bool = False) -> Caller:
        """`enrols`: a node that has a certificate may show its secret here, to get the next one."""
        text = header(headers, b"authorization")
        if text is not None:
            check_private(source)
            scheme, _, given = text.partition(" ")
            if scheme.lower() != "bearer":
                raise Unauthenticated(f"the scheme {scheme!r} is unknown", hint="send `Authorization: Bearer TOKEN`")
            caller = await self.bearer(given.strip())
            if caller.role == "node" and source.secure and not enrols:
                await self._check_unbound(caller)
            return caller
        if source.certificate is not None:
            return await self.certificate(source.certificate)
        if self._tokens_required:
            raise Unauthenticated(
                "a token is needed", hint="send `Authorization: Bearer TOKEN`; `mandor token create` makes one"
            )
        check_local(headers)
        return LOCAL

    async def bearer(self, text: str) -> Caller:
        if self.issuers is not None and not text.startswith(PREFIX) and text.count(".") == 2:
            return await self.issuers.identify(text)
        parts = split_token(text)
        found = await self._store.get(Key("token", "", parts[0])) if parts is not None else None
        if parts is None or not isinstance(found, Token):
            raise Unauthenticated("nobody knows this token", hint="it may have been revoked")
        rules = await self._rules_of(found)
        token, known, caller = self._known.get(text, (None, None, None))
        if caller is None or token is not found or known is not rules:
            proof = hash_secret(parts[1])
            if not _is_one_of(found, proof):
                raise Unauthenticated("nobody knows this token", hint="it may have been revoked")
            spec = found.spec
            namespaces = frozenset(spec.namespaces)
            role, held = spec.custom or spec.role, narrowed(rules, namespaces)
            caller = Caller(spec.identity, role, namespaces, found.meta.name, proof, held)
            if len(self._known) >= KNOWN_MOST:
                self._known.clear()
            self._known[text] = found, rules, caller
        if not self._lasts(found, caller.proof):
            raise Unauthenticated("the token has expired", hint="`mandor token create` makes another")
        return caller

    async def certificate(self, certificate: ClientCertificate) -> Caller:
        """Return the node that a client certificate names.

        The certificate has to be issued by an authority that is trusted now, for the key in the node's credential.
        """
        name, authority = certificate.node, self._authority
        if not name or authority is None:
            raise Unauthenticated("this certificate is not one of a node", hint="people show a token")
        if not authority.trusts(certificate):
            raise Unauthenticated(
                f"the certificate of {name} has ended, or its authority is not trusted any more",
                hint="the agent gets another one when it starts",
            )
        found = await self._store.get(Key("token", "", node_token_name(name)))
        proof = BY_KEY + certificate.presented.key
        if not isinstance(found, Token) or not self._lasts(found, proof):
            raise Unauthenticated(f"{name} is not known by this certificate", hint="the node may have been deleted")
        if certificate.authenticated is None or certificate.authenticated[0] is not found:
            spec = found.spec
            caller = Caller(spec.identity, spec.role, frozenset(spec.namespaces), found.meta.name, proof)
            certificate.authenticated = found, caller
        return certificate.authenticated[1]

    async def _check_unbound(self, caller: Caller) -> None:
        """A secret alone may be stolen: it is not taken from a node that has a certificate."""
        found = await self._store.get(Key("token", "", caller.token))
        if self._authority is not None and isinstance(found, Token) and found.spec.key:
            raise Unauthenticated(
                f"{caller.identity} shows its certificate, and its secret alone is not enough",
                hint="the agent gets another certificate when it starts",
            )

    async def check_still(self, caller: Caller) -> None:
        """For calls that last: raise `Unauthenticated` once the token was revoked or has expired, and `Forbidden` once
        its role, its namespaces or the rules of its role have changed."""
        if not caller.token:
            return
        if caller.verified is not None and self.issuers is not None:
            await self.issuers.check_still(caller)
            return
        found = await self._store.get(Key("token", "", caller.token))
        if not (isinstance(found, Token) and self._lasts(found, caller.proof)):
            raise Unauthenticated("the token was revoked, or has expired")
        spec = found.spec
        held = narrowed(await self._rules_of(found), frozenset(spec.namespaces)) if caller.user else caller.rules
        if (spec.identity, spec.custom or spec.role, held) != (caller.identity, caller.role, caller.rules):
            raise Forbidden(f"the rights of {caller.identity} have changed", hint="send the request again")

    async def _rules_of(self, token: Token) -> Rules:
        """None of them if its role was deleted."""
        return await rules_of(self._store, token.spec.custom or token.spec.role) or NO_RULES

    def _lasts(self, token: Token, proof: str) -> bool:
        """For whoever showed this secret: the one that it has, or for a while the one before."""
        spec, former = token.spec, token.spec.former
        if spec.expires_at and spec.expires_at <= self._clock.now():
            return False
        if proof in _proofs(spec.hash, spec.key):
            return True
        return former is not None and proof in _proofs(former.hash, former.key) and former.until > self._clock.now()


def is_current(token: Token, proof: str) -> bool:
    """Return whether the caller showed the secret or the key that the token has now, and not the one before."""
    return proof in _proofs(token.spec.hash, token.spec.key)


def _proofs(secret: str, key: str) -> tuple[str, ...]:
    return (secret, BY_KEY + key) if key else (secret,)


def _is_one_of(token: Token, proof: str) -> bool:
    former = token.spec.former
    if former is not None and hmac.compare_digest(former.hash, proof):
        return True
    return hmac.compare_digest(token.spec.hash, proof)
