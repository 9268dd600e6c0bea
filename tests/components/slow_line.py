"""A socket in front of a daemon's own, over which one order can be held up on its way to the daemon."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mandor.engines.base import Engine

PATIENCE_SECONDS = 60.0
_ORDER = re.compile(rb"(POST|PUT|PATCH) \S+")
"""A request that changes something; it always comes first in what is read, for it waits for the answer before it."""


class SlowLine:
    def __init__(self, daemon: Path) -> None:
        self._daemon = daemon
        self._folder = tempfile.mkdtemp(prefix="mandor-line-")  # Short: names of sockets have at most 107 characters.
        self.socket = Path(self._folder, "line.sock")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.socket))
        self._listener.listen(64)
        self._lock = threading.Lock()
        self._skip: int | None = None
        self._held: socket.socket | None = None
        self._caught, self._free, self._answered = threading.Event(), threading.Event(), threading.Event()
        self._dead = False
        self._near: set[socket.socket] = set()
        self._far: set[socket.socket] = set()
        self.order = ""
        """The one that is held up."""
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self, skip: int = 0) -> None:
        """After so many others, the next order is held up."""
        with self._lock:
            self._skip, self._held, self.order, self._dead = skip, None, "", False
            for each in (self._caught, self._free, self._answered):
                each.clear()

    @property
    def holds(self) -> bool:
        return self._caught.is_set()

    def wait_held(self) -> None:
        assert self._caught.wait(PATIENCE_SECONDS), "no order came to be held up"

    def cut(self) -> None:
        """Whoever sent it hears and says no more, until the next one is to be held up."""
        with self._lock:
            self._dead, near = True, list(self._near)
        for each in near:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """It arrives; the daemon has answered when this returns."""
        self._free.set()
        assert self._answered.wait(PATIENCE_SECONDS), f"the daemon does not answer {self.order}"

    def close(self) -> None:
        self._free.set()
        with self._lock:
            self._skip = None
            left = [self._listener, *self._near, *self._far]
        for each in left:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX)
                try:
                    if self._dead:
                        raise ConnectionRefusedError
                    far.connect(str(self._daemon))
                except OSError:
                    near.close()
                    far.close()
                    continue
                with self._lock:
                    self._near.add(near)
                    self._far.add(far)
                threading.Thread(target=self._there, args=(near, far), daemon=True).start()
                threading.Thread(target=self._back, args=(near, far), daemon=True).start()

    def _there(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while data := near.recv(1 << 16):
                held = self._stops(data, near)
                if held:
                    self._free.wait()
                far.sendall(data)
                if held:  # Whoever sent it may be gone: the daemon must not hear of that before it has answered.
                    self._answered.wait(PATIENCE_SECONDS)
        with suppress(OSError):
            far.shutdown(socket.SHUT_WR)

    def _back(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while data := far.recv(1 << 16):
                if near is self._held and self._free.is_set():
                    self._answered.set()
                with suppress(OSError):
                    near.sendall(data)
        for each in (near, far):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _stops(self, data: bytes, near: socket.socket) -> bool:
        found = _ORDER.match(data)
        with self._lock:
            if found is None or self._skip is None:
                return False
            self._skip -= 1
            if self._skip >= 0:
                return False
            self._skip, self._held, self.order = None, near, found[0].decode()
            self._caught.set()
            return True


class EngineLine:
    """As the engine suite uses it."""

    def __init__(self, line: SlowLine, engine: Engine) -> None:
        self._line, self.engine = line, engine
        self.hold, self.cut = line.hold, line.cut

    @property
    def holds(self) -> bool:
        return self._line.holds

    async def release(self) -> None:
        await asyncio.to_thread(self._line.release)


@contextmanager
def engine_line(daemon: Path, make: Callable[[Path], Engine]) -> Iterator[EngineLine]:
    """`make`: an engine that uses the socket it is given."""
    line = SlowLine(daemon)
    try:
        yield EngineLine(line, make(line.socket))
    finally:
        line.close()
