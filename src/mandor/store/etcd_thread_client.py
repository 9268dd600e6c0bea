"""EtcdThreadClient: a blocking etcd client with its own connection, independent of the event loop."""

from collections.abc import Sequence
from threading import Lock
from typing import Any

import grpc

from mandor.store.access import StoreAccess
from mandor.store.etcd_client import CHANNEL_OPTIONS, Denied, Lost, credentials, failure, metadata, wants_auth
from mandor.store.etcd_wire import AUTHENTICATE, Method

# Without this, channels to the same address share a connection and its queue.
OPTIONS = (*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1))


class EtcdThreadClient:
    """Calls use one endpoint until it fails, then the next; safe to use from any thread."""

    def __init__(self, endpoints: Sequence[str], access: StoreAccess) -> None:
        self._endpoints = list(endpoints)
        self._access = access
        self._credentials = credentials(access)
        self._channels: dict[int, grpc.Channel] = {}
        self._opening = Lock()
        self._current = 0
        self._token = ""

    def call(self, method: Method, request: Any, seconds: float) -> Any:
        """Make one attempt; an expired token is renewed first."""
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
                raised = failure(self._endpoints[index], error.code(), details)
                if isinstance(raised, Lost):
                    self._current = (index + 1) % len(self._endpoints)
                raise raised from error
        raise Denied("etcd rejects the token that it issued", hint="see etcd's log")

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
