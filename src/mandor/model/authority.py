"""Authority: the certificates that the parts of a cluster trust, and the encrypted keys that sign new ones."""

from typing import ClassVar

from msgspec import Struct, field

from mandor.model.meta import Key, Object
from mandor.model.record import Empty

FEATURE = "certificates"
NODE_URI = "mandor:node:"
"""Prefix of the URI in a node's certificate, followed by the node's name."""


class TrustedCertificate(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    certificate: str
    """The certificate in PEM format."""
    key: str = ""
    """The private key, encrypted with the cluster's secret key; empty if the servers read the key from a file."""
    cross: str = ""
    """The same authority signed by its predecessor; empty if there is none."""
    until: float = 0.0
    """Unix time until which the certificate is trusted; 0 for the certificate that issues new ones."""


class AuthoritySpec(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    certificates: tuple[TrustedCertificate, ...]
    """Trusted certificates. The first one issues certificates; the others stay trusted for a while after a rotation."""


class Authority(Object, frozen=True, tag="authority"):
    """The certificate authority of servers and nodes; a single object named `cluster`."""

    kind: ClassVar[str] = "authority"
    plural: ClassVar[str] = "authorities"
    namespaced: ClassVar[bool] = False
    spec: AuthoritySpec
    status: Empty = field(default_factory=Empty)


KEY = Key(Authority.kind, "", "cluster")
