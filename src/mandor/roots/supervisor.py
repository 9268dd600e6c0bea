"""Watches a server with third-party plugins from a second process, and restarts it without a plugin that hangs.

The scheduler's watchdog interrupts Python loops. Code that is stuck in C or waits in the system cannot be interrupted,
and may even block every other thread of its process. So the server's process reports to this one, once a second, that
no plugin hangs. When the reports stop, `faulthandler` dumps the stacks of the server without running Python code; if a
plugin is on a stack, the server is killed and restarted with that plugin disabled. Its leases expire.
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
"""Seconds to wait for the stack dump."""
ASK = signal.SIGUSR2
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)


class Pulse:
    """In the server: reports once a second, from a thread of its own, that no plugin hangs."""

    def __init__(self, channel: int = -1, *, hang_seconds: float = 0.0, disabled: tuple[Disabled, ...] = ()) -> None:
        self._channel, self._hang_seconds = channel, hang_seconds
        self._watchdogs: weakref.WeakSet[Watchdog] = weakref.WeakSet()
        self._lock = threading.Lock()
        self.disabled = disabled
        if channel >= 0:
            threading.Thread(target=self._beat, name="pulse", daemon=True).start()

    def watchdog(self) -> Watchdog:
        """Return a watchdog whose calls are monitored here."""
        made = Watchdog()
        self._watchdogs.add(made)
        return made

    @property
    def notes(self) -> tuple[str, ...]:
        """Return messages about disabled plugins."""
        return tuple(f"the plugin {each.name} is disabled: {each.why}" for each in self.disabled)

    def found(self, registry: Registry) -> None:
        """Report the files of third-party plugins to the supervisor."""
        others = [each for each in registry.values() if each.version]
        files = [[each.name, each.version, sys.modules[each.cls.__module__].__file__] for each in others]
        if self._channel >= 0:
            self._send(json.dumps(files).encode())

    def _send(self, line: bytes) -> None:
        with self._lock, suppress(OSError):  # there is no supervisor
            os.write(self._channel, line + b"\n")

    def _beat(self) -> None:
        while True:
            if all(each.running_seconds < self._hang_seconds for each in list(self._watchdogs)):
                self._send(b".")
            time.sleep(PULSE_SECONDS)


@dataclass(slots=True)
class _LastReport:
    """The last report of the server."""

    at: float
    plugins: list[list[str]]
    rest: bytes = b""
    over: bool = False


def supervised(hang_seconds: float) -> Pulse:
    """Return in a new process, and again after each plugin that hung; the calling process exits with the last one."""
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
                with _forward_signals(server):
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
    """Wait until the server exits (return its exit code) or a plugin hangs (return its name)."""
    report = _LastReport(time.monotonic(), [])
    while True:
        _listen(channel, report)
        pid, status = os.waitpid(server, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if time.monotonic() - report.at > hang_seconds + 2 * PULSE_SECONDS:
            found = _culprits(_stacks(server, answers), report.plugins)
            if found:
                names = ", ".join(each.name for each in found)
                log.error("the plugin %s hangs: restarting the server without it", names)
                os.kill(server, signal.SIGKILL)
                os.waitpid(server, 0)
                return tuple(found)
            log.warning("the server has not reported for %.0f s, but no plugin hangs", time.monotonic() - report.at)
            report.at = time.monotonic()


def _listen(channel: int, report: _LastReport) -> None:
    if report.over:
        time.sleep(0.05)
        return
    ready, _, _ = select.select([channel], [], [], 0.25)
    if not ready:
        return
    data = os.read(channel, 65536)
    report.over = not data
    *lines, report.rest = (report.rest + data).split(b"\n")
    for line in lines:
        report.at = time.monotonic()
        if line != b".":
            report.plugins = json.loads(line)


def _stacks(server: int, answers: IO[str]) -> str:
    """Return the stacks of its threads, as `faulthandler` dumps them."""
    answers.seek(0)
    answers.truncate()
    os.kill(server, ASK)
    time.sleep(ANSWER_SECONDS)
    answers.seek(0)
    text = answers.read()
    log.warning("stacks of the server:\n%s", text)
    return text


def _culprits(text: str, plugins: Iterable[list[str]]) -> list[Disabled]:
    """Return the plugins on the stack of the thread that answered; if there is none, on any stack."""
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
def _forward_signals(server: int) -> Iterator[None]:
    """Forward signals to the server."""

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
