"""Secret: what tasks need to know and nobody else may read."""

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta as Bounds
from msgspec import Struct, field

from mandor.model.features import needs
from mandor.model.meta import Misfit, Object, check_name

VALUE = "value"
"""The key of a secret that has a single value without a name."""
KEYS_MOST = 100
BYTES_MOST = 1 << 20

Value = Annotated[str, Bounds(max_length=BYTES_MOST)]
_KEY = re.compile(r"[A-Za-z0-9._-]{1,253}")
_WITHIN = re.compile(r"\$\{secret:([^{}\s]*)\}")


class SecretSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Given once, sealed by the server, and opened for the nodes that run a task which names it."""

    value: Value | None = None
    """A single value."""
    data: dict[str, Value] = {}
    """Several values, by key."""
    sealed: dict[str, str] = {}
    """What is stored of them; the server writes it, and shows the keys alone."""

    def __post_init__(self) -> None:
        if self.value is not None and self.data:
            raise Misfit("give `value`, or several under `data`, not both", "value")
        if len(self.data) > KEYS_MOST or sum(map(len, self.data.values())) > BYTES_MOST:
            raise Misfit(f"a secret has at most {KEYS_MOST} values and {BYTES_MOST} characters", "data")
        for key in self.data:
            if not _KEY.fullmatch(key):
                raise Misfit(f"{key[:40]!r} is no key: letters, digits, `.`, `_` and `-`", "data")

    @property
    def values(self) -> dict[str, str]:
        """As given, by key."""
        return {VALUE: self.value} if self.value is not None else self.data


class SecretStatus(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Written by the server."""

    changes: Annotated[int, needs("secret-changes")] = 0
    """How many writes have changed, added or removed a value. A key rotation seals values anew and changes none."""


class Secret(Object, frozen=True, tag="secret"):
    """Values for tasks, stored encrypted; only nodes that run a task with the secret can read them."""

    kind: ClassVar[str] = "secret"
    plural: ClassVar[str] = "secrets"
    spec: SecretSpec = field(default_factory=SecretSpec)
    status: SecretStatus = field(default_factory=SecretStatus)

    @property
    def content_id(self) -> str:
        """Differs between two states of a secret of one name if their values differ; it reveals nothing of them."""
        return f"{self.meta.uid}.{self.status.changes}"


def check_reference(text: str) -> None:
    """`NAME`, or `NAME/KEY` of a secret that has several values."""
    name, slash, key = text.partition("/")
    check_name(name, "name of a secret")
    if slash and not _KEY.fullmatch(key):
        raise ValueError(f"{text[:60]!r} names no key of a secret; write NAME, or NAME/KEY")


def references_in(text: str) -> list[str]:
    """What `${secret:NAME/KEY}` in a text names."""
    return _WITHIN.findall(text) if "${secret:" in text else []


def with_secrets(text: str, values: Mapping[str, str]) -> str:
    """The text with those values in it."""
    return _WITHIN.sub(lambda match: values[match[1]], text) if "${secret:" in text else text


def secret_of(reference: str) -> str:
    """The name of the secret."""
    return reference.partition("/")[0]


def whole(name: str) -> str:
    """The reference to all values of a secret, as JSON."""
    return f"{name}/*"


def pick(reference: str, values: dict[str, str]) -> str | None:
    """The value that is meant; None: the secret has no such key, or several and none is named."""
    key = reference.partition("/")[2]
    if key == "*":
        return msgspec.json.encode(values).decode()
    if key:
        return values.get(key)
    return values.get(VALUE) if VALUE in values else next(iter(values.values())) if len(values) == 1 else None
