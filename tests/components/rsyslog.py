"""A private rsyslogd that writes each message that it receives over TCP to a file, as fields of RFC 5424."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from scripts.components import environment, find
from tests.components.ports import free_port

READY_SECONDS = 60
CONFIG = """
global(workDirectory="{folder}")
module(load="{modules}/imtcp.so")
template(name="fields" type="string"
  string="%hostname%\\t%app-name%\\t%procid%\\t%msgid%\\t%structured-data%\\t%msg%\\n")
input(type="imtcp" address="127.0.0.1" port="{port}")
*.* action(type="omfile" file="{folder}/received" template="fields")
"""


@dataclass(frozen=True)
class Message:
    """One received message."""

    host: str
    program: str
    process: str
    kind: str
    data: str
    text: str


class Rsyslog:
    """`with Rsyslog(folder) as receiver`: a receiver at `receiver.url`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder, self._port = folder, free_port()
        self._binary = find("rsyslog")
        assert self._binary is not None
        modules = next(self._binary.parents[2].glob("usr/lib/*/rsyslog"))
        self._config = folder / "rsyslog.conf"
        self._config.write_text(CONFIG.format(folder=folder, modules=modules, port=self._port))
        self.url = f"syslog+tcp://127.0.0.1:{self._port}"

    def __enter__(self) -> Rsyslog:
        command = [str(self._binary), "-n", "-f", str(self._config), "-i", str(self._folder / "pid")]
        command += ["-M", str(next((self._binary or Path()).parents[2].glob("usr/lib/*/rsyslog")))]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=os.environ | environment("rsyslog"), stdin=subprocess.DEVNULL
            )
        deadline = time.monotonic() + READY_SECONDS
        while not (self._folder / "pid").exists():
            assert self._process.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < deadline, "rsyslogd does not start"
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)

    @property
    def messages(self) -> list[Message]:
        file = self._folder / "received"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        return [Message(*line.split("\t", 5)) for line in lines if line.count("\t") >= 5]
