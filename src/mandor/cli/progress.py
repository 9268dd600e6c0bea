"""A progress line on the terminal, shown when an operation takes longer than a second."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

SILENT_SECONDS = 1.0
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
BAR = 20


class Progress:
    """Shows its text on stderr until the block ends; only on a terminal, and only after a second."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Progress":
        if sys.stderr.isatty():
            self._thread = threading.Thread(target=self._draw, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._over.set()
            self._thread.join()

    def _draw(self) -> None:
        began = time.monotonic()
        if self._over.wait(SILENT_SECONDS):
            return
        turn = 0
        while not self._over.wait(0.1):
            frame = _FRAMES[turn % len(_FRAMES)]
            turn += 1
            sys.stderr.write(f"\r\x1b[K{frame} {self.text[:100]} ({time.monotonic() - began:.0f} s)")
            sys.stderr.flush()
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


@contextmanager
def waits(text: str) -> Iterator[None]:
    with Progress(f"waiting for the server: {text}"):
        yield


class Bar:
    """A progress bar on stderr; only on a terminal."""

    def __enter__(self) -> "Bar":
        self._live = sys.stderr.isatty()
        return self

    def show(self, done: int, total: int) -> None:
        if self._live and total > 1:
            filled = BAR * done // total
            sys.stderr.write(f"\r\x1b[K{'█' * filled}{'░' * (BAR - filled)} {done} of {total} runs")
            sys.stderr.flush()

    def __exit__(self, *_: object) -> None:
        if self._live:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
