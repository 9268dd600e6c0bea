"""Authority: the certificates that the parts of a cluster trust, and the sealed keys that sign for it."""

from typing import ClassVar

from msgspec import Struct, field

from mandor.model.meta import Key, Object
from mandor.model.record import Empty

FEATURE = "certificates"
NODE_URI = "mandor:node:"
"""Begins the URI in the certificate of a node; its name follows."""


class TrustedCertificate(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    certificate: str
    """PEM."""
    key: str = ""
    """Its private key, sealed with the key of the cluster's secrets; empty: servers have it as a file."""
    cross: str = ""
    """The same authority, signed by the one before it; empty: there was none."""
    until: float = 0.0
    """Trusted until then; 0: this one issues certificates."""


class AuthoritySpec(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    certificates: tuple[TrustedCertificate, ...]
    """The first issues certificates; the others are trusted for a while after a rotation."""


class Authority(Object, frozen=True, tag="authority"):
    """The one object called `cluster`: the authority that issues certificates to servers and nodes."""

    kind: ClassVar[str] = "authority"
    plural: ClassVar[str] = "authorities"
    namespaced: ClassVar[bool] = False
    spec: AuthoritySpec
    status: Empty = field(default_factory=Empty)


KEY = Key(Authority.kind, "", "cluster")
