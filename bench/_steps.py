"""Every step of the event loop, by the time it computes: who it was, where it was, and how much of it was garbage."""

from __future__ import annotations

import asyncio
import gc
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import mandor

LONG_MS = 10.0
"""A step that computes for longer is kept."""
SAMPLE_SECONDS = 0.002
MOST = 2000
OWN = "bench"
"""Tasks whose names begin so are the bench's own."""
_ROOT = str(Path(mandor.__file__).resolve().parent.parent) + "/"


@dataclass(slots=True)
class Step:
    cpu_ms: float
    garbage_ms: float
    who: str
    where: str
    """The innermost function in which most of it was spent."""


@dataclass(slots=True)
class Steps:
    """Looks at asyncio's own loop: uvloop does not let anybody look. Use: `begin` once, `take` after each part."""

    found: list[Step] = field(default_factory=list)
    longest_pass_ms: float = 0.0
    passed: float = 0.0
    """Results of the steps of the current pass."""
    _garbage: float = 0.0
    _collecting: float = 0.0
    _samples: list[tuple[str, ...]] = field(default_factory=list)

    def begin(self) -> None:
        run, run_once = asyncio.Handle._run, asyncio.BaseEventLoop._run_once  # type: ignore[attr-defined]

        def step(handle: asyncio.Handle) -> None:
            self._garbage = 0.0
            self._samples.clear()
            before = time.thread_time()
            run(handle)
            spent = (time.thread_time() - before) * 1000
            if _name(handle).startswith(OWN):
                return
            self.passed += spent
            if spent >= LONG_MS:
                self._keep(handle, spent)

        def whole_pass(loop: Any) -> None:
            self.passed = 0.0
            run_once(loop)
            self.longest_pass_ms = max(self.longest_pass_ms, self.passed)

        asyncio.Handle._run = step  # type: ignore[attr-defined]
        asyncio.BaseEventLoop._run_once = whole_pass  # type: ignore[attr-defined]
        gc.callbacks.append(self._collect)
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_SECONDS, SAMPLE_SECONDS)

    def quiet(self) -> None:
        """Keep the timer's signal out of the event loop, after other code has registered signal handlers."""
        signal.set_wakeup_fd(-1)

    def end(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        gc.callbacks.remove(self._collect)

    def take(self) -> tuple[list[Step], float]:
        """The long ones since the last time, the longest first; and the longest pass."""
        found, self.found = sorted(self.found, key=lambda each: -each.cpu_ms), []
        longest, self.longest_pass_ms = self.longest_pass_ms, 0.0
        return found, longest

    def _keep(self, handle: asyncio.Handle, spent: float) -> None:
        if len(self.found) < MOST:
            self.found.append(Step(spent, self._garbage * 1000, _name(handle), _common(self._samples)))

    def _collect(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = time.thread_time()
        else:
            self._garbage += time.thread_time() - self._collecting

    def _look(self, _: int, frame: FrameType | None) -> None:
        names: list[str] = []
        while frame is not None:
            if frame.f_code.co_filename.startswith(_ROOT):
                module = frame.f_code.co_filename.removeprefix(_ROOT).removesuffix(".py").replace("/", ".")
                names.append(f"{module}:{frame.f_code.co_qualname}")
            frame = frame.f_back
        self._samples.append(tuple(reversed(names)))


def _name(handle: asyncio.Handle) -> str:
    callback = handle._callback  # type: ignore[attr-defined]
    owner = getattr(callback, "__self__", callback)
    if not isinstance(owner, asyncio.Task):
        return getattr(owner, "__qualname__", type(owner).__name__)
    name = owner.get_name()
    told = getattr(owner.get_coro(), "__qualname__", "")
    return told if name.startswith("Task-") else f"{name.rstrip(' 0123456789')}: {told}"


def _common(samples: list[tuple[str, ...]]) -> str:
    """The innermost name that stands in two thirds of them."""
    held = Counter(name for names in samples for name in dict.fromkeys(names))
    often = {name for name, count in held.items() if count * 3 >= len(samples) * 2}
    deepest = max((names for names in samples), key=lambda names: sum(name in often for name in names), default=())
    shared = [name for name in deepest if name in often]
    return " > ".join(shared[-2:])
