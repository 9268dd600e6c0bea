"""A private NATS server with JetStream, on a free loopback port, in a folder of its own."""

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.components.ports import free_port

READY_SECONDS = 60.0
STOP_SECONDS = 20.0


@dataclass
class Nats:
    binary: Path
    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [str(self.binary), "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self.folder / "js")]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        deadline = time.monotonic() + READY_SECONDS
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"nats-server is not ready:\n{(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        if self.process is not None:
            process, self.process = self.process, None
            process.kill()
            process.wait(STOP_SECONDS)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                return connection.recv(4) == b"INFO"
        except OSError:
            return False


@contextmanager
def running(binary: Path, folder: Path) -> Iterator[Nats]:
    folder.mkdir(parents=True, exist_ok=True)
    nats = Nats(binary, folder, free_port())
    try:
        nats.start()
        yield nats
    finally:
        nats.stop()
