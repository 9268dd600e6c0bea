"""Binds a node to its key: a certificate is issued only for the key that the node's credential names."""

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
    """Its id."""


def may_issue(call: Call[Any, Any]) -> bool:
    """Certificates are for nodes that talk TLS to a server which has an authority."""
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
    """The credential bound to this key, and whether it has to be written; `Forbidden`: it is bound to another one.

    `current`: the caller showed the secret that the credential has now, and not the one before.
    """
    spec, former = token.spec, token.spec.former
    if spec.key == key or (former is not None and former.key == key and former.until > now):
        return token, False
    if spec.key or not current:
        name = spec.identity.partition(":")[2]
        raise Forbidden(
            f"{name} is known by another key, and gets no certificate for this one",
            hint=f"keep the agent's data directory whole; `mandor token create {name} --role node` makes a credential "
            "that is not bound to a key yet",
            node=name,
        )
    return token.changed(spec=msgspec.structs.replace(spec, key=key)), True
