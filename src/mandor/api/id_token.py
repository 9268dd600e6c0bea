"""ID tokens: read with bounds, and verified with the issuer's keys; no I/O.

Only the token's own `alg` and `kid` are taken from its header, and `alg` only to choose among the asymmetric algorithms
that a key of that type allows. `jku`, `jwk`, `x5u` and `x5c` are ignored: keys come from the issuer alone.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from mandor.errors import Unauthenticated
from mandor.model.role import IssuerSpec

TOKEN_BYTES_MOST = 16 * 1024
KEYS_MOST = 64
LEEWAY_SECONDS = 60.0
"""Tolerated difference between the clocks of issuer and server."""
LIFE_SECONDS_MOST = 24 * 3600.0
"""Age at which a token is refused, regardless of its `exp`."""
GROUPS_MOST = 1000
ALGORITHMS: Mapping[tuple[str, str], str] = {
    ("RSA", ""): "RS256",
    ("EC", "P-256"): "ES256",
    ("OKP", "Ed25519"): "EdDSA",
}
"""The algorithm that a key is used with, by its type and curve."""


@dataclass(frozen=True, slots=True)
class Unverified:
    """The header and claims of a token whose signature was not checked."""

    alg: str
    kid: str
    issuer: str
    audience: frozenset[str]


def read_unverified(text: str) -> Unverified:
    """Raise `Unauthenticated` for anything that cannot be an ID token."""
    if len(text) > TOKEN_BYTES_MOST:
        raise _refusal(f"it has more than {TOKEN_BYTES_MOST} characters")
    parts = text.split(".")
    if len(parts) != 3 or not all(parts):
        raise _refusal("it is not a signed JWT")
    header, claims = _json(parts[0]), _json(parts[1])
    alg, kid, issuer = header.get("alg"), header.get("kid", ""), claims.get("iss")
    if not isinstance(alg, str) or alg not in ALGORITHMS.values():
        raise _refusal("its `alg` is none of RS256, ES256 and EdDSA")
    if "crit" in header:
        raise _refusal("it has critical header parameters")
    if not isinstance(kid, str) or len(kid) > 256 or not isinstance(issuer, str):
        raise _refusal("its `kid` or `iss` is not a short text")
    return Unverified(alg, kid, issuer, _audience(claims))


def _json(part: str) -> dict[str, Any]:
    try:
        raw = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
        found: dict[str, Any] = msgspec.json.decode(raw, type=dict[str, Any])
    except (binascii.Error, ValueError, msgspec.DecodeError, RecursionError) as error:
        raise _refusal("it cannot be read") from error
    return found


def _audience(claims: Mapping[str, Any]) -> frozenset[str]:
    given = claims.get("aud")
    many = given if isinstance(given, list) else [given]
    return frozenset(each for each in many if isinstance(each, str))


def _refusal(why: str) -> Unauthenticated:
    return Unauthenticated(f"the ID token is refused: {why}", hint="`mandor login` gets another")


# Keys.


@dataclass(frozen=True, slots=True)
class IssuerKey:
    kid: str
    alg: str
    key: Any
    """Public key as an object of the `jwt` library."""


def read_keys(document: bytes) -> tuple[IssuerKey, ...]:
    """Return the usable signature keys of a JWKS document; others are skipped."""
    import jwt

    plain = msgspec.json.decode(document, type=dict[str, Any])
    found = []
    for each in list(plain.get("keys", ()))[:KEYS_MOST]:
        if not isinstance(each, dict) or each.get("use", "sig") != "sig":
            continue
        curve = "" if each.get("kty") == "RSA" else str(each.get("crv", ""))
        alg = ALGORITHMS.get((str(each.get("kty")), curve))
        if alg is None or each.get("alg", alg) not in {alg, "Ed25519"}:
            continue
        try:
            key = jwt.PyJWK({name: value for name, value in each.items() if name not in {"d", "p", "q"}}, alg)
        except (jwt.PyJWTError, ValueError, TypeError, KeyError):
            continue
        found.append(IssuerKey(str(each.get("kid", "")), alg, key.key))
    return tuple(found)


def matching(keys: Sequence[IssuerKey], token: Unverified) -> IssuerKey | None:
    """Return the key that the token names; without a name, the only one of its algorithm."""
    usable = [each for each in keys if each.alg == token.alg]
    if token.kid:
        return next((each for each in usable if each.kid == token.kid), None)
    return usable[0] if len(usable) == 1 else None


# Verifying.


@dataclass(frozen=True, slots=True)
class Verified:
    """A token that its issuer has signed for this cluster."""

    issuer: str
    """Name of the issuer object, which bindings refer to."""
    user: str
    groups: frozenset[str]
    claims: Mapping[str, str]
    """Claims with text values, for bindings by claim."""
    expires_at: float
    workload: bool


def verified(text: str, key: IssuerKey, name: str, issuer: IssuerSpec, now: float) -> Verified:
    """Raise `Unauthenticated` unless the signature, `iss`, `aud`, `exp`, `nbf` and `iat` are right."""
    import jwt

    try:
        claims = jwt.decode(
            text,
            key.key,
            algorithms=[key.alg],
            audience=list(issuer.audience),
            issuer=issuer.url,
            # Times are compared below, by this server's clock.
            options={
                "require": ["exp", "iat", "iss", "aud", "sub"],
                "verify_exp": False,
                "verify_nbf": False,
                "verify_iat": False,
            },
        )
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        raise _refusal(type(error).__name__) from error
    expires_at, issued_at = _moment(claims, "exp"), _moment(claims, "iat")
    if now >= expires_at + LEEWAY_SECONDS:
        raise _refusal("it has expired")
    if max(issued_at, _moment(claims, "nbf", 0.0)) > now + LEEWAY_SECONDS:
        raise _refusal("it is not valid yet")
    if now - issued_at > LIFE_SECONDS_MOST:
        raise _refusal("it was issued more than a day ago")
    return Verified(
        issuer=name,
        user=_user(claims, issuer),
        groups=_groups(claims, issuer.groups_claim),
        claims={key: value for key, value in claims.items() if isinstance(value, str)},
        expires_at=min(expires_at + LEEWAY_SECONDS, issued_at + LIFE_SECONDS_MOST),
        workload=issuer.subjects == "workloads",
    )


def _moment(claims: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = claims.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise _refusal(f"its `{name}` is not a time")
    return float(value)


def _user(claims: Mapping[str, Any], issuer: IssuerSpec) -> str:
    name = claims.get(issuer.username_claim)
    if not isinstance(name, str) or not 0 < len(name) <= 256 or not name.isprintable():
        raise _refusal(f"its claim `{issuer.username_claim}` is not a user name")
    if issuer.username_claim == "email" and claims.get("email_verified") is not True:
        raise _refusal("its issuer has not verified the e-mail address")
    return name


def _groups(claims: Mapping[str, Any], name: str) -> frozenset[str]:
    given = claims.get(name, ())
    many = [given] if isinstance(given, str) else given
    if not isinstance(many, list | tuple):
        return frozenset()
    return frozenset(each for each in many[:GROUPS_MOST] if isinstance(each, str))
