"""Opens the sink of a receiver; the library of a bus is imported when it is used."""

from importlib import import_module

from mandor.errors import Invalid
from mandor.lib.egress import STRICT, Egress
from mandor.lib.secret_files import NO_FILES, SecretFiles
from mandor.model.receiver import Receiver, Webhook
from mandor.notify.secrets import ReadSecret
from mandor.notify.sink import Sink

_BUSES = {
    "nats": ("mandor.notify.nats", "NatsSink", "nats"),
    "tls": ("mandor.notify.nats", "NatsSink", "nats"),
    "kafka": ("mandor.notify.kafka", "KafkaSink", "kafka"),
    "kafkas": ("mandor.notify.kafka", "KafkaSink", "kafka"),
}


def open_sink(
    receiver: Receiver, read_secret: ReadSecret, egress: Egress = STRICT, files: SecretFiles = NO_FILES
) -> Sink:
    """Return the sink of a receiver; raise `Invalid` if this server cannot use it."""
    if isinstance(receiver, Webhook):
        from mandor.notify.webhook import WebhookSink

        return WebhookSink(receiver.spec, read_secret, egress=egress, files=files)
    module, name, extra = _BUSES[receiver.spec.url.partition("://")[0]]
    try:
        made = getattr(import_module(module), name)(receiver.spec, read_secret, egress=egress, files=files)
    except ImportError as error:
        raise Invalid(
            f"this server cannot speak with {extra}: {error}", hint=f"pip install 'mandor[{extra}]' on the servers"
        ) from error
    assert isinstance(made, Sink)
    return made
