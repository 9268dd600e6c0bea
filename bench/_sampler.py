"""Samples the stack of the main thread 1,000 times per second of CPU time."""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import TextIO

EACH_SECONDS = 0.001
_ROOT = str(Path(__file__).resolve().parent.parent)
_ELSEWHERE = re.compile(r"^.*/(site-packages|lib/python3\.\d+)/")
"""Path prefixes of Python and its packages, which are left out."""


class Sampler:
    """Costs little, and distorts little: unlike a profiler that counts calls, it does not make small ones dear."""

    def __init__(self) -> None:
        self._own: Counter[str] = Counter()
        self._with: Counter[str] = Counter()
        self._tasks: Counter[str] = Counter()
        self._seen = 0

    def start(self) -> None:
        self._seen = time.thread_time_ns()
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, EACH_SECONDS, EACH_SECONDS)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _look(self, _: int, frame: FrameType | None) -> None:
        # The timer runs with every thread of the process; what others used while this one waited is not its own.
        now = time.thread_time_ns()
        used, self._seen = now - self._seen, now
        names: list[str] = []
        while frame is not None:
            code = frame.f_code
            file = _ELSEWHERE.sub("", code.co_filename.removeprefix(_ROOT))
            names.append(f"{file}:{code.co_firstlineno} {code.co_name}")
            frame = frame.f_back
        if names:
            self._own[names[0]] += used
        for name in set(names):
            self._with[name] += used
        own = [name for name in names if name.startswith("/src/")]
        self._tasks[own[-1] if own else "(nobody's)"] += used

    def show(self, out: TextIO, most: int = 60) -> None:
        whole = max(1, self._tasks.total())
        found = (("by task", self._tasks), ("by itself", self._own), ("with what it calls", self._with))
        for title, counts in found:
            print(f"== {title}", file=out)
            for name, count in counts.most_common(most):
                print(f"{100 * count / whole:6.1f} %  {name}", file=out)
