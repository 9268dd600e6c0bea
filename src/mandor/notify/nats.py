"""NATS JetStream as a sink: a message is taken when the stream has it, and a repeat is left out by its id."""

import logging
import re
import ssl

from nats.aio.client import Client
from nats.errors import Error
from nats.js.client import JetStreamContext
from nats.js.errors import APIError, NotFoundError

from mandor.errors import Invalid, Unavailable
from mandor.model.receiver import EventBusSpec
from mandor.notify.message import CONTENT_TYPE, Message
from mandor.notify.secrets import ReadSecret
from mandor.notify.sink import Sink

log = logging.getLogger(__name__)

_UNFIT = re.compile(r"[^A-Za-z0-9_-]")
"""What has a meaning in a subject, or none at all."""


class NatsSink(Sink):
    """The connection is made when it is needed, and made anew after any failure."""

    def __init__(self, spec: EventBusSpec, read_secret: ReadSecret) -> None:
        self._spec, self._read_secret = spec, read_secret
        self._client: Client | None = None
        self._stream: JetStreamContext | None = None

    async def send(self, message: Message) -> str:
        spec, timeout = self._spec, float(self._spec.timeout)
        headers = {"Nats-Msg-Id": message.id, "Content-Type": CONTENT_TYPE}
        try:
            stream = await self._connected()
            taken = await stream.publish(
                subject_of(spec.topic, message), message.body(), timeout=timeout, stream=spec.stream, headers=headers
            )
        except APIError as error:
            # The server answered, and JetStream said no: it is full, or not the stream that was meant.
            await self.close()
            away = error.code is None or error.code >= 500
            raise (Unavailable if away else Invalid)(f"{error.code} {error.description}") from error
        except (Error, OSError, TimeoutError) as error:
            await self.close()
            raise Unavailable(_story(error)) from error
        return f"{taken.stream} {taken.seq}" + (" (again)" if taken.duplicate else "")

    async def close(self) -> None:
        client, self._client, self._stream = self._client, None, None
        if client is not None:
            await client.close()

    async def _connected(self) -> JetStreamContext:
        if self._stream is not None and self._client is not None and self._client.is_connected:
            return self._stream
        await self.close()
        return await self._open()

    async def _open(self) -> JetStreamContext:
        spec = self._spec
        scheme, _, hosts = spec.url.partition("://")
        password = None
        if spec.password is not None:
            password = (await self._read_secret(spec.password, spec.secret_namespace)).decode().strip()
        self._client = Client()
        await self._client.connect(
            [f"{scheme}://{host}" for host in hosts.split(",")],
            user=spec.user or None,
            password=password,
            tls=_trusting(spec) if scheme == "tls" else None,
            name="mandor",
            connect_timeout=max(1, round(float(spec.timeout))),
            allow_reconnect=False,
            # Whoever sends tries again by himself; else the library goes on for two minutes.
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            error_cb=_tell,
        )
        self._stream = self._client.jetstream(timeout=float(spec.timeout))
        try:
            await self._stream.stream_info(spec.stream)
        except NotFoundError:
            await self._stream.add_stream(name=spec.stream, subjects=[f"{spec.topic}.>"])
        return self._stream


def subject_of(topic: str, message: Message) -> str:
    kind, _, reason = message.name.partition(".")
    return f"{topic}.{_UNFIT.sub('_', kind)}.{_UNFIT.sub('_', reason)}"


async def _tell(error: Exception) -> None:
    log.debug("nats: %s", error)


def _trusting(spec: EventBusSpec) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=spec.ca or None)
    except (OSError, ssl.SSLError) as error:
        raise Unavailable(f"the certificates in {spec.ca} cannot be read: {error}") from error


def _story(error: Exception) -> str:
    return " ".join(str(error).split())[:200].removeprefix("nats: ") or type(error).__name__
