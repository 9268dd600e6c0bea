"""Server processes that outlive the agent, controlled over a unix socket in a folder of their own.

The agent side (`Detached`) starts the process when a request needs it. The server side (`serve_detached`) forks, holds
the lock of the folder, and answers requests one after another. A frame is a length of four bytes, a byte that names the
kind, and a body of bytes.
"""

import asyncio
import contextlib
import os
import resource
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import uvloop

from mandor.errors import MandorError, Unavailable
from mandor.lib.lock import LockHeld, hold

SOCKET, LOCK, LOG = "control.sock", "lock", "server.log"
FRAME_BYTES_MOST = 64 << 20
CLIENTS_MOST = 8  # control connections at a time
START_SECONDS_MOST = 30.0
CALL_SECONDS_MOST = 60.0
FORK_SECONDS = 1.0  # between two starts of a server that is killed again and again
LOG_BYTES_MOST = 1 << 20  # a larger log is emptied at the next start
_CALL, _STOP, _DONE, _FAILED = b"C", b"S", b"+", b"-"
_KEPT_VARIABLES = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "HOME", "MANDOR_TEST_RUN", "PYTEST_CURRENT_TEST")

Answer = Callable[[bytes], Awaitable[bytes]]
"""Coroutine function that answers one request."""
OpenServer = Callable[[Path], AbstractAsyncContextManager[Answer]]
"""Starts a server in a folder; the block ends when the server is stopped."""


class Detached:
    """The agent's connection to one server process. Calls start the process if it does not run."""

    def __init__(self, module: str, folder: Path) -> None:
        """`module`: run as `python -m MODULE FOLDER`, it calls `serve_detached`."""
        self._module, self._folder = module, folder
        self._lock = asyncio.Lock()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def connected(self) -> bool:
        """Whether the connection to the process stands; False after the process ended."""
        return self._reader is not None and not self._reader.at_eof()

    async def call(self, body: bytes) -> bytes:
        """Send a request and return its answer; `Unavailable`: the process cannot be started or refused the request."""
        async with self._lock:
            for attempt in (1, 2):
                try:
                    if not self.connected:
                        await self._connect(start=True)
                    return await self._exchange(_CALL, body)
                except (OSError, EOFError) as error:
                    self._drop()
                    if attempt == 2:
                        raise Unavailable(f"the process {self._module} does not answer: {error}") from error
            raise AssertionError

    async def ended(self) -> None:
        """Wait until the process closes the connection; returns at once without a connection."""
        while self.connected:  # noqa: ASYNC110 (the end of a stream sets no event)
            await asyncio.sleep(0.2)

    async def stop(self) -> None:
        """End the process, if it runs, and wait until it has released its lock."""
        async with self._lock:
            with contextlib.suppress(OSError, EOFError):
                if not self.connected:
                    await self._connect(start=False)
                await self._exchange(_STOP, b"")
            self._drop()
            async with asyncio.timeout(CALL_SECONDS_MOST):
                while self._folder.exists() and not _is_free(self._folder / LOCK):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

    async def close(self) -> None:
        """Close the connection; the process goes on."""
        async with self._lock:
            self._drop()

    async def _connect(self, *, start: bool) -> None:
        try:
            await self._open()
        except (FileNotFoundError, ConnectionRefusedError):
            if not start:
                raise
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            await asyncio.get_running_loop().run_in_executor(None, self._start)
            await self._open()

    async def _open(self) -> None:
        self._drop()
        line = socket.socket(socket.AF_UNIX)
        try:
            line.setblocking(False)
            with short_path(self._folder) as folder:
                line.connect(f"{folder}/{SOCKET}")
            self._reader, self._writer = await asyncio.open_unix_connection(sock=line, limit=1 << 20)
        except BaseException:
            line.close()
            raise

    def _start(self) -> None:
        """Run the program; its first process ends when the server answers, or failed."""
        command = [sys.executable, "-P", "-m", self._module, str(self._folder.resolve())]
        environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=environment,
                cwd="/",
                start_new_session=True,
                timeout=START_SECONDS_MOST,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"the process {self._module} cannot be started: {error}") from error
        if done.returncode:
            reason = done.stderr.decode(errors="replace").strip()[-2000:]
            raise Unavailable(
                f"the process {self._module} cannot be started: {reason}", hint=f"see {self._folder}/{LOG}"
            )

    async def _exchange(self, kind: bytes, body: bytes) -> bytes:
        if self._reader is None or self._writer is None:
            raise ConnectionResetError("no connection")
        try:
            async with asyncio.timeout(CALL_SECONDS_MOST):
                await _write_frame(self._writer, kind, body)
                answer, text = await _read_frame(self._reader)
        except TimeoutError:
            self._drop()
            raise Unavailable(f"the process {self._module} did not answer in {CALL_SECONDS_MOST:g} s") from None
        except asyncio.CancelledError:
            self._drop()  # the answer of this request must not be taken for the next one's
            raise
        if answer == _FAILED:
            raise Unavailable(f"the process {self._module} refused a request: {text.decode(errors='replace')}")
        return text

    def _drop(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


def serve_detached(folder: Path, open_server: OpenServer, *, restart: bool = False) -> None:
    """Fork a server; the calling process ends with status 0 when the server answers requests, else with 1.

    `restart`: a parent process starts the server again when a signal has killed it, also while the agent is down.
    """
    heard, ready = os.pipe()
    if os.fork():
        os.close(ready)
        state = os.read(heard, 4096)
        os.write(2, state[1:])
        os._exit(0 if state[:1] == _DONE else 1)
    os.close(heard)
    os.umask(0o077)
    _redirect_streams(folder)
    _raise_file_limit()
    if restart:
        ready = _fork_again_when_killed(ready)
    try:
        with hold(folder / LOCK):
            uvloop.run(_serve(folder, open_server, ready))
    except LockHeld:
        os.write(ready, _DONE)  # another start was faster, and its server answers
    except (OSError, MandorError) as error:
        print(f"ended: {error}", file=sys.stderr, flush=True)
        with contextlib.suppress(OSError):
            os.write(ready, _FAILED + str(error).encode())


def _fork_again_when_killed(ready: int) -> int:
    """Fork a server, and another one after each that a signal has killed; return in the server.

    The result is the descriptor on which the server reports that it answers; only the first one is waited for."""
    while True:
        began = time.monotonic()
        server = os.fork()
        if not server:
            return ready
        os.close(ready)
        _, status = os.waitpid(server, 0)
        if not os.WIFSIGNALED(status):
            os._exit(0)  # stopped, or the lock belongs to another server
        print(
            f"the server was killed by signal {os.WTERMSIG(status)} and is started again", file=sys.stderr, flush=True
        )
        if time.monotonic() - began < FORK_SECONDS:
            time.sleep(FORK_SECONDS)
        ready = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


async def _serve(folder: Path, open_server: OpenServer, ready: int) -> None:
    stopped = asyncio.Event()
    free = asyncio.Semaphore(1)
    clients = 0
    async with open_server(folder) as answer:

        async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal clients
            clients += 1
            try:
                while clients <= CLIENTS_MOST:
                    kind, body = await _read_frame(reader)
                    if kind == _STOP:
                        await _write_frame(writer, _DONE, b"")
                        stopped.set()
                        return
                    try:
                        async with free:
                            reply = _DONE, await answer(body)
                    except Exception as error:
                        reply = _FAILED, f"{type(error).__name__}: {error}".encode()
                    await _write_frame(writer, *reply)
            except (OSError, EOFError):
                pass  # the agent has gone
            finally:
                clients -= 1
                writer.close()

        with short_path(folder) as short:
            (folder / SOCKET).unlink(missing_ok=True)  # of a server that was killed: this one holds the lock
            line = socket.socket(socket.AF_UNIX)
            line.bind(f"{short}/{SOCKET}")
        (folder / SOCKET).chmod(0o600)
        server = await asyncio.start_unix_server(converse, sock=line, limit=1 << 20)
        os.write(ready, _DONE)
        os.close(ready)
        await stopped.wait()
        server.close()
        (folder / SOCKET).unlink(missing_ok=True)


async def _read_frame(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    length, kind = struct.unpack("!Ic", await reader.readexactly(5))
    if length > FRAME_BYTES_MOST:
        raise OSError(f"a message of {length} bytes is above the limit of {FRAME_BYTES_MOST}")
    return kind, await reader.readexactly(length)


async def _write_frame(writer: asyncio.StreamWriter, kind: bytes, body: bytes) -> None:
    if len(body) > FRAME_BYTES_MOST:
        raise Unavailable(f"a message of {len(body)} bytes is above the limit of {FRAME_BYTES_MOST}")
    writer.write(struct.pack("!Ic", len(body), kind) + body)
    await writer.drain()


@contextlib.contextmanager
def short_path(folder: Path) -> Iterator[str]:
    """Path of the folder by a descriptor: the path of a unix socket has at most 107 characters."""
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)


def _is_free(lock: Path) -> bool:
    try:
        with hold(lock):
            return True
    except LockHeld:
        return False


def _redirect_streams(folder: Path) -> None:
    log = folder / LOG
    with contextlib.suppress(OSError):
        if log.stat().st_size > LOG_BYTES_MOST:
            log.unlink()
    nothing = os.open(os.devnull, os.O_RDWR)
    errors = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, handle in enumerate((nothing, nothing, errors)):
        os.dup2(handle, number)
    os.close(nothing)
    os.close(errors)


def _raise_file_limit() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def write_file(path: Path, data: bytes) -> None:
    """Replace a file of the server with mode 0600, so that a reader sees the old or the new content."""
    draft = path.with_name(path.name + ".new")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    os.replace(draft, path)
