"""NATS JetStream sink: a message is delivered when the stream has it; JetStream drops repeats by their id."""

import logging
import re
from typing import Any

from nats.aio.client import Client
from nats.errors import Error
from nats.js.client import JetStreamContext
from nats.js.errors import APIError, NotFoundError

from mandor.errors import Invalid, Unavailable
from mandor.lib.egress import STRICT, Egress, host_of
from mandor.lib.secret_files import NO_FILES, SecretFiles
from mandor.model.receiver import EventBusSpec
from mandor.notify.message import CONTENT_TYPE, Message
from mandor.notify.secrets import ReadSecret, certificates
from mandor.notify.sink import Sink

log = logging.getLogger(__name__)

NATS_PORT = 4222
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")
"""Characters that are not allowed in a part of a subject."""


class NatsSink(Sink):
    """Sends to one stream; the connection is opened on demand and reopened after a failure."""

    def __init__(
        self,
        spec: EventBusSpec,
        read_secret: ReadSecret,
        *,
        egress: Egress = STRICT,
        files: SecretFiles = NO_FILES,
    ) -> None:
        self._spec, self._read_secret, self._egress, self._files = spec, read_secret, egress, files
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
            # JetStream refused it: the stream is full, or it is another stream.
            await self.close()
            away = error.code is None or error.code >= 500
            raise (Unavailable if away else Invalid)(f"{error.code} {error.description}") from error
        except (Error, OSError, TimeoutError) as error:
            await self.close()
            raise Unavailable(_error_text(error)) from error
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
        self._client = await self._connect(scheme, hosts.split(","), password)
        self._stream = self._client.jetstream(timeout=float(spec.timeout))
        try:
            await self._stream.stream_info(spec.stream)
        except NotFoundError:
            await self._stream.add_stream(name=spec.stream, subjects=[f"{spec.topic}.>"])
        return self._stream

    async def _connect(self, scheme: str, hosts: list[str], password: str | None) -> Client:
        """Connect to the first host that answers, at an address that the policy allows."""
        last: Exception | None = None
        for each in hosts:
            host, port = host_of(f"{scheme}://{each}", NATS_PORT)
            try:
                target = await self._egress.target(host, port)
                address = target.addresses[0] if target.addresses else host
                return await self._dial(scheme, address, port, host, password)
            except (Error, OSError, TimeoutError) as error:
                last = error
        assert last is not None
        raise last

    async def _dial(self, scheme: str, address: str, port: int, host: str, password: str | None) -> Client:
        spec, client = self._spec, _Client()
        connecting = client.connect(
            [f"{scheme}://{f'[{address}]' if ':' in address else address}:{port}"],
            user=spec.user or None,
            password=password,
            tls=certificates(self._files, spec.ca) if scheme == "tls" else None,
            tls_hostname=host if scheme == "tls" else None,
            name="mandor",
            connect_timeout=max(1, round(float(spec.timeout))),
            allow_reconnect=False,
            # The caller retries; the library would retry for two minutes.
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            error_cb=_log_error,
        )
        try:
            await connecting
        except BaseException:
            await client.close()
            raise
        return client


def subject_of(topic: str, message: Message) -> str:
    kind, _, reason = message.name.partition(".")
    return f"{topic}.{_UNFIT.sub('_', kind)}.{_UNFIT.sub('_', reason)}"


async def _log_error(error: Exception) -> None:
    log.debug("nats: %s", error)


class _Client(Client):
    """Ignores the addresses of other servers that a server announces: the policy has not allowed them."""

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        info.pop("connect_urls", None)
        await super()._process_info(info, initial_connection)


def _error_text(error: Exception) -> str:
    return " ".join(str(error).split())[:200].removeprefix("nats: ") or type(error).__name__
