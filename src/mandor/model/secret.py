"""Secret: confidential values for tasks."""

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta as Bounds
from msgspec import Struct, field

from mandor.model.features import needs
from mandor.model.meta import InvalidField, Object, check_name

VALUE = "value"
"""Key of a secret that has a single, unnamed value."""
KEYS_MOST = 100
BYTES_MOST = 1 << 20

Value = Annotated[str, Bounds(max_length=BYTES_MOST)]
_KEY = re.compile(r"[A-Za-z0-9._-]{1,253}")
_WITHIN = re.compile(r"\$\{secret:([^{}\s]*)\}")


class SecretSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Values of a secret. The server encrypts them and decrypts them only for nodes that run a task which refers to the
    secret.
    """

    value: Value | None = None
    """A single value; excludes `data`."""
    data: dict[str, Value] = {}
    """Several values by key, at most 100."""
    sealed: dict[str, str] = {}
    """Encrypted values, written by the server. The API shows only the keys."""

    def __post_init__(self) -> None:
        if self.value is not None and self.data:
            raise InvalidField("set either `value` or `data`, not both", "value")
        if len(self.data) > KEYS_MOST or sum(map(len, self.data.values())) > BYTES_MOST:
            raise InvalidField(f"at most {KEYS_MOST} values with {BYTES_MOST} characters in all are allowed", "data")
        for key in self.data:
            if not _KEY.fullmatch(key):
                raise InvalidField(f"{key[:40]!r} is not a valid key; use letters, digits, `.`, `_` and `-`", "data")

    @property
    def values(self) -> dict[str, str]:
        """Unencrypted values by key."""
        return {VALUE: self.value} if self.value is not None else self.data


class IssuedCertificate(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """The certificate that the control plane has stored in a secret."""

    host: str
    """Host name that the certificate is for."""
    not_before: float = 0.0
    """Unix time from which the certificate is valid; 0: none has been issued yet."""
    not_after: float = 0.0
    """Unix time at which the certificate expires."""


class SecretStatus(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Status of a secret, written by the server."""

    changes: Annotated[int, needs("secret-changes")] = 0
    """Number of writes that changed, added or removed a value. A key rotation re-encrypts values and does not count."""
    issued: Annotated[IssuedCertificate | None, needs("acme")] = None
    """The certificate by ACME that the values are; empty: a user wrote the values."""


class Secret(Object, frozen=True, tag="secret"):
    """Values for tasks, stored encrypted; only nodes that run a task with the secret can read them."""

    kind: ClassVar[str] = "secret"
    plural: ClassVar[str] = "secrets"
    spec: SecretSpec = field(default_factory=SecretSpec)
    status: SecretStatus = field(default_factory=SecretStatus)

    @property
    def content_id(self) -> str:
        """Id that differs between states of the secret whose values differ, without revealing anything about the
        values.
        """
        return f"{self.meta.uid}.{self.status.changes}"


def about_value(secret: Object, key: str) -> str:
    """Return the context that the value of a key is sealed with."""
    return f"{secret.key} {key}"


def check_reference(text: str) -> None:
    """Check a reference to a secret: `NAME`, or `NAME/KEY` for one of several values."""
    name, slash, key = text.partition("/")
    check_name(name, "name of a secret")
    if slash and not _KEY.fullmatch(key):
        raise ValueError(f"{text[:60]!r} is not a reference to a secret; write NAME or NAME/KEY")


def references_in(text: str) -> list[str]:
    """List the references `${secret:NAME/KEY}` in a text."""
    return _WITHIN.findall(text) if "${secret:" in text else []


def with_secrets(text: str, values: Mapping[str, str]) -> str:
    """Return the text with its references replaced by these values."""
    return _WITHIN.sub(lambda match: values[match[1]], text) if "${secret:" in text else text


def secret_of(reference: str) -> str:
    """Return the name of the secret in a reference."""
    return reference.partition("/")[0]


def whole(name: str) -> str:
    """Return the reference to all values of a secret as JSON."""
    return f"{name}/*"


def pick(reference: str, values: dict[str, str]) -> str | None:
    """Return the value that a reference selects; None if there is no such key, or if there are several and no key is
    given.
    """
    key = reference.partition("/")[2]
    if key == "*":
        return msgspec.json.encode(values).decode()
    if key:
        return values.get(key)
    return values.get(VALUE) if VALUE in values else next(iter(values.values())) if len(values) == 1 else None
