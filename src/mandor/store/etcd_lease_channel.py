"""Lease channel of a store in etcd; its commits appear in the index like any other commit of this process."""

import asyncio
from contextlib import suppress

from mandor.errors import Conflict
from mandor.lib.clock import Clock
from mandor.lib.ids import NewId
from mandor.model.meta import Key, Object
from mandor.store.base import LeaseChannel, Write, check_writes
from mandor.store.etcd_state import EtcdState
from mandor.store.etcd_thread_client import EtcdThreadClient
from mandor.store.etcd_transaction import transaction
from mandor.store.etcd_wire import RANGE, TXN


class EtcdLeaseChannel(LeaseChannel):
    def __init__(
        self, line: EtcdThreadClient, state: EtcdState, clock: Clock, new_uid: NewId, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._line, self._state, self._loop = line, state, loop
        self._clock, self._new_uid = clock, new_uid

    def get(self, key: Key, seconds: float) -> Object | None:
        answer = self._line.call(RANGE, RANGE.request(key=self._state.path(key)), seconds)
        for pair in answer.kvs:
            return self._state.read(pair)
        return None

    def commit(self, *writes: Write, seconds: float) -> int:
        keys = check_writes(writes)
        if self._state.broken is not None:
            raise self._state.broken
        made = transaction(self._state, writes, keys, now=self._clock.now(), new_uid=self._new_uid)
        answer = self._line.call(TXN, made.request, seconds)
        if not answer.succeeded:
            raise Conflict(f"{' or '.join(map(str, keys))} changed", hint="read it again, then retry")
        revision = int(answer.header.revision)
        # Otherwise the index would wait for the watch to deliver it, and later commits with it.
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._state.committed, revision, made.values)
        return revision + self._state.offset

    def close(self) -> None:
        self._line.close()
