"""The waiting room: instances with a reserved node that wait for a permit."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from mandor.lib.clock import Clock
from mandor.model.meta import Key
from mandor.placement.framework.handle import Waiting
from mandor.placement.framework.request import PlacementRequest


@dataclass(frozen=True, slots=True)
class Denied:
    plugin: str
    why: str


@dataclass(slots=True, eq=False)
class PermitSlot:
    """One who waits."""

    request: PlacementRequest
    node: str
    until: dict[str, float]
    """Who has told it to wait, and when that turns into a no."""
    denied: Denied | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class PermitWaits:
    """Anybody may look in, approve and reject; a wait that runs out is a no."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seats: dict[Key, PermitSlot] = {}

    def __len__(self) -> int:
        return len(self._seats)

    def waiting(self) -> Sequence[Waiting]:
        return [Waiting(seat.request, seat.node, tuple(seat.until)) for seat in self._seats.values() if not seat.denied]

    def approve(self, key: Key, plugin: str) -> bool:
        seat = self._seats.get(key)
        if seat is None or seat.denied or plugin not in seat.until:
            return False
        del seat.until[plugin]
        seat.changed.set()
        return True

    def reject(self, key: Key, plugin: str, why: str = "") -> bool:
        seat = self._seats.get(key)
        if seat is None or seat.denied:
            return False
        seat.denied = Denied(plugin, why or "rejected")
        seat.changed.set()
        return True

    def enter(self, request: PlacementRequest, node: str, waits: Sequence[tuple[str, float]]) -> PermitSlot:
        """It is in the list from now on; `leave` waits for the end of it."""
        now = self._clock.monotonic()
        seat = PermitSlot(request, node, {plugin: now + seconds for plugin, seconds in waits})
        self._seats[request.key] = seat
        return seat

    async def leave(self, seat: PermitSlot) -> Denied | None:
        """None: all have approved."""
        try:
            while seat.until and seat.denied is None:
                plugin, until = min(seat.until.items(), key=lambda item: item[1])
                pause = until - self._clock.monotonic()
                if pause <= 0:
                    return Denied(plugin, "nobody approved it in time")
                seat.changed.clear()
                await self._pause(seat, pause)
            return seat.denied
        finally:
            if self._seats.get(seat.request.key) is seat:  # else another of its name sits there
                del self._seats[seat.request.key]

    async def _pause(self, seat: PermitSlot, seconds: float) -> None:
        waits = {asyncio.ensure_future(seat.changed.wait()), asyncio.ensure_future(self._clock.sleep(seconds))}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
