"""AcmeAccount: the account of the cluster at a certificate authority, with its encrypted key."""

from typing import ClassVar

from msgspec import Struct, field

from mandor.model.meta import Object
from mandor.model.record import Empty

FEATURE = "acme"


class AcmeAccountSpec(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    directory: str
    """URL of the directory of the certificate authority."""
    url: str = ""
    """URL of the account; empty: it has not been registered yet."""
    email: str = ""
    """Address of the account holder, as it was registered."""
    sealed: str
    """Private key of the account in PEM format, encrypted with the cluster's secret key."""


class AcmeAccount(Object, frozen=True, tag="acme-account"):
    """The account with which the cluster orders certificates; one object per certificate authority."""

    kind: ClassVar[str] = "acme-account"
    plural: ClassVar[str] = "acme-accounts"
    namespaced: ClassVar[bool] = False
    spec: AcmeAccountSpec
    status: Empty = field(default_factory=Empty)
