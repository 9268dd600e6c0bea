"""Virtual time: an event loop that never waits, because it moves its own clock to the next thing that is due."""

import asyncio
import gc
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

START = 1_000_000.0
RESOLUTION = 1e-6
GARBAGE_SECONDS = 3600.0


class _Selector(selectors.SelectSelector):
    """Nothing comes from outside; whoever would wait for it lets that much time pass instead."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing is due any more, and somebody still waits")
        if timeout > 0:
            self.passed += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)
        self._clock_resolution = RESOLUTION  # what is due within a microsecond is due together

    def time(self) -> float:
        return START + self._virtual.passed


class VirtualClock:
    """The time of the running virtual loop. `jump` moves the wall clock alone, as an administrator's hand does."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self._offset = 0.0

    def now(self) -> float:
        return self._loop.time() + self._offset

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        """Time passes, however short: what rounding leaves of a wait would be due at once, again and again."""
        await asyncio.sleep(max(seconds, 2 * RESOLUTION) if seconds > 0 else 0.0)

    def jump(self, seconds: float) -> None:
        self._offset += seconds


async def collect_garbage() -> None:
    """Now and then in virtual time: what is collected says goodbye, and that may not depend on what else this process
    has done before."""
    while True:
        await asyncio.sleep(GARBAGE_SECONDS)
        gc.collect()


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run it to its end in virtual time; what takes a day there takes as long as its work."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(main)
    finally:
        if collecting:
            gc.enable()
