"""A private RabbitMQ on free loopback ports, in a folder of its own; it can be stopped, killed and started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from tests.components.ports import free_base

READY_SECONDS = 120.0
STOP_SECONDS = 60.0
_ERL = """#!/bin/sh
ROOTDIR={root} BINDIR={programs} EMU=beam PROGNAME=erl
export ROOTDIR BINDIR EMU PROGNAME
exec {programs}/erlexec "$@"
"""


class RabbitMq:
    def __init__(self, epmd: Path, folder: Path) -> None:
        """`epmd`: the program of that name, which says where the others are."""
        self._usr, self._folder = epmd.parent.parent, folder
        self._epmd = epmd
        self.port = free_base([0, 1, 2])
        self._processes: list[subprocess.Popen[bytes]] = []
        for name in ("mnesia", "log", "home", "bin"):
            (folder / name).mkdir(parents=True)
        self._write_files()

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def start(self) -> None:
        environ = self._environ()
        server = self._usr / "lib" / "rabbitmq" / "bin" / "rabbitmq-server"
        with (self._folder / "out").open("ab") as out:
            for command in ([str(self._epmd)], [str(server)]):
                self._processes.append(
                    subprocess.Popen(
                        command, env=environ, stdout=out, stderr=out, cwd=self._folder, start_new_session=True
                    )
                )
                if command[0] == str(self._epmd):
                    self._wait_for(self.port + 2)
        self._wait_for(self.port)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        for process in reversed(self._processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # whatever it left behind
        self._processes.clear()

    def _write_files(self) -> None:
        root = self._usr / "lib" / "erlang"
        programs = next(iter(sorted(root.glob("erts-*/bin"))))
        erl = self._folder / "bin" / "erl"  # the one of the package looks for its files where a system has them
        erl.write_text(_ERL.format(root=root, programs=programs))
        erl.chmod(0o755)
        (self._folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.default = 127.0.0.1:{self.port}\nloopback_users = none\n"
            "vm_memory_high_watermark.relative = 0.2\ndisk_free_limit.absolute = 10MB\n"
        )
        (self._folder / "enabled_plugins").write_text("[].\n")

    def _environ(self) -> dict[str, str]:
        return os.environ | {
            "PATH": f"{self._folder / 'bin'}:{self._usr / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self._folder / "home"),
            "RABBITMQ_NODENAME": f"mandor{self.port}@localhost",
            "RABBITMQ_MNESIA_BASE": str(self._folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self._folder / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": str(self._folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._folder / "enabled_plugins"),
            "RABBITMQ_DIST_PORT": str(self.port + 1),
            "RABBITMQ_PID_FILE": str(self._folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self.port + 2),
        }

    def _wait_for(self, port: int) -> None:
        until = time.monotonic() + READY_SECONDS
        while time.monotonic() < until:
            if any(each.poll() is not None for each in self._processes):
                break
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            time.sleep(0.1)
        raise AssertionError(f"RabbitMQ does not listen on {port}: {(self._folder / 'out').read_text()[-2000:]}")
