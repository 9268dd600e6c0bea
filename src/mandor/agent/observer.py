"""Lists the units of one engine, periodically and after its events, and reports which instances changed."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from mandor.engines.base import Engine, Observed, UnitPhase
from mandor.errors import MandorError, NotFound, Unsupported
from mandor.lib.backoff import Backoff
from mandor.lib.bounded import bounded
from mandor.lib.clock import Clock
from mandor.lib.tasks import Background

log = logging.getLogger(__name__)

Changed = Callable[[Iterable[str] | None], None]
"""Called with the uids of changed instances; None: all, because the engine answers again."""

SAFETY_SECONDS = 30.0
"""Interval between `list` calls while the engine sends events (one may be lost) or runs nothing."""
LIST_SECONDS = 60.0
GAP_SECONDS = 0.05
"""Pause after an event, so that the events of a burst cause one `list`."""
POLL_SHARE = 0.1
"""Largest share of time that `list` calls take while units are being started."""
FREE_SECONDS = 0.1
"""Duration of `list` calls that does not count towards `POLL_SHARE`."""
WAIT_MOST = 2.0
"""Longest pause in seconds that `IdlePolling` demands before a `list` call."""


class IdlePolling:
    """Limits the share of time spent in `list` calls, so that starts on the same engine are not slowed down: pure."""

    def __init__(self) -> None:
        self._debt = 0.0
        self._at = 0.0

    def spend(self, seconds: float, now: float) -> None:
        """Record a call that took `seconds` and ended at `now`."""
        self._debt = min(self._left(now) + seconds, FREE_SECONDS + WAIT_MOST * POLL_SHARE)
        self._at = now

    def wait(self, now: float) -> float:
        """Return the seconds to wait before the next call."""
        return max(0.0, self._left(now) - FREE_SECONDS) / POLL_SHARE

    def _left(self, now: float) -> float:
        return max(0.0, self._debt - POLL_SHARE * (now - self._at))


class Observer:
    """Keeps the list of units of one engine up to date."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        changed: Changed,
        *,
        poll_seconds: float,
        availability_changed: Callable[[], None] = lambda: None,
        idle: asyncio.Event | None = None,
    ) -> None:
        """`availability_changed`: called when the engine stops answering or answers again. `idle`: set while no
        unit is being started; until then `IdlePolling` limits the `list` calls."""
        self.engine = engine
        self._availability_changed = availability_changed
        self._idle = idle or asyncio.Event()
        self._clock, self._changed, self._poll_seconds = clock, changed, poll_seconds
        self._units: dict[str, tuple[Observed, ...]] | None = None
        self.listed = False
        """Whether `list` was called at least once, with or without an answer."""
        self._sends_events = False
        self._failures = 0
        self._polling = IdlePolling()
        self._wake = asyncio.Event()
        self._refreshes: list[asyncio.Future[None]] = []

    @property
    def answering(self) -> bool:
        return self._units is not None

    def of(self, uid: str) -> tuple[Observed, ...] | None:
        """Return the units of an instance; None: the engine does not answer."""
        return None if self._units is None else self._units.get(uid, ())

    @property
    def units(self) -> Mapping[str, tuple[Observed, ...]]:
        return self._units or {}

    async def refresh(self) -> None:
        """Wait for a `list` that starts after this call; concurrent callers share one."""
        waiter = asyncio.get_running_loop().create_future()
        self._refreshes.append(waiter)
        self._wake.set()
        await waiter

    async def run(self) -> None:
        async with Background() as tasks:
            tasks.start(self._follow_events(), name=f"events of {self.engine.name}")
            while True:
                self._wake.clear()
                waiting, self._refreshes = self._refreshes, []
                begun = self._clock.monotonic()
                await self._list()
                self._polling.spend(self._clock.monotonic() - begun, self._clock.monotonic())
                for waiter in waiting:
                    if not waiter.done():
                        waiter.set_result(None)
                await self._pause()

    async def _list(self) -> None:
        try:
            found = await bounded(LIST_SECONDS, self.engine.list())
        except Exception as error:  # A third-party engine may raise anything; it counts as not answering.
            self._mark_down(error)
            return
        again, self._failures, self.listed = self._failures > 0, 0, True
        if again:
            log.info("engine %s answers again", self.engine.name)
            self._availability_changed()
        before = self._units
        now = self._units = _by_uid(found)
        if before is None:
            self._changed(None)
        else:
            self._changed(uid for uid in {**before, **now} if before.get(uid) != now.get(uid))

    def _mark_down(self, error: Exception) -> None:
        self._failures += 1
        before, self._units = self._units, None
        if not self.listed:
            self.listed = True
            self._changed(None)
        elif before:
            self._changed(before)
        if self._failures == 1 and isinstance(error, NotFound):
            log.debug("engine %s: %s", self.engine.name, error)
        elif self._failures == 1:
            expected = isinstance(error, MandorError | OSError)
            shown = str(error) or type(error).__name__
            log.warning("engine %s does not answer: %s", self.engine.name, shown, exc_info=not expected)
            self._availability_changed()

    async def _pause(self) -> None:
        if not self._wake.is_set():
            await self._wait()
        elif not self._refreshes:
            await self._clock.sleep(GAP_SECONDS)
        if wait := self._polling.wait(self._clock.monotonic()):
            await _sleep_unless_set(self._clock, wait, self._idle)

    async def _wait(self) -> None:
        alarm = self._clock.alarm(self._interval(), self._wake.set)
        try:
            await self._wake.wait()
        finally:
            alarm.cancel()

    def _interval(self) -> float:
        if self._failures:
            return Backoff(self._poll_seconds, SAFETY_SECONDS, jitter=0.2).pause(self._failures)
        if self._sends_events:
            return SAFETY_SECONDS
        alive = any(each.phase is not UnitPhase.EXITED for units in self.units.values() for each in units)
        return self._poll_seconds if alive else SAFETY_SECONDS

    async def _follow_events(self) -> None:
        failures = 0
        while True:
            try:
                async for _ in self.engine.events():
                    self._sends_events, failures = True, 0
                    self._wake.set()
            except Unsupported:
                return
            except Exception as error:
                log.debug("engine %s: its event stream ended: %s", self.engine.name, error)
            self._sends_events = False
            failures += 1
            await self._clock.sleep(Backoff(1, SAFETY_SECONDS, jitter=0.2).pause(failures))


def _by_uid(found: Iterable[Observed]) -> dict[str, tuple[Observed, ...]]:
    grouped: dict[str, list[Observed]] = {}
    for each in found:
        grouped.setdefault(each.unit.uid, []).append(each)
    for units in grouped.values():
        if len(units) > 1:
            units.sort(key=lambda each: each.unit)
    return {uid: tuple(units) for uid, units in grouped.items()}


async def _sleep_unless_set(clock: Clock, seconds: float, event: asyncio.Event) -> None:
    """Sleep; return early when the event is set."""
    if event.is_set():
        await asyncio.sleep(0)
        return
    sleeping = asyncio.ensure_future(clock.sleep(seconds))
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({sleeping, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sleeping, waiting):
            task.cancel()
        await asyncio.gather(sleeping, waiting, return_exceptions=True)
