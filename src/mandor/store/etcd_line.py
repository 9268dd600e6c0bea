"""A connection to etcd of its own, for threads: its calls block, and no event loop has a part in them."""

from collections.abc import Sequence
from threading import Lock
from typing import Any

import grpc

from mandor.store.access import StoreAccess
from mandor.store.etcd_client import CHANNEL_OPTIONS, Denied, Lost, credentials, failure, metadata, wants_auth
from mandor.store.etcd_wire import AUTHENTICATE, Method

# Channels to one address would otherwise share one connection, and whatever waits in it.
OPTIONS = (*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1))


class EtcdLine:
    """Calls go to one endpoint until it fails, then to the next; any thread may call."""

    def __init__(self, endpoints: Sequence[str], access: StoreAccess) -> None:
        self._endpoints = list(endpoints)
        self._access = access
        self._credentials = credentials(access)
        self._channels: dict[int, grpc.Channel] = {}
        self._opening = Lock()
        self._current = 0
        self._token = ""

    def call(self, method: Method, request: Any, seconds: float) -> Any:
        """One try; a token that has run out is asked for again."""
        for _ in range(2):
            index = self._current
            try:
                if self._access.user and not self._token:
                    asked = AUTHENTICATE.request(name=self._access.user, password=self._access.password)
                    self._token = self._send(index, AUTHENTICATE, asked, seconds).token
                return self._send(index, method, request, seconds)
            except grpc.RpcError as error:
                details = error.details() or ""
                if self._access.user and wants_auth(details):
                    self._token = ""
                    continue
                told = failure(self._endpoints[index], error.code(), details)
                if isinstance(told, Lost):
                    self._current = (index + 1) % len(self._endpoints)
                raise told from error
        raise Denied("etcd does not take the token it gave us", hint="look at etcd's log")

    def close(self) -> None:
        with self._opening:
            for channel in self._channels.values():
                channel.close()

    def _send(self, index: int, method: Method, request: Any, seconds: float) -> Any:
        call = self._channel(index).unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        return call(request, timeout=seconds, metadata=tuple(metadata(self._token)))

    def _channel(self, index: int) -> grpc.Channel:
        with self._opening:
            if index not in self._channels:
                endpoint = self._endpoints[index]
                self._channels[index] = (
                    grpc.insecure_channel(endpoint, options=OPTIONS)
                    if self._credentials is None
                    else grpc.secure_channel(endpoint, self._credentials, options=OPTIONS)
                )
            return self._channels[index]
