"""Enrolment: binds a node's credential to a key, and issues certificates for that key only."""

from typing import Any, NamedTuple

import msgspec

from mandor.api.access import missing
from mandor.api.auth import node_token_name
from mandor.api.operation import Call
from mandor.errors import Forbidden, Invalid
from mandor.lib import x509
from mandor.model.meta import Key
from mandor.model.record import Token


class NodeKey(NamedTuple):
    """The public key of a certificate signing request."""

    public: bytes
    key: str
    """Id of the public key."""


def may_issue(call: Call[Any, Any]) -> bool:
    """Return whether the call came over TLS to a server that can issue certificates."""
    authority = call.parts.authority
    return call.secure and authority is not None and authority.ready


def certificate_for(call: Call[Any, Any], csr: str) -> NodeKey:
    try:
        public = x509.read_request(csr)
    except ValueError as error:
        raise Invalid(str(error), path="csr") from error
    return NodeKey(public, x509.key_id(public))


async def credential_of(call: Call[Any, Any], name: str) -> Token:
    key = Key(Token.kind, "", node_token_name(name))
    found = await call.parts.store.get(key)
    if not isinstance(found, Token):
        raise missing(key)
    return found


def bound(token: Token, key: str, now: float, *, current: bool) -> tuple[Token, bool]:
    """Return the credential bound to this key, and whether it was changed; raise `Forbidden` if it has another key.

    `current`: the caller authenticated with the current secret, and not with the former one.
    """
    spec, former = token.spec, token.spec.former
    if spec.key == key or (former is not None and former.key == key and former.until > now):
        return token, False
    if spec.key or not current:
        name = spec.identity.partition(":")[2]
        raise Forbidden(
            f"the credential of {name} is bound to another key",
            hint=f"restore the agent's data directory, or create a credential that is not bound to a key: "
            f"`mandor token create {name} --role node`",
            node=name,
        )
    return token.changed(spec=msgspec.structs.replace(spec, key=key)), True
