"""A HAProxy of the tests, as the proxy task of a gateway starts it."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from mandor.errors import Unavailable
from mandor.network.gateway.base import Gateway
from mandor.network.gateway.haproxy.configuration import HaproxySettings, Listen
from mandor.network.gateway.haproxy.program import start


class Proxy:
    """Runs while the block does."""

    program = "haproxy"

    def __init__(self, folder: Path, http: int, https: int) -> None:
        self.settings = HaproxySettings(
            folder=folder,
            http=(Listen("127.0.0.1", http),),
            https=(Listen("127.0.0.1", https),),
            tcp_address="127.0.0.1",
            https_port=https,
        )
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        start(self.settings, self.program, self._run)
        return self

    def _run(self, program: str, command: list[str]) -> None:
        log = self.settings.folder / "proxy.log"
        with log.open("ab") as file:
            self.process = subprocess.Popen(command, executable=_program(program), stdout=file, stderr=file)

    async def answers(self, driver: Gateway) -> None:
        """Wait until the proxy answers its driver."""
        deadline = time.monotonic() + 30
        while True:
            try:
                return await driver.probe()
            except Unavailable:
                if time.monotonic() > deadline:
                    raise AssertionError((self.settings.folder / "proxy.log").read_text()) from None
            time.sleep(0.02)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None:
            self.process.terminate()  # the master ends its workers
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def _program(name: str) -> str:
    for folder in os.environ["PATH"].split(":"):
        if os.access(f"{folder}/{name}", os.X_OK):
            return f"{folder}/{name}"
    raise AssertionError("haproxy is missing; get it by `make components`")
