"""Writes down every change in a store, as a line of JSON each: `observer.py URL FILE`, until it is killed."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from mandor.model.instance import Instance
from mandor.model.meta import Key, Object
from mandor.model.node import Node
from mandor.model.record import Lease
from mandor.model.workload import Workload
from mandor.store.base import Change
from mandor.store.open import open_store
from tests.faults.history import Stored

MARK = "call"
"""The label by which a client knows its own writes."""


def shown(key: Key) -> str:
    return f"{key.namespace}/{key.name}" if key.namespace not in {"", "default"} else key.name


def facts_of(value: Object) -> dict[str, Any]:
    if isinstance(value, Workload):
        return {"replicas": value.spec.groups["main"].count, "mark": value.labels.get(MARK, "")}
    if isinstance(value, Instance):
        spec = value.spec
        return {"uid": value.meta.uid, "phase": value.phase, "node": spec.node, "workload": spec.workload}
    if isinstance(value, Node):
        return {"mark": value.labels.get(MARK, "")}
    if isinstance(value, Lease):
        return {"holder": value.spec.holder, "renewals": value.spec.renewals, "address": value.spec.address}
    return {}


def stored(change: Change) -> Stored:
    before, value = change.before, change.value
    return Stored(
        revision=change.revision,
        at=time.monotonic(),
        kind=value.key.kind,
        name=shown(value.key),
        before=before.meta.version if before is not None else 0,
        gone=change.after is None,
        facts=facts_of(value) if change.after is not None else {},
    )


async def observe(url: str, out: BinaryIO) -> None:
    async with await open_store(url) as store:
        listing = await store.list(None)
        assert not listing.items, "somebody was here before"
        async for batch in store.watch(None, since=listing.revision):
            for change in batch:
                if not change.bookmark:
                    out.write(msgspec.json.encode(stored(change)) + b"\n")
            out.flush()


def read(file: Path) -> list[Stored]:
    """All whole lines; the last one may be half there."""
    lines = file.read_bytes().split(b"\n") if file.exists() else []
    return [msgspec.json.decode(line, type=Stored) for line in lines[:-1]]


if __name__ == "__main__":
    with open(sys.argv[2], "wb") as out:
        asyncio.run(observe(sys.argv[1], out))
