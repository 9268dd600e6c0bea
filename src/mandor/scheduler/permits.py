"""Waiting for permits: assigned instances that a Permit plugin holds back."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from mandor.lib.clock import Clock
from mandor.model.meta import Key
from mandor.placement.framework.handle import Waiting
from mandor.placement.framework.request import PlacementRequest
from mandor.scheduler.attempt import Attempt


@dataclass(frozen=True, slots=True)
class Denied:
    plugin: str
    why: str


@dataclass(slots=True, eq=False)
class PermitSlot:
    """One instance that waits for permits."""

    request: PlacementRequest
    node: str
    until: dict[str, float]
    """By plugin: the monotonic time at which its missing approval becomes a denial."""
    denied: Denied | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class PermitWaits:
    """All waiting instances; any plugin may list them, approve and reject."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slots: dict[Key, PermitSlot] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def waiting(self) -> Sequence[Waiting]:
        return [Waiting(slot.request, slot.node, tuple(slot.until)) for slot in self._slots.values() if not slot.denied]

    def approve(self, key: Key, plugin: str) -> bool:
        """Give a plugin's permit; return False if the instance does not wait for it."""
        slot = self._slots.get(key)
        if slot is None or slot.denied or plugin not in slot.until:
            return False
        del slot.until[plugin]
        slot.changed.set()
        return True

    def reject(self, key: Key, plugin: str, why: str = "") -> bool:
        """Deny the permit; return False if the instance does not wait."""
        slot = self._slots.get(key)
        if slot is None or slot.denied:
            return False
        slot.denied = Denied(plugin, why or "rejected")
        slot.changed.set()
        return True

    def withdraw(self, attempt: Attempt) -> None:
        """Deny the permit of an attempt whose instance is gone or stopping."""
        self.reject(attempt.key, "", "the instance is gone or stopping")

    def enter(self, request: PlacementRequest, node: str, waits: Sequence[tuple[str, float]]) -> PermitSlot:
        """Add an instance to the list; `leave` waits for the result. `waits`: plugins and their limits in seconds."""
        now = self._clock.monotonic()
        slot = PermitSlot(request, node, {plugin: now + seconds for plugin, seconds in waits})
        self._slots[request.key] = slot
        return slot

    async def leave(self, slot: PermitSlot) -> Denied | None:
        """Wait for the result; None: all plugins approved."""
        try:
            while slot.until and slot.denied is None:
                plugin, until = min(slot.until.items(), key=lambda item: item[1])
                pause = until - self._clock.monotonic()
                if pause <= 0:
                    return Denied(plugin, "not approved in time")
                slot.changed.clear()
                await self._wait_for_change(slot, pause)
            return slot.denied
        finally:
            if self._slots.get(slot.request.key) is slot:  # else another instance of the same name has the slot
                del self._slots[slot.request.key]

    async def _wait_for_change(self, slot: PermitSlot, seconds: float) -> None:
        waits = {asyncio.ensure_future(slot.changed.wait()), asyncio.ensure_future(self._clock.sleep(seconds))}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
