"""`mandor exec`: runs a command inside an instance, connected to this terminal."""

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING

import click

from mandor.cli.line import END, RESIZE, STDERR, STDIN, STDOUT, connect_line, read_result
from mandor.cli.options import complete_names, connected, namespace_option
from mandor.errors import Unavailable

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

    from mandor.client.sync import Client

BLOCK = 32 << 10


@click.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-i", "--stdin", is_flag=True, help="Pass standard input to the command.")
@click.option("-t", "--tty", is_flag=True, help="Allocate a terminal.")
@click.option("--task", help="Task, if the instance has several.")
@namespace_option
@click.argument("name", shell_complete=complete_names("instances"))
@click.argument("command", metavar="[--] COMMAND [ARG]...", nargs=-1, required=True, type=click.UNPROCESSED)
@connected
def exec_command(
    client: "Client", name: str, command: tuple[str, ...], stdin: bool, tty: bool, task: str | None, namespace: str
) -> int:
    """Run a command inside an instance.

    The exit status is that of the command. `mandor exec -it web-0 -- sh` opens a shell.
    """
    from mandor.cli.commands.logs import find_instance

    if command and command[0] == "--":
        command = command[1:]
    if not command:
        raise click.UsageError("give a command to run")
    terminal = tty and sys.stdin.isatty()
    if tty and not terminal:
        click.echo("standard input is not a terminal; --tty is ignored", err=True)
    name = find_instance(client, name.removeprefix("instance/"), namespace)
    size = _size()
    query = {
        "namespace": namespace,
        "task": task,
        "command": list(command),
        "terminal": terminal,
        "stdin": stdin,
        **size,
    }
    with connect_line(client, f"/v1/instances/{name}/exec", query) as socket:
        return Session(socket, stdin=stdin, terminal=terminal, size=size).run()


class Session:
    """Connects this process's streams to those of the command, until it ends."""

    def __init__(self, socket: "ClientConnection", *, stdin: bool, terminal: bool, size: dict[str, int]) -> None:
        self._socket = socket
        self._stdin = stdin
        self._terminal = terminal
        self._size = size

    def run(self) -> int:
        if self._stdin:
            threading.Thread(target=self._send_input, daemon=True).start()
        else:
            self._send(STDIN, b"")
        with _raw_terminal() if self._terminal else contextlib.nullcontext(), self._resizing():
            return self._receive()

    def _receive(self) -> int:
        from websockets.exceptions import ConnectionClosed

        streams = {STDOUT: sys.stdout.buffer, STDERR: sys.stderr.buffer}
        while True:
            try:
                frame = self._socket.recv()
            except ConnectionClosed as error:
                raise Unavailable("the connection was lost before the command ended") from error
            if not isinstance(frame, bytes) or not frame:
                continue
            if frame[0] == END:
                return _ending(frame[1:])
            stream = streams.get(frame[0])
            if stream is not None:
                stream.write(frame[1:])
                stream.flush()

    def _send_input(self) -> None:
        while data := os.read(sys.stdin.fileno(), BLOCK):
            if not self._send(STDIN, data):
                return
        self._send(STDIN, b"")

    def _send(self, channel: int, data: bytes) -> bool:
        from websockets.exceptions import ConnectionClosed

        try:
            self._socket.send(bytes([channel]) + data)
        except ConnectionClosed:
            return False
        return True

    @contextlib.contextmanager
    def _resizing(self) -> Iterator[None]:
        if not self._terminal:
            yield
            return
        # A thread sends, because a signal handler could interrupt itself while sending and deadlock.
        changed: SimpleQueue[bool] = SimpleQueue()
        before = signal.signal(signal.SIGWINCH, lambda *_: changed.put(True))
        changed.put(True)  # the size may have changed since the request
        threading.Thread(target=self._send_sizes, args=[changed], daemon=True).start()
        try:
            yield
        finally:
            changed.put(False)
            signal.signal(signal.SIGWINCH, before)

    def _send_sizes(self, changed: SimpleQueue[bool]) -> None:
        while changed.get():
            size = _size()
            if size != self._size:
                self._size = size
                self._send(RESIZE, json.dumps(size).encode())


def _ending(data: bytes) -> int:
    """Return the command's exit status; raises errors that occurred before it started."""
    code = read_result(data).get("code")
    return code if isinstance(code, int) else 1


def _size() -> dict[str, int]:
    try:
        columns, rows = os.get_terminal_size(sys.stdin.fileno())
    except (OSError, ValueError):
        return {"rows": 24, "columns": 80}
    return {"rows": max(rows, 1), "columns": max(columns, 1)}


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    """Pass every key to the command, including Ctrl-C; the terminal is restored in any case."""
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd, termios.TCSADRAIN)  # keep pending input
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
