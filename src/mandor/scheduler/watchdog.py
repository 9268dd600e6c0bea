"""Measures plugin calls, and interrupts a plugin that exceeds its time budget."""

import ctypes
import threading
import time
from asyncio import CancelledError
from collections.abc import Callable, Coroutine, Generator
from functools import lru_cache, partial
from time import perf_counter
from types import TracebackType, coroutine
from typing import Any, Self, TypeVar

from mandor.lib.metrics import Spent
from mandor.placement.built_in import BUILT_IN
from mandor.placement.framework.points import Plugin
from mandor.placement.framework.runtime import PluginFault
from mandor.placement.framework.watch import Overrun

T = TypeVar("T")

CPU_SECONDS = 1.0
"""Processor time budget of a call."""
WALL_SECONDS = 10.0
"""Wall time budget of a call, for plugins that sleep or wait."""
OWN = "mandor.placement.plugins."
SAMPLED = 16
"""One decision in this number has all its plugin calls measured."""
Call = tuple[str, str, float, float]
"""Point, plugin, start and end of a call, in seconds of `perf_counter`."""
TRAIL_MOST = 2000
"""Calls noted per trace."""
_LOOKS = 10
"""Checks within the budget of one call."""


class Watchdog:
    """A thread that raises `Overrun` in the scheduling thread when a plugin call exceeds its budget.

    Python code is interrupted at its next bytecode; C code and system calls are not. `Overrun` is raised only inside
    `run`, whose end cancels one that is pending: code outside is never interrupted.
    """

    def __init__(self, *, cpu_seconds: float = CPU_SECONDS, wall_seconds: float = WALL_SECONDS) -> None:
        self.current = ""
        self.last = ""
        """The plugin that was called last, also after its end."""
        self.spent: dict[tuple[str, str], Spent] = {}
        """Time by point and plugin; for built-in plugins from sampled decisions only."""
        self._cpu_seconds = cpu_seconds
        self._wall_seconds = wall_seconds
        self._lock = threading.Lock()
        self._watched = 0
        """The id of the thread that is inside `run`; 0: none."""
        self._thrown = False
        self._calls = 0
        self._since = 0.0
        self.running_seconds = 0.0
        """Approximate duration of the current call; 0: no call, or a new one."""
        self._timing = False
        """Whether the current call is measured."""
        self._runs = 0
        self.sampled = False
        """Whether all calls of the current `run` are measured."""
        self.trail: list[Call] | None = None
        """List to which calls are appended, for traces; None: calls are not noted."""
        self._point = ""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._ended.clear()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    # Called by the framework.

    def begin(self, plugin: str, point: str) -> None:
        if self._timing:
            self._note(perf_counter())
        self.current = self.last = plugin
        self._calls += 1
        self._timing = self.sampled or plugin not in BUILT_IN
        if self._timing:
            self._point = point
            self._since = perf_counter()

    def end(self) -> None:
        if self._timing:
            self._note(perf_counter())
            self._timing = False
        self.current = ""
        self._calls += 1

    def _note(self, now: float) -> None:
        key = self._point, self.current
        spent = self.spent.get(key)
        if spent is None:
            spent = self.spent[key] = Spent()
        spent.calls += 1
        spent.seconds += now - self._since
        if self.trail is not None and len(self.trail) < TRAIL_MOST:
            self.trail.append((self._point, self.current, self._since, now))

    # Called by the scheduler.

    def run(self, work: Callable[[], T]) -> T:
        """Run work that marks its plugin calls by `begin` and `end`; `Overrun` may be raised."""
        if self._watched:
            return work()
        self.enter()
        try:
            return work()
        finally:
            self.leave()

    def enter(self) -> None:
        """Start watching this thread, as `run` does; the caller must call `leave`."""
        self._runs += 1
        self.sampled = self._runs % SAMPLED == 1 or self.trail is not None
        self._watched = threading.get_ident()

    def call(self, plugin: Plugin, work: Callable[..., T], *given: object, point: str = "Queue") -> T:
        """Call a plugin and raise `PluginFault` for any error; built-in plugins are not watched."""
        try:
            if _is_own(type(plugin)):
                return work(*given)
            return self.run(partial(self._marked, plugin.name, point, partial(work, *given)))
        except PluginFault:
            raise
        except Overrun:
            raise PluginFault(plugin.name, "exceeded its time limit and was interrupted") from None
        except Exception as error:
            raise PluginFault(plugin.name, f"raised {type(error).__name__}: {error}") from error

    def _marked(self, name: str, point: str, work: Callable[[], T]) -> T:
        self.begin(name, point)
        try:
            return work()
        finally:
            self.end()

    def describe(self, fault: BaseException) -> str:
        """Return the message of a `PluginFault`, or one that names the plugin that overran its budget."""
        if isinstance(fault, PluginFault):
            return str(fault)
        return f"the plugin {self.last} exceeded its time limit and was interrupted"

    async def follow(self, plugin: Plugin, work: Coroutine[Any, Any, T]) -> T:
        """Run an asynchronous call with each step watched; the waits between steps do not count."""
        return await _steps(self, plugin, work)

    def leave(self) -> None:
        while True:
            try:
                with self._lock:
                    thread, self._watched = self._watched, 0
                    if self._thrown:
                        self._thrown = False
                        _throw(thread, None)
                return
            except Overrun:
                continue

    # The watchdog thread.

    def _watch(self) -> None:
        seen, wall, cpu = -1, 0.0, 0.0
        while not self._ended.wait(min(self._cpu_seconds, self._wall_seconds) / _LOOKS):
            with self._lock:
                if not self._watched or not self.current:
                    seen, self.running_seconds = -1, 0.0
                    continue
                now, used = time.monotonic(), _cpu_time(self._watched)
                if self._calls != seen:
                    seen, wall, cpu = self._calls, now, used
                self.running_seconds = now - wall
                if used - cpu > self._cpu_seconds or now - wall > self._wall_seconds:
                    self._thrown = True
                    _throw(self._watched, Overrun)


@lru_cache(maxsize=256)
def _is_own(kind: type) -> bool:
    return kind.__module__.startswith(OWN)


def _cpu_time(thread: int) -> float:
    return time.clock_gettime(time.pthread_getcpuclockid(thread))


def _throw(thread: int, what: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None if what is None else ctypes.py_object(what))


@coroutine
def _steps(watchdog: Watchdog, plugin: Plugin, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    thrown: BaseException | None = None
    while True:
        over, value = watchdog.call(plugin, partial(_step, work, thrown), point="Binding")
        if over:
            return value  # type: ignore[no-any-return]
        thrown = None
        try:
            yield value
        except (Exception, CancelledError) as error:
            thrown = error


def _step(work: Coroutine[Any, Any, Any], thrown: BaseException | None) -> tuple[bool, Any]:
    """Return (True, the result) or (False, the awaited future)."""
    try:
        return False, work.send(None) if thrown is None else work.throw(thrown)
    except StopIteration as end:
        return True, end.value
