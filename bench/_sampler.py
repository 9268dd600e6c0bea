"""Where the processor's time goes: the main thread is looked at a thousand times in a second of it."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import TextIO

EACH_SECONDS = 0.001
_ROOT = str(Path(__file__).resolve().parent.parent)


class Sampler:
    """Costs little, and distorts little: unlike a profiler that counts calls, it does not make small ones dear."""

    def __init__(self) -> None:
        self._own: Counter[str] = Counter()
        self._with: Counter[str] = Counter()
        self._count = 0

    def start(self) -> None:
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, EACH_SECONDS, EACH_SECONDS)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _look(self, _: int, frame: FrameType | None) -> None:
        self._count += 1
        seen = set()
        first = True
        while frame is not None:
            code = frame.f_code
            name = f"{code.co_filename.removeprefix(_ROOT)}:{code.co_firstlineno} {code.co_name}"
            if first:
                self._own[name] += 1
                first = False
            seen.add(name)
            frame = frame.f_back
        self._with.update(seen)

    def show(self, out: TextIO, most: int = 60) -> None:
        for title, counts in (("by itself", self._own), ("with what it calls", self._with)):
            print(f"== {title}", file=out)
            for name, count in counts.most_common(most):
                print(f"{100 * count / max(1, self._count):6.1f} %  {name}", file=out)
