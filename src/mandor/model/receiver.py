"""Receivers of cluster events: signed webhooks and event buses, and their delivery status."""

from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from msgspec import Meta as Bounds
from msgspec import Struct, field

from mandor.lib.quantity import Seconds
from mandor.lib.secret_files import plain_name
from mandor.model.meta import InvalidField, Object, check_name
from mandor.model.secret import check_reference

FILE = "file:"
PATTERNS_MOST = 50
PATTERN_MOST = 128
URL_MOST = 2048
LOG_MOST = 30
"""Number of deliveries kept in the status."""
HERE = frozenset({"127.0.0.1", "::1", "localhost"})

Patterns = tuple[Annotated[str, Bounds(min_length=1, max_length=PATTERN_MOST)], ...]
EVERYTHING: Patterns = ("*",)
Attempts = Annotated[int, Bounds(ge=1, le=100)]


FILE_HINT = "file:hook.secret, in the directory of the setting `secret_files`"


def check_ca(text: str) -> None:
    """Check the name of a file in the directory `secret_files`, or its path."""
    if text and not _is_file(text):
        raise InvalidField(
            f"{text[:80]!r} is not the name of a file", "ca", hint="receivers.pem, in the directory `secret_files`"
        )


def check_secret(text: str, path: str) -> None:
    """Check a reference to a secret: `NAME` or `NAME/KEY` of a secret, or `file:NAME` in the directory `secret_files`.

    Older versions accepted paths. These can still be read, but only files of that directory are used.
    """
    if text.startswith(FILE):
        if not _is_file(text.removeprefix(FILE)):
            raise InvalidField(f"{text[:80]!r} is not the name of a file", path, hint=FILE_HINT)
        return
    try:
        check_reference(text)
    except ValueError as error:
        raise InvalidField(str(error), path, hint="NAME or NAME/KEY of a `kind: secret`, or file:NAME") from None


def _is_file(text: str) -> bool:
    return text.startswith("/") or plain_name(text)


class WebhookSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Target of a webhook, the selection of events and the signing secret."""

    url: Annotated[str, Bounds(max_length=URL_MOST)]
    """`https://HOST/PATH`; plain HTTP is allowed only to the server itself. The server's setting `egress_allow`
    limits the hosts.
    """
    secret: str
    """Signing secret: `NAME` or `NAME/KEY` of a secret, or `file:NAME` in the server's `secret_files` directory."""
    old_secret: str | None = None
    """Previous signing secret, while it is being replaced: messages carry signatures of both."""
    secret_namespace: str = "default"  # noqa: S105 - the namespace, not a secret
    """Namespace of the secrets. Defaults to `default`."""
    ca: str = ""
    """File with CA certificates in the server's `secret_files` directory. Defaults to the system's CA certificates."""
    events: Patterns = EVERYTHING
    """Events to send, as `KIND.REASON` with `*` and `?` as wildcards: `instance.*`, `*.Failed`, `task.*`. Defaults to
    all.
    """
    namespaces: Patterns = EVERYTHING
    """Namespaces of the events, with wildcards. Events of cluster-wide objects such as nodes match only `*`. Defaults
    to all.
    """
    severity: Literal["normal", "warning"] = "normal"
    """`normal` sends all events, `warning` only warnings. Defaults to `normal`."""
    active: bool = True
    """Whether events are sent. Events that occur while it is false are sent afterwards if they are still stored.
    Defaults to true.
    """
    timeout: Seconds = Seconds(10)
    """Time to wait for a response, 100ms to 2m. Defaults to 10s."""
    attempts: Attempts = 10
    """Number of attempts to send a message that the receiver answers with a status other than 2xx; then the message is
    dropped. Defaults to 10.
    """
    patience: Seconds = Seconds(86_400)
    """Maximum age of a message while the receiver is unreachable or answers 429, 502, 503 or 504, 1s to 7d; then the
    message is dropped. Defaults to 24h.
    """

    def __post_init__(self) -> None:
        try:
            split = urlsplit(self.url)
            host = split.hostname
            split.port  # noqa: B018 - raises ValueError for an invalid port
        except ValueError as error:
            raise InvalidField(f"{self.url[:100]!r} is not a valid URL: {error}", "url") from None
        if split.scheme not in {"http", "https"} or not host:
            raise InvalidField(f"{self.url[:100]!r} is not the URL of a receiver", "url", hint="https://HOST/PATH")
        if split.scheme == "http" and host not in HERE:
            raise InvalidField(
                "events must be sent over https, except to the server itself", "url", hint=f"https://{split.netloc}…"
            )
        if split.username is not None or split.fragment:
            raise InvalidField(
                "the URL must not have a user or a fragment; messages are authenticated by signature", "url"
            )
        check_secret(self.secret, "secret")
        if self.old_secret is not None:
            check_secret(self.old_secret, "old_secret")
        _check_common(self)


class EventBusSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Target of published events and their selection."""

    url: Annotated[str, Bounds(max_length=URL_MOST)]
    """`nats://HOST:4222` (JetStream) or `kafka://HOST:9092`; several hosts are separated by commas. `tls://` and
    `kafkas://` use TLS.
    """
    topic: Annotated[str, Bounds(max_length=200)] = "mandor.events"
    """Kafka topic, or prefix of NATS subjects: `mandor.events.instance.Started`. Defaults to `mandor.events`."""
    stream: Annotated[str, Bounds(max_length=200)] = "MANDOR"
    """NATS stream; created if it does not exist. Defaults to `MANDOR`."""
    user: str = ""
    """User name; requires `password`. Defaults to no authentication."""
    password: str | None = None
    """Password: `NAME` or `NAME/KEY` of a secret, or `file:NAME` in the server's `secret_files` directory."""
    secret_namespace: str = "default"  # noqa: S105 - the namespace, not a secret
    """Namespace of the secret. Defaults to `default`."""
    ca: str = ""
    """File with CA certificates in the server's `secret_files` directory. Defaults to the system's CA certificates."""
    events: Patterns = EVERYTHING
    """Events to publish, as `KIND.REASON` with `*` and `?` as wildcards: `instance.*`, `*.Failed`, `task.*`. Defaults
    to all.
    """
    namespaces: Patterns = EVERYTHING
    """Namespaces of the events, with wildcards. Events of cluster-wide objects such as nodes match only `*`. Defaults
    to all.
    """
    severity: Literal["normal", "warning"] = "normal"
    """`normal` publishes all events, `warning` only warnings. Defaults to `normal`."""
    active: bool = True
    """Whether events are published. Events that occur while it is false are published afterwards if they are still
    stored. Defaults to true.
    """
    timeout: Seconds = Seconds(10)
    """Time to wait for the bus to acknowledge a message, 100ms to 2m. Defaults to 10s."""
    attempts: Attempts = 10
    """Number of attempts to publish a message that the bus rejects; then the message is dropped. Defaults to 10."""
    patience: Seconds = Seconds(86_400)
    """Maximum age of a message while the bus is unreachable, 1s to 7d; then the message is dropped. Defaults to 24h."""

    def __post_init__(self) -> None:
        scheme, sep, rest = self.url.partition("://")
        if scheme not in {"nats", "tls", "kafka", "kafkas"} or not sep or not all(map(_host, rest.split(","))):
            raise InvalidField(
                f"{self.url[:100]!r} is not the URL of an event bus",
                "url",
                hint="nats://HOST:4222, or kafka://HOST:9092",
            )
        for value, what in ((self.topic, "topic"), (self.stream, "stream")):
            if not value or not all(letter.isalnum() or letter in "._-" for letter in value) or not value.isascii():
                raise InvalidField(
                    f"{value[:40]!r} is not a valid {what}", what, hint="use letters, digits, `.`, `_` and `-`"
                )
        if "." in self.stream:
            raise InvalidField("the name of a stream must not contain a dot", "stream")
        if bool(self.user) != (self.password is not None):
            raise InvalidField("`user` and `password` must be set together", "user")
        if self.password is not None:
            check_secret(self.password, "password")
        _check_common(self)


def _host(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = text, "1"
    plain = host.strip("[]").replace(":", "")
    words = bool(plain) and plain.isascii() and all(letter.isalnum() or letter in ".-_" for letter in plain)
    return words and port.isdecimal() and 0 < int(port) < 65536


def _check_common(spec: WebhookSpec | EventBusSpec) -> None:
    for patterns, path in ((spec.events, "events"), (spec.namespaces, "namespaces")):
        if not 1 <= len(patterns) <= PATTERNS_MOST:
            raise InvalidField(f"{len(patterns)} patterns; 1 to {PATTERNS_MOST} are allowed", path)
    if not 0.1 <= spec.timeout <= 120:
        raise InvalidField(f"the timeout {spec.timeout} is out of range", "timeout", hint="100ms to 2m")
    if not 1 <= spec.patience <= 7 * 86_400:
        raise InvalidField(f"the patience {spec.patience} is out of range", "patience", hint="1s to 7d")
    check_ca(spec.ca)
    check_name(spec.secret_namespace, "namespace")


Outcome = Literal["delivered", "failed", "given up"]


class Delivery(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """One attempt to deliver a message, or the final outcome of a message."""

    at: float
    id: str
    type: str
    subject: str
    outcome: Outcome
    attempt: int = 1
    milliseconds: int = 0
    says: str = ""
    """Response of the receiver, or the error."""


class ReceiverStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Delivery status, written by the sending server."""

    revision: int = 0
    """Store revision up to which all events are delivered or dropped."""
    at: float = 0.0
    """Unix time at which that revision was reached."""
    delivered: int = 0
    given_up: int = 0
    failures: int = 0
    """Number of consecutive failed attempts."""
    message: str = ""
    """The current problem."""
    log: tuple[Delivery, ...] = ()
    """Most recent deliveries, newest first."""


class Webhook(Object, frozen=True, tag="webhook"):
    """A cluster-wide receiver of events, called over HTTP by the server. Managed by admins."""

    kind: ClassVar[str] = "webhook"
    plural: ClassVar[str] = "webhooks"
    namespaced: ClassVar[bool] = False
    spec: WebhookSpec
    status: ReceiverStatus = field(default_factory=ReceiverStatus)


class EventBus(Object, frozen=True, tag="event-bus"):
    """A NATS or Kafka address that the server sends events to."""

    kind: ClassVar[str] = "event-bus"
    plural: ClassVar[str] = "event-buses"
    namespaced: ClassVar[bool] = False
    spec: EventBusSpec
    status: ReceiverStatus = field(default_factory=ReceiverStatus)


Receiver = Webhook | EventBus
