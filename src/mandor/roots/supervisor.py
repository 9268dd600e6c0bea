"""A second process that watches over a server with plugins of others, and starts it again without the one that hangs.

A Python loop is broken off by the scheduler's watchdog. Code that is stuck in C or waits in the system cannot be; it
may even keep every other thread of its process from running. So the server's process tells this one, once a second,
that no plugin hangs. When it falls silent, it is asked where it stands (`faulthandler` answers without Python's help),
and if that is in a plugin, it is killed and started again with that plugin disabled. Its leases run out by themselves.
"""

import ctypes
import faulthandler
import json
import logging
import os
import re
import select
import signal
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from mandor.placement.plugin_source import Registry
from mandor.scheduler.reload import Disabled
from mandor.scheduler.watchdog import Watchdog

log = logging.getLogger("mandor.supervisor")

PULSE_SECONDS = 1.0
ANSWER_SECONDS = 2.0
"""So long it has to say where it stands."""
ASK = signal.SIGUSR2
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)


class Pulse:
    """In the server: says once a second that no plugin hangs, from a thread of its own."""

    def __init__(self, channel: int = -1, *, hang_seconds: float = 0.0, disabled: tuple[Disabled, ...] = ()) -> None:
        self._channel, self._hang_seconds = channel, hang_seconds
        self._watchdogs: weakref.WeakSet[Watchdog] = weakref.WeakSet()
        self._lock = threading.Lock()
        self.disabled = disabled
        if channel >= 0:
            threading.Thread(target=self._beat, name="pulse", daemon=True).start()

    def watchdog(self) -> Watchdog:
        """One that is heard here."""
        made = Watchdog()
        self._watchdogs.add(made)
        return made

    @property
    def notes(self) -> tuple[str, ...]:
        """What people should know."""
        return tuple(f"the plugin {each.name} is disabled: {each.why}" for each in self.disabled)

    def found(self, registry: Registry) -> None:
        """Tells the supervisor which files the plugins of others come from."""
        others = [each for each in registry.values() if each.version]
        files = [[each.name, each.version, sys.modules[each.cls.__module__].__file__] for each in others]
        if self._channel >= 0:
            self._say(json.dumps(files).encode())

    def _say(self, line: bytes) -> None:
        with self._lock, suppress(OSError):  # without a supervisor nobody listens
            os.write(self._channel, line + b"\n")

    def _beat(self) -> None:
        while True:
            if all(each.running_seconds < self._hang_seconds for each in list(self._watchdogs)):
                self._say(b".")
            time.sleep(PULSE_SECONDS)


@dataclass(slots=True)
class _Told:
    """What the server said last."""

    at: float
    plugins: list[list[str]]
    rest: bytes = b""
    over: bool = False


def supervised(hang_seconds: float) -> Pulse:
    """Returns in a new process, again after each plugin that hung; the one that called it ends with the last one."""
    disabled: tuple[Disabled, ...] = ()
    while True:
        read, write = os.pipe()
        with tempfile.TemporaryFile("w+") as answers:
            server = os.fork()
            if server == 0:
                os.close(read)
                _begin_server(answers)
                return Pulse(write, hang_seconds=hang_seconds, disabled=disabled)
            os.close(write)
            try:
                with _passing_on(server):
                    found = _watch(server, read, answers, hang_seconds)
            finally:
                os.close(read)
        if isinstance(found, int):
            sys.exit(found)
        disabled += found


def _begin_server(answers: IO[str]) -> None:
    end_with_parent = 1
    ctypes.CDLL(None).prctl(end_with_parent, signal.SIGKILL)
    if os.getppid() == 1:
        os._exit(1)
    faulthandler.register(ASK, file=os.dup(answers.fileno()), all_threads=True)


def _watch(server: int, channel: int, answers: IO[str], hang_seconds: float) -> int | tuple[Disabled, ...]:
    """Until it ends: its exit code; or until a plugin hangs: which."""
    told = _Told(time.monotonic(), [])
    while True:
        _listen(channel, told)
        pid, status = os.waitpid(server, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if time.monotonic() - told.at > hang_seconds + 2 * PULSE_SECONDS:
            found = _culprits(_where(server, answers), told.plugins)
            if found:
                names = ", ".join(each.name for each in found)
                log.error("the plugin %s hangs: the server is started again without it", names)
                os.kill(server, signal.SIGKILL)
                os.waitpid(server, 0)
                return tuple(found)
            log.warning("the server has said nothing for %.0f s, and no plugin hangs", time.monotonic() - told.at)
            told.at = time.monotonic()


def _listen(channel: int, told: _Told) -> None:
    if told.over:
        time.sleep(0.05)
        return
    ready, _, _ = select.select([channel], [], [], 0.25)
    if not ready:
        return
    data = os.read(channel, 65536)
    told.over = not data
    *lines, told.rest = (told.rest + data).split(b"\n")
    for line in lines:
        told.at = time.monotonic()
        if line != b".":
            told.plugins = json.loads(line)


def _where(server: int, answers: IO[str]) -> str:
    """Where its threads stand, as `faulthandler` tells it."""
    answers.seek(0)
    answers.truncate()
    os.kill(server, ASK)
    time.sleep(ANSWER_SECONDS)
    answers.seek(0)
    text = answers.read()
    log.warning("where the server stands:\n%s", text)
    return text


def _culprits(text: str, plugins: Iterable[list[str]]) -> list[Disabled]:
    """The plugins whose code is on the stack of the thread that answered; if there is none, on any."""
    known = list(plugins)
    for part in (text.partition("Current thread")[2].partition("\n\n")[0], text):
        frames = {match["file"]: f"line {match['line']} in {match['function']}" for match in _FRAME.finditer(part)}
        found = [
            Disabled(name, version, f"it hung at {Path(file).name}, {frames[file]}")
            for name, version, file in known
            if file in frames
        ]
        if found:
            return found
    return []


@contextmanager
def _passing_on(server: int) -> Iterator[None]:
    """Signals that are for the server go to the server."""

    def pass_on(number: int, _: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(server, number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [(number, signal.signal(number, pass_on)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
