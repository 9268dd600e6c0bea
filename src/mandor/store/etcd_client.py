"""A small etcd client over gRPC: several endpoints with fail-over, TLS, user and password."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from mandor.errors import Invalid, TooLarge, Unavailable
from mandor.store.access import StoreAccess
from mandor.store.etcd_wire import AUTHENTICATE, WATCH, Method, messages

# Mandor never forks without exec; with fork support gRPC prints a line to stderr for every child process.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
import grpc

log = logging.getLogger(__name__)

CALL_SECONDS = 5.0
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 256 << 20),
    ("grpc.max_send_message_length", 16 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Detect a member or network that hangs while a watch has nothing to deliver.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)
_AUTH_AGAIN = ("invalid auth token", "user name is empty", "revision of auth store is old")
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]
_READY = grpc.ChannelConnectivity.READY


class Lost(Unavailable):
    """No answer: the request may or may not have been executed."""


class Refused(Unavailable):
    """etcd answered that it did not execute the request; a retry may succeed."""


class Denied(Unavailable):
    """etcd rejected the request; a retry cannot succeed."""


class Compacted(Exception):
    """The requested history has been compacted."""


class EtcdClient:
    """Calls go to one endpoint until it fails, then to the next that is connected."""

    def __init__(self, endpoints: Sequence[str], access: StoreAccess, *, call_seconds: float = CALL_SECONDS) -> None:
        if not endpoints:
            raise Invalid("etcd needs at least one endpoint", hint="etcd://127.0.0.1:2379/mandor")
        self._endpoints = list(endpoints)
        self._access = access
        self._call_seconds = call_seconds
        given = credentials(access)
        self._channels = [_channel(endpoint, given) for endpoint in endpoints]
        self._calls: dict[tuple[int, str], Any] = {}
        self._current = 0
        self._token = ""
        self._authenticating = asyncio.Lock()

    @property
    def endpoint(self) -> str:
        """Endpoint of the next call."""
        return self._endpoints[self._current]

    async def call(self, method: Method, request: Any) -> Any:
        """Make one attempt; raise `Lost` or `Refused` if it failed. The next call may use another endpoint."""
        for _ in range(2):
            token = await self._authenticated()
            index = await self._connected()
            try:
                return await self._send(index, method, request, token)
            except grpc.aio.AioRpcError as error:
                if self._access.user and wants_auth(error.details() or ""):
                    self._token = "" if self._token == token else self._token
                    continue
                raise self._failed(index, error) from error
        raise Denied("etcd rejects the token that it issued", hint="see etcd's log")

    async def watch(self, key: bytes, end: bytes, start: int) -> AsyncGenerator[Any, None]:
        """Yield the responses of one watch, which ends with an error; `Compacted` if `start` is too old."""
        token = await self._authenticated()
        index = await self._connected()
        open_stream: Any = self._channels[index].stream_stream(
            WATCH.path,
            request_serializer=WATCH.request.SerializeToString,
            response_deserializer=WATCH.response.FromString,
        )
        # A member that lost its leader ends the watch instead of sending nothing.
        stream = open_stream(metadata=metadata(token, ("hasleader", "true")))
        try:
            create = messages["WatchCreateRequest"](key=key, range_end=end, start_revision=start)
            await stream.write(WATCH.request(create_request=create))
            while (response := await stream.read()) is not _EOF:
                if response.canceled:
                    self._canceled(response, token)
                yield response
            raise Lost(f"the watch at {self._endpoints[index]} ended")
        except grpc.aio.AioRpcError as error:
            raise self._failed(index, error) from error
        except asyncio.InvalidStateError as error:  # raised by grpc.aio when the connection breaks during a write
            self._leave(index)
            raise Lost(f"the watch at {self._endpoints[index]} ended: {error}") from error
        finally:
            stream.cancel()

    async def call_each(self, method: Method, request: Any, seconds: float) -> dict[str, Any]:
        """Call every endpoint; return each one's answer or error. The current endpoint does not change."""
        token = await self._authenticated()
        asked = (self._send(index, method, request, token, seconds) for index in range(len(self._channels)))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return dict(zip(self._endpoints, answers, strict=True))

    async def call_any(self, method: Method, request: Any, seconds: float) -> Any:
        """Call every endpoint and return the first answer; raise `Lost` with the errors of all if none answers."""
        token = await self._authenticated()
        asked = {
            asyncio.ensure_future(self._send(index, method, request, token, seconds)): endpoint
            for index, endpoint in enumerate(self._endpoints)
        }
        try:
            left = set(asked)
            while left:
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if task.exception() is None:
                        return task.result()
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        raise Lost("; ".join(f"{endpoint}: {_shown(task.exception())}" for task, endpoint in asked.items()))

    def leave(self) -> None:
        """Use another endpoint for the next call."""
        self._leave(self._current)

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close(None)

    # Implementation.

    async def _send(self, index: int, method: Method, request: Any, token: str, seconds: float | None = None) -> Any:
        call = self._calls.get((index, method.path))
        if call is None:
            call = self._calls[index, method.path] = self._channels[index].unary_unary(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
        return await call(request, timeout=seconds or self._call_seconds, metadata=metadata(token))

    async def _connected(self) -> int:
        """Return the index of a connected endpoint: the current one, or the first that connects."""
        if self._channels[self._current].get_state(try_to_connect=True) is _READY:
            return self._current
        count = len(self._channels)
        order = [(self._current + step) % count for step in range(count)]
        waiting = {asyncio.ensure_future(self._channels[index].channel_ready()): index for index in order}
        try:
            done, _ = await asyncio.wait(waiting, timeout=self._call_seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        if not done:
            raise Refused(
                f"no etcd endpoint answers: {', '.join(self._endpoints)}",
                hint="is etcd running? With TLS, the URL starts with etcds:// and its CA must be configured",
            )
        found = min((waiting[task] for task in done), key=order.index)
        if found != self._current:
            log.info("etcd: switched from %s to %s", self.endpoint, self._endpoints[found])
        self._current = found
        return found

    def _leave(self, index: int) -> None:
        if index == self._current:
            self._current = (index + 1) % len(self._channels)

    async def _authenticated(self) -> str:
        if not self._access.user or self._token:
            return self._token
        async with self._authenticating:
            if not self._token:
                index = await self._connected()
                request = AUTHENTICATE.request(name=self._access.user, password=self._access.password)
                try:
                    answer = await self._send(index, AUTHENTICATE, request, "")
                except grpc.aio.AioRpcError as error:
                    raise self._failed(index, error) from error
                self._token = answer.token
            return self._token

    def _canceled(self, response: Any, token: str) -> None:
        if response.compact_revision:
            raise Compacted
        if wants_auth(response.cancel_reason) and self._token == token:
            self._token = ""
        raise Lost(f"etcd ended the watch: {response.cancel_reason}")

    def _failed(self, index: int, error: grpc.aio.AioRpcError) -> Exception:
        """Return the error to raise; leave the endpoint if it did not answer."""
        raised = failure(self._endpoints[index], error.code(), error.details() or "")
        if isinstance(raised, Lost):
            self._leave(index)
        return raised


def failure(endpoint: str, code: grpc.StatusCode, details: str) -> Exception:
    """Return the error for a failed call; `Lost`: another endpoint may succeed."""
    message = f"etcd at {endpoint}: {details or code.name.lower()}"
    if code is grpc.StatusCode.OUT_OF_RANGE:
        return Compacted(message)
    if "too large" in details or "larger than max" in details:
        return TooLarge(message, hint="raise etcd's --max-request-bytes, or split the commit")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return Refused(message, hint="if etcd is out of space: compact, defragment, `etcdctl alarm disarm`")
    if code in {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.FAILED_PRECONDITION,
    }:
        return Denied(message, hint="check the user, the password and the role that etcd has for mandor")
    return Lost(message)


def _shown(error: BaseException | None) -> str:
    if not isinstance(error, grpc.aio.AioRpcError):
        return str(error)
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "no answer in time"
    return (error.details() or error.code().name.lower())[:200]


def wants_auth(details: str) -> bool:
    return any(word in details for word in _AUTH_AGAIN)


def metadata(token: str, *more: tuple[str, str]) -> list[tuple[str, str]]:
    return [("token", token), *more] if token else list(more)


def _channel(endpoint: str, given: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    if given is None:
        return grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(endpoint, given, options=CHANNEL_OPTIONS)


def credentials(access: StoreAccess) -> grpc.ChannelCredentials | None:
    """Return the TLS credentials; None for a connection without TLS."""
    if not access.secure:
        return None
    if bool(access.cert) != bool(access.key):
        raise Invalid("a client certificate needs both a certificate and its key")
    return grpc.ssl_channel_credentials(
        root_certificates=_read(access.ca), private_key=_read(access.key), certificate_chain=_read(access.cert)
    )


def _read(name: str) -> bytes | None:
    if not name:
        return None
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise Invalid(f"cannot read {name}: {error.strerror}") from error
