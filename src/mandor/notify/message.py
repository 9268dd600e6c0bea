"""Messages to receivers: an event of the cluster as a CloudEvent, the same bytes for every kind of receiver."""

from datetime import UTC, datetime
from fnmatch import fnmatchcase

from msgspec import Struct

from mandor.model.codec import encode
from mandor.model.receiver import EventBus, EventBusSpec, Patterns, Webhook, WebhookSpec
from mandor.model.record import Event

OWN = frozenset({Webhook.kind, EventBus.kind})
"""Kinds whose events are not sent: two failing receivers would report each other's failures for ever."""
CONTENT_TYPE = "application/cloudevents+json"


class MessageData(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    kind: str
    name: str
    namespace: str = ""
    reason: str
    message: str
    severity: str = "normal"
    node: str = ""
    count: int = 1
    """How often the event was recorded; a repeated event is another message with the same `event`."""
    first_at: float = 0.0
    event: str = ""
    """Uid of the event."""


class Message(Struct, frozen=True, gc=False, kw_only=True):
    """A CloudEvent (version 1.0) in JSON form."""

    specversion: str = "1.0"
    id: str
    """Id of the message: the same for every delivery of it, different for every other message."""
    source: str
    """`/mandor/CLUSTER`"""
    type: str
    """`mandor.instance.Started`"""
    time: str
    subject: str
    """`default/web-0`"""
    datacontenttype: str = "application/json"
    data: MessageData

    @property
    def name(self) -> str:
        """`instance.Started`"""
        return self.type.removeprefix("mandor.")

    def body(self) -> bytes:
        return encode(self)


def message_of(event: Event, cluster: str) -> Message:
    spec = event.spec
    kind, subject, namespace, name = _about(spec.about)
    return Message(
        id=f"{event.meta.uid}.{event.meta.version}",
        source=f"/mandor/{cluster}",
        type=f"mandor.{kind}.{spec.reason}",
        time=moment(spec.last_at or event.meta.created_at),
        subject=subject,
        data=MessageData(
            kind=kind,
            name=name,
            namespace=namespace,
            reason=spec.reason,
            message=spec.message,
            severity=spec.type,
            node=spec.node,
            count=spec.count,
            first_at=spec.first_at,
            event=event.meta.uid,
        ),
    )


def synthetic_message(cluster: str, id: str, kind: str, name: str, reason: str, text: str, now: float) -> Message:  # noqa: A002
    """Return a message without an event: a test, or a notice about lost events."""
    return Message(
        id=id,
        source=f"/mandor/{cluster}",
        type=f"mandor.{kind}.{reason}",
        time=moment(now),
        subject=name,
        data=MessageData(kind=kind, name=name, reason=reason, message=text),
    )


def wanted(spec: WebhookSpec | EventBusSpec, event: Event) -> bool:
    kind, _, namespace, _ = _about(event.spec.about)
    if kind in OWN or (spec.severity == "warning" and event.spec.type != "warning"):
        return False
    return _matches(spec.events, f"{kind}.{event.spec.reason}") and _matches(spec.namespaces, namespace)


def moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _matches(patterns: Patterns, text: str) -> bool:
    return any(fnmatchcase(text, each) for each in patterns)


def _about(text: str) -> tuple[str, str, str, str]:
    """Split `instance default/web-0` into kind, subject, namespace and name."""
    kind, _, subject = text.partition(" ")
    namespace, slash, name = subject.partition("/")
    return (kind, subject, namespace, name) if slash else (kind, subject, "", subject)
