"""Virtual time: an event loop that does not wait but advances its clock to the next timer."""

import asyncio
import gc
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from heapq import heappop, heappush
from typing import Any, TypeVar, TypeVarTuple

from msgspec import Struct

from mandor.lib.clock import Alarm

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

START = 1_000_000.0
RESOLUTION = 1e-6
"""Timers within a microsecond are due together."""
LEAST = 2 * RESOLUTION
"""Shortest wait in seconds; shorter ones would be due at once because of rounding."""
CANCELLED_MOST = 100
GARBAGE_SECONDS = 3 * 3600.0


class _Step(Struct, eq=False):
    """A smaller `asyncio.Handle` that is created in a third of the time."""

    _callback: Callable[..., object] | None
    _args: tuple[Any, ...]
    _context: Context
    _cancelled: bool = False

    def cancel(self) -> None:
        self._cancelled, self._callback, self._args = True, None, ()

    def cancelled(self) -> bool:
        return self._cancelled


class _Timer(Struct, eq=False):
    _callback: Callable[..., object] | None
    _args: tuple[Any, ...]
    _context: Context
    _when: float
    _loop: "VirtualLoop"
    _cancelled: bool = False
    _scheduled: bool = True

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled, self._callback, self._args = True, None, ()
            self._loop._timer_handle_cancelled(self)


class _Sleep:
    """Awaitable of `VirtualClock.sleep`: timer, future and handle in one object, because most events are sleeps.

    The waiting task runs in the turn after the one in which the time has passed, as with a future.
    """

    __slots__ = (
        "_asyncio_future_blocking",
        "_cancelled",
        "_context",
        "_due_now",
        "_loop",
        "_scheduled",
        "_wake",
    )

    def __init__(self, loop: "VirtualLoop", seconds: float) -> None:
        self._loop = loop
        self._asyncio_future_blocking = self._cancelled = self._due_now = self._scheduled = False
        loop.schedule_sleep(self, seconds)

    def __await__(self) -> Generator["_Sleep", None, None]:
        self._asyncio_future_blocking = True
        yield self

    # The interface of a future, for tasks.

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def add_done_callback(self, wake: Callable[["_Sleep"], object], *, context: Context) -> None:
        self._wake, self._context = wake, context

    def result(self) -> None:
        if self._cancelled:
            raise asyncio.CancelledError

    def cancel(self, msg: object = None) -> bool:
        if self._due_now or self._cancelled:
            return False
        self._cancelled = True
        self._loop._timer_handle_cancelled(self)
        self._loop.call_soon(self._wake, self, context=self._context)
        return True

    def cancelled(self) -> bool:
        return self._cancelled

    # For the loop.

    def wake(self) -> None:
        self._context.run(self._wake, self)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop without input from outside; waiting advances its time.

    A simulated day has millions of steps, so the loop does not call the operating system. Timers that are due at the
    same time run in the order of their creation.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now = START
        self._ready: deque[Any] = deque()
        self._moments: list[float] = []
        """Heap of the times at which timers are due."""
        self._due: dict[float, list[Any]] = {}
        """Timers by time, in order of creation."""
        self._waiting = self._cancelled = 0
        """Number of timers, and number of cancelled ones among them."""

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _Step(callback, args, copy_context() if context is None else context)
        self._ready.append(handle)
        return handle  # type: ignore[return-value]

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(callback, args, copy_context() if context is None else context, when, self)
        self._wait(when, timer)
        return timer  # type: ignore[return-value]

    def schedule_sleep(self, sleep: _Sleep, seconds: float) -> None:
        """Schedule the end of a sleep."""
        sleep._due_now, sleep._scheduled = False, True
        self._wait(self._now + max(seconds, LEAST), sleep)

    def _wait(self, when: float, handle: Any) -> None:
        self._waiting += 1
        together = self._due.get(when)
        if together is not None:
            together.append(handle)
        else:
            self._due[when] = [handle]
            heappush(self._moments, when)

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: Any) -> None:
        if not handle._scheduled:
            return  # it is due already
        self._cancelled += 1
        if self._cancelled > CANCELLED_MOST and 2 * self._cancelled > self._waiting:
            self._sort_out()

    def _sort_out(self) -> None:
        kept = {when: [each for each in together if not each._cancelled] for when, together in self._due.items()}
        self._due = {when: together for when, together in kept.items() if together}
        self._moments = sorted(self._due)
        self._waiting, self._cancelled = sum(map(len, self._due.values())), 0

    def _run_once(self) -> None:
        """Run one turn of the loop."""
        ready = self._ready
        if not ready:
            self._wake_sleepers()
        self._pass_time()
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            if type(handle) is not _Sleep:
                self._run(handle)
            elif handle._due_now:
                handle.wake()
            else:
                handle._due_now = True
                ready.append(handle)

    def _run(self, handle: _Step | _Timer) -> None:
        try:
            handle._context.run(handle._callback, *handle._args)  # type: ignore[arg-type]
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self.call_exception_handler(
                {"message": f"Exception in callback {handle!r}", "exception": error, "handle": handle}
            )

    def _wake_sleepers(self) -> None:
        """Wake sleeping tasks directly while nothing else is ready, which saves turns."""
        ready = self._ready
        while self._moments and not ready:
            when = self._moments[0]
            together = self._due[when]
            for each in together:
                if each._cancelled:
                    return
            heappop(self._moments)
            del self._due[when]
            self._waiting -= len(together)
            self._now = max(self._now, when)
            for each in together:
                each._scheduled = False
            sleeps = 0
            for each in together:
                if type(each) is _Sleep:
                    each._due_now = True
                    ready.append(each)
                    sleeps += 1
                elif not each._cancelled:
                    self._run(each)
            if len(ready) == sleeps:
                for _ in range(sleeps):
                    ready.popleft().wake()

    def _pass_time(self) -> None:
        """Advance time until a handle is ready, and collect everything that is due then."""
        ready, moments = self._ready, self._moments
        while moments and (not ready or moments[0] < self._now + RESOLUTION):
            self._begin(heappop(moments))
        if not ready:
            raise RuntimeError("deadlock: a task waits and no timer is due")

    def _begin(self, when: float) -> None:
        """Move the timers of one time to the ready queue."""
        together = self._due.pop(when)
        self._waiting -= len(together)
        for each in together:
            if each._cancelled:
                self._cancelled -= 1
            else:
                each._scheduled = False
                self._ready.append(each)
        if self._ready and when > self._now:
            self._now = when


class VirtualClock:
    """Clock of the running virtual loop. `jump` changes only the wall clock."""

    def __init__(self, loop: VirtualLoop | None = None) -> None:
        running = loop or asyncio.get_running_loop()
        assert isinstance(running, VirtualLoop), "virtual time passes on a virtual loop"
        self._loop = running
        self._offset = 0.0

    def now(self) -> float:
        return self._loop._now + self._offset

    def monotonic(self) -> float:
        return self._loop._now

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        await _Sleep(self._loop, seconds)

    def alarm(self, seconds: float, ring: Callable[[], None]) -> Alarm:
        return self._loop.call_later(LEAST if 0 < seconds < LEAST else seconds, ring)

    def jump(self, seconds: float) -> None:
        self._offset += seconds


async def collect_garbage() -> None:
    """Collect garbage at fixed virtual times, so that finalizers run at the same time in every process."""
    while True:
        await asyncio.sleep(GARBAGE_SECONDS)
        gc.collect()


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time."""
    collecting = gc.isenabled()
    gc.disable()
    gc.freeze()  # Existing objects are not scanned again.
    try:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(main)
    finally:
        gc.unfreeze()
        if collecting:
            gc.enable()
