"""Receivers: who is told what happens in the cluster, by signed webhook or over an event bus, and how that goes."""

from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from msgspec import Meta as Bounds
from msgspec import Struct, field

from mandor.lib.quantity import Seconds
from mandor.lib.secret_files import plain_name
from mandor.model.meta import Misfit, Object, check_name
from mandor.model.secret import check_reference

FILE = "file:"
PATTERNS_MOST = 50
PATTERN_MOST = 128
URL_MOST = 2048
LOG_MOST = 30
"""So many deliveries are remembered."""
HERE = frozenset({"127.0.0.1", "::1", "localhost"})

Patterns = tuple[Annotated[str, Bounds(min_length=1, max_length=PATTERN_MOST)], ...]
EVERYTHING: Patterns = ("*",)
Attempts = Annotated[int, Bounds(ge=1, le=100)]


FILE_HINT = "file:hook.secret, in the folder that the setting `secret_files` names"


def check_ca(text: str) -> None:
    """The name of a file in the folder `secret_files`, or its path."""
    if text and not _is_file(text):
        raise Misfit(f"{text[:80]!r} is no file", "ca", hint="receivers.pem, in the folder `secret_files`")


def check_secret(text: str, path: str) -> None:
    """`NAME` or `NAME/KEY` of a secret, or `file:NAME` in the folder `secret_files`. Paths were possible before there
    was such a folder: they can still be read, and only those of that folder are used."""
    if text.startswith(FILE):
        if not _is_file(text.removeprefix(FILE)):
            raise Misfit(f"{text[:80]!r} names no file", path, hint=FILE_HINT)
        return
    try:
        check_reference(text)
    except ValueError as error:
        raise Misfit(str(error), path, hint="NAME or NAME/KEY of a `kind: secret`, or file:NAME") from None


def _is_file(text: str) -> bool:
    return text.startswith("/") or plain_name(text)


class WebhookSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Where events are sent, which, and what they are signed with."""

    url: Annotated[str, Bounds(max_length=URL_MOST)]
    """`https://HOST/PATH`; plain http only to this machine. The server's setting `egress_allow` says which hosts are
    called."""
    secret: str
    """What messages are signed with: `NAME` or `NAME/KEY` of a secret, or `file:NAME` in the folder that the server's
    setting `secret_files` names."""
    old_secret: str | None = None
    """While the secret is changed: messages carry a signature by this one, too."""
    secret_namespace: str = "default"  # noqa: S105 - where it lives, not what it is
    """Where the secrets live."""
    ca: str = ""
    """A file in the server's folder `secret_files` with certificates to trust; absent: those of the machine."""
    events: Patterns = EVERYTHING
    """Which, as `KIND.REASON` with `*` and `?`: `instance.*`, `*.Failed`, `task.*`."""
    namespaces: Patterns = EVERYTHING
    """Only what happens in these; what is in no namespace (nodes) is there for `*` alone."""
    severity: Literal["normal", "warning"] = "normal"
    """`warning`: warnings alone."""
    active: bool = True
    """False: nothing is sent; what happens meanwhile is sent when it is true again, if it is still kept."""
    timeout: Seconds = Seconds(10)
    """How long an answer may take."""
    attempts: Attempts = 10
    """So often a message is sent that the receiver answers with something else than 2xx; then it is given up."""
    patience: Seconds = Seconds(86_400)
    """So old a message may get while the receiver does not answer at all (or 429, 502, 503, 504); then it is given
    up."""

    def __post_init__(self) -> None:
        try:
            split = urlsplit(self.url)
            host = split.hostname
            split.port  # noqa: B018 - it raises for what is no port
        except ValueError as error:
            raise Misfit(f"{self.url[:100]!r} is no address: {error}", "url") from None
        if split.scheme not in {"http", "https"} or not host:
            raise Misfit(f"{self.url[:100]!r} is no address of a receiver", "url", hint="https://HOST/PATH")
        if split.scheme == "http" and host not in HERE:
            raise Misfit("events go over https, except to this machine", "url", hint=f"https://{split.netloc}…")
        if split.username is not None or split.fragment:
            raise Misfit("an address has no user and no fragment: messages are signed", "url")
        check_secret(self.secret, "secret")
        if self.old_secret is not None:
            check_secret(self.old_secret, "old_secret")
        _check_common(self)


class EventBusSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Where events are published, and which."""

    url: Annotated[str, Bounds(max_length=URL_MOST)]
    """`nats://HOST:4222` (JetStream) or `kafka://HOST:9092`, several hosts with commas; `tls://`, `kafkas://` with
    TLS."""
    topic: Annotated[str, Bounds(max_length=200)] = "mandor.events"
    """Of Kafka the topic; of NATS what subjects begin with: `mandor.events.instance.Started`."""
    stream: Annotated[str, Bounds(max_length=200)] = "MANDOR"
    """Of NATS: the stream that keeps them; it is made if it is not there."""
    user: str = ""
    """Whom the bus knows us as; absent: nobody in particular."""
    password: str | None = None
    """`NAME` or `NAME/KEY` of a secret, or `file:NAME` in the server's folder `secret_files`."""
    secret_namespace: str = "default"  # noqa: S105 - where it lives, not what it is
    """Where the secret lives."""
    ca: str = ""
    """A file in the server's folder `secret_files` with certificates to trust; absent: those of the machine."""
    events: Patterns = EVERYTHING
    """Which, as `KIND.REASON` with `*` and `?`: `instance.*`, `*.Failed`, `task.*`."""
    namespaces: Patterns = EVERYTHING
    """Only what happens in these; what is in no namespace (nodes) is there for `*` alone."""
    severity: Literal["normal", "warning"] = "normal"
    """`warning`: warnings alone."""
    active: bool = True
    """False: nothing is published; what happens meanwhile is when it is true again, if it is still kept."""
    timeout: Seconds = Seconds(10)
    """How long the bus may take to keep a message."""
    attempts: Attempts = 10
    """So often a message is sent that the bus refuses; then it is given up."""
    patience: Seconds = Seconds(86_400)
    """So old a message may get while the bus does not answer; then it is given up."""

    def __post_init__(self) -> None:
        scheme, sep, rest = self.url.partition("://")
        if scheme not in {"nats", "tls", "kafka", "kafkas"} or not sep or not all(map(_host, rest.split(","))):
            raise Misfit(
                f"{self.url[:100]!r} is no address of a bus", "url", hint="nats://HOST:4222, or kafka://HOST:9092"
            )
        for value, what in ((self.topic, "topic"), (self.stream, "stream")):
            if not value or not all(letter.isalnum() or letter in "._-" for letter in value) or not value.isascii():
                raise Misfit(f"{value[:40]!r} is no {what}; letters, digits, `.`, `_` and `-`", what)
        if "." in self.stream:
            raise Misfit("a stream's name has no dot", "stream")
        if bool(self.user) != (self.password is not None):
            raise Misfit("a user has a password, and the other way round", "user")
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
            raise Misfit(f"{len(patterns)} patterns; 1 to {PATTERNS_MOST} are allowed", path)
    if not 0.1 <= spec.timeout <= 120:
        raise Misfit(f"{spec.timeout} is no time for an answer", "timeout", hint="100ms to 2m")
    if not 1 <= spec.patience <= 7 * 86_400:
        raise Misfit(f"{spec.patience} is no patience", "patience", hint="1s to 7d")
    check_ca(spec.ca)
    check_name(spec.secret_namespace, "namespace")


Outcome = Literal["delivered", "failed", "given up"]


class Delivery(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """One try, or what became of a message in the end."""

    at: float
    id: str
    type: str
    subject: str
    outcome: Outcome
    attempt: int = 1
    milliseconds: int = 0
    says: str = ""
    """What the receiver answered, or why it did not."""


class ReceiverStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Written by the server that sends."""

    revision: int = 0
    """Everything up to this revision of the store is told, or given up."""
    at: float = 0.0
    """When that was so."""
    delivered: int = 0
    given_up: int = 0
    failures: int = 0
    """So many tries in a row have failed."""
    message: str = ""
    """What is wrong just now."""
    log: tuple[Delivery, ...] = ()
    """The last ones, the newest first."""


class Webhook(Object, frozen=True, tag="webhook"):
    """Of the whole cluster, and an admin's: the server calls the address it names."""

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
