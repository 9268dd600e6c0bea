"""Client of a CRI runtime: gRPC over its socket, one channel for all calls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from mandor.engines.containers import refused as containers
from mandor.engines.cri.wire import Method, make, messages
from mandor.errors import EngineDown

ANSWER_SECONDS = 60.0
START_SECONDS = 120.0
MESSAGE_MOST = 64 * 1024 * 1024
_DOWN = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}


class Refused(containers.Refused):
    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def unknown(self) -> bool:
        return self.code is grpc.StatusCode.NOT_FOUND

    @property
    def reserved(self) -> bool:
        """An object of that name is being created or removed."""
        return "reserve" in self.message

    @property
    def unimplemented(self) -> bool:
        return self.code is grpc.StatusCode.UNIMPLEMENTED


class CriClient:
    def __init__(self, socket: Path, *, answer_seconds: float = ANSWER_SECONDS) -> None:
        self.socket = socket
        self.answer_seconds = answer_seconds
        self._channel: grpc.aio.Channel | None = None

    async def call(self, method: Method, *, seconds: float | None = None, **fields: Any) -> Any:
        """Call a method; `EngineDown`: the runtime does not answer, `Refused`: any other error."""
        stub = self.open().unary_unary(method.path, **_codec(method))
        try:
            return await stub(make(method.request, **fields), timeout=seconds or self.answer_seconds)
        except grpc.aio.AioRpcError as error:
            raise self.failed(error) from None

    async def stream(self, method: Method) -> AsyncIterator[Any]:
        stub = self.open().unary_stream(method.path, **_codec(method))
        try:
            async for answer in stub(make(method.request)):
                yield answer
        except grpc.aio.AioRpcError as error:
            raise self.failed(error) from None

    async def close(self) -> None:
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close(None)

    def open(self) -> grpc.aio.Channel:
        if self._channel is None:
            if not self.socket.exists():
                raise EngineDown(f"there is no CRI runtime at {self.socket}", hint="start containerd or CRI-O")
            options = [
                ("grpc.max_receive_message_length", MESSAGE_MOST),
                ("grpc.initial_reconnect_backoff_ms", 200),
                ("grpc.max_reconnect_backoff_ms", 5000),
                ("grpc.enable_http_proxy", 0),
            ]
            self._channel = grpc.aio.insecure_channel(f"unix:{self.socket}", options=options)
        return self._channel

    def failed(self, error: grpc.aio.AioRpcError) -> Exception:
        """Return the exception for a gRPC error: `EngineDown` or `Refused`."""
        message = error.details() or error.code().name
        if error.code() in _DOWN:
            return EngineDown(f"the CRI runtime at {self.socket} does not answer: {message}")
        return Refused(error.code(), message)


def _codec(method: Method) -> dict[str, Any]:
    return {
        "request_serializer": messages[method.request].SerializeToString,
        "response_deserializer": messages[method.response].FromString,
    }
