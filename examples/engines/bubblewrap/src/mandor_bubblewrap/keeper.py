"""The program that stays with one sandbox: it keeps what the task prints, and how it ends.

    keeper.py FOLDER

It is no child of the agent and outlives it. It holds a lock on `FOLDER/lock` for as long as it lives: that is how the
agent knows. SIGTERM means that there is an order in `FOLDER/stop.json`. It needs no package, so it starts fast.
"""

import contextlib
import fcntl
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from typing import Any

READ_BYTES = 64 * 1024
LINE_BYTES_MOST = 1024 * 1024
LOG_BYTES_MOST = 10 * 1024 * 1024
"""Of one file; one older file is kept."""
AGAIN_SECONDS = 0.05


class Keeper:
    def __init__(self, folder: str) -> None:
        self._folder = folder
        with open(self._path("launch.json"), encoding="utf-8") as file:
            self._launch = json.load(file)
        self._log = LogFile(self._path("log"))
        self._sandbox: int | None = None
        """The sandbox's first process; the task is its child."""
        self._code: int | None = None
        """None: it has not ended, or never began."""
        self._asked = self._told_to_stop = False
        self._kill_at = float("inf")
        self._bell, ring = os.pipe()
        os.set_blocking(ring, False)
        signal.set_wakeup_fd(ring)
        signal.signal(signal.SIGTERM, lambda *_: None)

    def run(self) -> None:
        status, told = os.pipe()
        words = [self._launch["bwrap"], "--json-status-fd", str(told), *self._launch["words"]]
        pipe = subprocess.PIPE
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, pass_fds=[told]) as task:
            os.close(told)
            started = time.time()
            self._write("running.json", {"pid": os.getpid(), "at": started})
            self._watch(task, status)
        self._write("exit.json", {"started": started, "at": time.time(), **self._ending()})

    def _ending(self) -> dict[str, Any]:
        if self._code is None and not self._told_to_stop:
            return {"code": None, "reason": "StartFailed", "message": self._log.last.removeprefix("bwrap: ")}
        code = 128 + signal.SIGKILL if self._code is None else self._code
        reason = "Completed" if code == 0 else "Signalled" if 128 < code <= 128 + 64 else "Error"
        return {"code": code, "reason": reason, "message": ""}

    def _watch(self, task: "subprocess.Popen[bytes]", status: int) -> None:
        """Until bwrap has closed everything: then it has ended."""
        reports = b""
        with selectors.DefaultSelector() as selector:
            for source, name in ((task.stdout, "stdout"), (task.stderr, "stderr"), (status, "status")):
                selector.register(source, selectors.EVENT_READ, name)  # type: ignore[arg-type]
            selector.register(self._bell, selectors.EVENT_READ, "bell")
            while len(selector.get_map()) > 1:
                for key, _ in selector.select(self._patience()):
                    data = os.read(key.fd, READ_BYTES)
                    if key.data == "bell":
                        self._asked = True
                    elif not data:
                        selector.unregister(key.fileobj)
                    elif key.data == "status":
                        reports += data
                        *whole, reports = reports.split(b"\n")
                        self._read(whole)
                    else:
                        self._log.take(key.data, data)
                self._stop(task)
        self._log.close()

    def _read(self, reports: list[bytes]) -> None:
        for report in reports:
            told = json.loads(report)
            self._sandbox, self._code = told.get("child-pid", self._sandbox), told.get("exit-code", self._code)

    def _patience(self) -> float | None:
        if self._asked and not self._told_to_stop:
            return AGAIN_SECONDS
        return None if self._kill_at == float("inf") else max(AGAIN_SECONDS, self._kill_at - time.monotonic())

    def _stop(self, task: "subprocess.Popen[bytes]") -> None:
        """Carry out the order, if there is one: the signal to the task, and the end of everything after the grace."""
        if self._asked:
            order = self._order()
            self._kill_at = min(self._kill_at, time.monotonic() + order["grace"])
            if not self._told_to_stop:
                self._told_to_stop = self._signal(order["signal"])
            self._asked = not self._told_to_stop
        # Not bwrap itself: a sandbox that it is just making would go on without it.
        if time.monotonic() >= self._kill_at and self._sandbox is not None and task.poll() is None:
            self._told_to_stop, self._asked, self._kill_at = True, False, float("inf")
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._sandbox, signal.SIGKILL)

    def _order(self) -> dict[str, Any]:
        try:
            with open(self._path("stop.json"), encoding="utf-8") as file:
                found: dict[str, Any] = json.load(file)
        except FileNotFoundError:  # Somebody else's signal, as when the machine is shut down.
            return {"signal": signal.SIGTERM, "grace": 10.0}
        return found

    def _signal(self, number: int) -> bool:
        """False: there is no task yet."""
        try:
            with open(f"/proc/{self._sandbox}/task/{self._sandbox}/children", encoding="ascii") as file:
                children = [int(word) for word in file.read().split()]
            for child in children:
                os.kill(child, number)
        except (OSError, ValueError):
            return False
        return bool(children)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def _write(self, name: str, record: dict[str, Any]) -> None:
        """Whole or not at all."""
        with open(self._path(f".{name}"), "w", encoding="utf-8") as file:
            json.dump(record, file)
        os.replace(self._path(f".{name}"), self._path(name))


class LogFile:
    """Lines as `TIME STREAM F TEXT`, the form in which `mandor.engines.stamped` reads them."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._rest = {"stdout": b"", "stderr": b""}
        self.last = ""
        """The last line on standard error: bwrap says there why it could not begin."""

    def take(self, stream: str, data: bytes) -> None:
        *lines, rest = (self._rest[stream] + data).split(b"\n")
        if len(rest) > LINE_BYTES_MOST:
            lines, rest = [*lines, rest], b""
        self._rest[stream] = rest
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        with open(self._path, "ab") as file:
            file.write(b"".join(f"{now} {stream} F ".encode() + line + b"\n" for line in lines))
            full = file.tell() > LOG_BYTES_MOST
        if full:
            os.replace(self._path, f"{self._path}.1")
        if lines and stream == "stderr":
            self.last = lines[-1].decode(errors="replace")

    def close(self) -> None:
        """A last line may lack its end."""
        for stream, rest in self._rest.items():
            if rest:
                self.take(stream, b"\n")


def _take(lock: int) -> bool:
    """Tried a few times: whoever only looks whether it is held has it for a moment."""
    for _ in range(20):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(AGAIN_SECONDS)
        else:
            return True
    return False


def main(folder: str) -> None:
    if os.fork():
        os._exit(0)  # The agent need not wait for the one that stays.
    os.setsid()
    lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not _take(lock):
        return  # Another one was faster.
    if not os.path.exists(os.path.join(folder, "running.json")):
        Keeper(folder).run()


if __name__ == "__main__":
    main(sys.argv[1])
