"""Builds the etcd transaction of a commit, with the data needed to verify it if the answer is lost."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mandor.lib.ids import NewId
from mandor.model.meta import Key, Object
from mandor.store.base import Delete, Put, Write
from mandor.store.draft import encoded, stamp
from mandor.store.etcd_state import EtcdState
from mandor.store.etcd_wire import COMPARE_MOD, TXN


@dataclass(frozen=True, slots=True)
class Transaction:
    request: Any
    wanted: list[tuple[Key, int]]
    """Expected version of each key."""
    values: dict[Key, tuple[Object, bytes] | None]
    """New objects with their encoded form, by key; None: deleted."""


def version_of(write: Write) -> int:
    """Return the version that the write expects its key to have."""
    return write.value.meta.version if isinstance(write, Put) else write.version


def transaction(
    state: EtcdState, writes: Sequence[Write], keys: Sequence[Key], *, now: float, new_uid: NewId
) -> Transaction:
    request = TXN.request()
    compare, success = request.compare.add, request.success.add
    wanted: list[tuple[Key, int]] = []
    values: dict[Key, tuple[Object, bytes] | None] = {}
    for write, key in zip(writes, keys, strict=True):
        version = version_of(write)
        path = state.path(key)
        wanted.append((key, version))
        compare(target=COMPARE_MOD, key=path, mod_revision=version - state.offset if version else 0)
        if isinstance(write, Put):
            value = stamp(write.value, version=0, now=now, new_uid=new_uid)
            data = encoded(value, key)
            values[key] = (value, data)
            put = success().request_put  # filled in place, because assigning a message copies it
            put.key, put.value = path, data
        elif isinstance(write, Delete):
            values[key] = None
            success().request_delete_range.key = path
    return Transaction(request, wanted, values)
