"""A daemon of the tests' own: in a folder, a network and mounts of its own, and made to have bad luck."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar

import psutil

from tests.components.enclosure import Enclosure

READY_SECONDS = 60.0
STOP_SECONDS = 60.0
COMMAND_SECONDS = 120.0


class Daemon:
    program: ClassVar[str]
    client: ClassVar[str]
    """Its command, as its users know it."""
    store: ClassVar[str]
    """Where in its folder it keeps what it makes."""
    volatile: ClassVar[Sequence[str]] = ()
    """What of its folder is usually in memory, and gone when the machine starts again."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.enclosure = Enclosure(folder)
        self.process: subprocess.Popen[bytes] | None = None

    # What is peculiar to each.

    @property
    def environ(self) -> dict[str, str]:
        return dict(os.environ)

    def start(self) -> None:
        raise NotImplementedError

    def boot(self) -> None:
        """The machine has started: what its system does first, and then the daemon."""
        self.start()

    def furnish(self) -> None:
        """Once, when it runs for the first time: the images that tests use, and what those need."""
        raise NotImplementedError

    def end_all(self) -> None:
        """Everything it runs."""
        raise NotImplementedError

    def sweep(self) -> None:
        """What is left after its end."""

    def _command(self, *words: str) -> list[str]:
        raise NotImplementedError

    # What tests use.

    def cli(self, *words: str, data: bytes | None = None) -> str:
        done = self.run(*words, data=data)
        assert done.returncode == 0, f"{self.client} {' '.join(words)}: {done.stderr.decode().strip()}"
        return done.stdout.decode().strip()

    def run(self, *words: str, data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        command, seconds = self._command(*words), COMMAND_SECONDS
        return subprocess.run(
            command, input=data, env=self.environ, capture_output=True, timeout=seconds, check=False, cwd="/"
        )

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self) -> None:
        """As a service manager does."""
        if self.process is not None and self.running:
            self.process.terminate()
            self.process.wait(STOP_SECONDS)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(STOP_SECONDS)

    def lose_power(self) -> None:
        """Everything it ran ends at once with it; what is left is what is on the disk."""
        self.enclosure.kill()
        assert self.process is not None
        self.process.wait(STOP_SECONDS)
        self.enclosure.close()
        for name in self.volatile:
            path = self.folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        self.enclosure = Enclosure(self.folder)

    def pause(self) -> None:
        """It hangs: connections are taken, nothing answers."""
        selves = self.selves()
        for each in selves:
            each.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + STOP_SECONDS
        while any(each.status() != psutil.STATUS_STOPPED for each in selves):
            assert time.monotonic() < deadline, f"{self.program} does not stop"
            time.sleep(0.01)

    def resume(self) -> None:
        for each in self.selves():
            each.send_signal(signal.SIGCONT)

    def selves(self) -> list[psutil.Process]:
        """The processes that it is, without what it runs."""
        assert self.process is not None
        return [psutil.Process(self.process.pid)]

    def give_disk(self, mebibytes: int) -> None:
        """Before it starts: what it makes is on a disk of its own."""
        (self.folder / self.store).mkdir(parents=True)
        self.enclosure.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "none", self.folder / self.store])

    @contextmanager
    def full(self) -> Iterator[None]:
        """While it lasts, that disk has no room."""
        filled = self.folder / self.store / "filled"
        fill = (
            f"dd if=/dev/zero of={filled} bs=64k conv=fsync 2>/dev/null; dd if=/dev/zero of={filled}2 bs=1 2>/dev/null"
        )
        self.enclosure.run(["sh", "-c", f"{fill}; true"])
        try:
            yield
        finally:
            self.enclosure.run(["rm", filled, f"{filled}2"])

    @contextmanager
    def away(self) -> Iterator[None]:
        """It is stopped as a service manager does it, and comes back."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    @contextmanager
    def hangs(self) -> Iterator[None]:
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def close(self) -> None:
        """Everything it ran ends, and nothing of it is left on the machine."""
        if self.running:
            self.resume()
            with suppress(AssertionError, subprocess.TimeoutExpired):
                self.end_all()
            self.stop()
        self.sweep()
        self.enclosure.close()

    # What each is started with.

    def launch(self, command: Sequence[str | Path], ready: Callable[[], bool]) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env=self.environ,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
            )
        deadline = time.monotonic() + READY_SECONDS
        while not ready():
            if not self.running or time.monotonic() > deadline:
                raise RuntimeError(f"{self.program} is not ready:\n{(self.folder / 'log').read_text()[-3000:]}")
            time.sleep(0.05)

    def open(self, *steps: Callable[[], None]) -> None:
        """All steps, or it is closed again."""
        try:
            for step in steps:
                step()
        except BaseException:
            self.close()
            raise
