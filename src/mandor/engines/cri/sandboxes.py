"""Sandboxes: the network and host name that the tasks of an instance share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from mandor.engines.containers import labels as marks
from mandor.engines.cri import wire
from mandor.engines.cri.client import START_SECONDS, CriClient, Refused

AGAIN_SECONDS = 0.1


class Sandboxes:
    def __init__(self, api: CriClient) -> None:
        self._api = api
        self._known: dict[str, list[str]] = {}
        """Sandboxes by instance uid, as last listed."""
        self._addresses: dict[str, str] = {}
        self._busy: dict[str, asyncio.Lock] = {}

    async def look(self, owner: str) -> None:
        known: dict[str, list[str]] = {}
        for each in await self._list(owner):
            known.setdefault(each.labels.get(marks.UID, ""), []).append(each.id)
        self._known = known
        ids = {identity for each in known.values() for identity in each}
        self._addresses = {identity: found for identity, found in self._addresses.items() if identity in ids}

    async def address(self, identity: str) -> str:
        """Return the address of a sandbox; empty: it uses the network of the node."""
        if identity not in self._addresses:
            try:
                found = await self._api.call(wire.SANDBOX_STATUS, pod_sandbox_id=identity)
            except Refused:
                return ""
            self._addresses[identity] = found.status.network.ip
        return self._addresses[identity]

    async def ensure(self, uid: str, owner: str, config: Callable[[int], Any], runtime: str) -> tuple[str, Any]:
        """Return the id and the configuration of a ready sandbox, created if need be.

        A sandbox that is not ready, as after a reboot, is kept for its containers; the new one gets a higher number."""
        async with self._busy.setdefault(uid, asyncio.Lock()):
            deadline = asyncio.get_running_loop().time() + START_SECONDS
            while True:
                found = await self._list(owner, uid)
                ready = [each for each in found if each.state == wire.SANDBOX_READY]
                if ready:
                    return ready[0].id, config(ready[0].metadata.attempt)
                made = config(max((each.metadata.attempt + 1 for each in found), default=0))
                try:
                    answer = await self._api.call(
                        wire.RUN_SANDBOX, seconds=START_SECONDS, config=made, runtime_handler=runtime
                    )
                except Refused as error:
                    # An interrupted call may have left a sandbox of this name: wait until it is created or removed.
                    if not error.reserved or asyncio.get_running_loop().time() > deadline:
                        raise
                    await asyncio.sleep(AGAIN_SECONDS)
                else:
                    self._known.setdefault(uid, []).append(answer.pod_sandbox_id)
                    return answer.pod_sandbox_id, made

    async def remove(self, uid: str, owner: str) -> None:
        async with self._busy.setdefault(uid, asyncio.Lock()):
            for each in await self._list(owner, uid):
                await self._remove(each.id)
            self._known.pop(uid, None)
        self._busy.pop(uid, None)

    async def tidy(self, wanted: set[str]) -> None:
        """Remove sandboxes of instances without units, such as those left by a crash."""
        for uid in [uid for uid in self._known if uid not in wanted]:
            for identity in self._known.pop(uid):
                await self._remove(identity)

    async def _list(self, owner: str, uid: str = "") -> list[Any]:
        labels = {marks.OWNER: owner, **({marks.UID: uid} if uid else {})}
        found = await self._api.call(wire.LIST_SANDBOXES, filter=wire.make("PodSandboxFilter", label_selector=labels))
        return list(found.items)

    async def _remove(self, identity: str) -> None:
        for method in (wire.STOP_SANDBOX, wire.REMOVE_SANDBOX):
            try:
                await self._api.call(method, seconds=START_SECONDS, pod_sandbox_id=identity)
            except Refused as error:
                if not error.unknown:
                    raise
        self._addresses.pop(identity, None)
