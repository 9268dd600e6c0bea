"""`mandor exec`: a command inside an instance, with this terminal."""

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from mandor.cli.options import complete_names, connected, namespace_option
from mandor.errors import MandorError, Unavailable

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

    from mandor.client.sync import Client

STDIN, STDOUT, STDERR, END, RESIZE = range(5)
"""The first byte of a frame."""
BLOCK = 32 << 10
FRAME_MOST = 16 << 20


@click.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-i", "--stdin", is_flag=True, help="Pass on standard input.")
@click.option("-t", "--tty", is_flag=True, help="Give it a terminal.")
@click.option("--task", help="Which task, where there are several.")
@namespace_option
@click.argument("name", shell_complete=complete_names("instances"))
@click.argument("command", metavar="[--] COMMAND [ARG]...", nargs=-1, required=True, type=click.UNPROCESSED)
@connected
def exec_command(
    client: "Client", name: str, command: tuple[str, ...], stdin: bool, tty: bool, task: str | None, namespace: str
) -> int:
    """Run a command inside an instance.

    Its exit status becomes ours. `mandor exec -it web-0 -- sh` gives a shell.
    """
    from mandor.cli.commands.logs import find_instance

    if command and command[0] == "--":
        command = command[1:]
    if not command:
        raise click.UsageError("there is no command to run")
    terminal = tty and sys.stdin.isatty()
    if tty and not terminal:
        click.echo("this is not a terminal, so none is given to the command", err=True)
    name = find_instance(client, name.removeprefix("instance/"), namespace)
    rows, columns = _size()
    query = {
        "namespace": namespace,
        "task": task,
        "command": list(command),
        "terminal": terminal,
        "stdin": stdin,
        "rows": rows,
        "columns": columns,
    }
    with _connected(client, f"/v1/instances/{name}/exec", query) as socket:
        return Session(socket, stdin=stdin, terminal=terminal).run()


class Session:
    """This process's ends joined to the command's, until it ends."""

    def __init__(self, socket: "ClientConnection", *, stdin: bool, terminal: bool) -> None:
        self._socket = socket
        self._stdin = stdin
        self._terminal = terminal

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
                raise Unavailable("the connection ended before the command did") from error
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

        def tell(*_: object) -> None:
            rows, columns = _size()
            self._send(RESIZE, json.dumps({"rows": rows, "columns": columns}).encode())

        before = signal.signal(signal.SIGWINCH, tell)
        try:
            yield
        finally:
            signal.signal(signal.SIGWINCH, before)


@contextlib.contextmanager
def _connected(client: "Client", path: str, query: dict[str, Any]) -> Iterator["ClientConnection"]:
    from websockets.exceptions import InvalidHandshake, InvalidStatus
    from websockets.sync.client import ClientConnection, connect

    from mandor.cli.progress import waits

    url, headers, context = client.websocket(path, query)
    try:
        with waits(path):
            socket = connect(
                url, ssl=context, additional_headers=headers, max_size=FRAME_MOST, proxy=None, open_timeout=30
            )
    except InvalidStatus as error:
        raise _refusal(bytes(error.response.body or b""), error.response.status_code) from None
    except (OSError, InvalidHandshake, TimeoutError) as error:
        raise Unavailable(f"cannot reach {url.partition('?')[0]}: {error}") from error
    assert isinstance(socket, ClientConnection)
    with socket:
        yield socket


def _refusal(body: bytes, status: int) -> MandorError:
    from mandor.client.sync import problem_error

    try:
        return problem_error(json.loads(body))
    except (ValueError, AttributeError):
        return Unavailable(f"the server answered {status}", hint="is this a mandor server?")


def _ending(data: bytes) -> int:
    """The command's exit status, or what went wrong before there was one."""
    from mandor.client.sync import problem_error

    try:
        told = json.loads(data or b"{}")
    except ValueError:
        told = {}
    code = told.get("code") if isinstance(told, dict) else None
    if isinstance(code, str):
        raise problem_error(told)
    return code if isinstance(code, int) else 1


def _size() -> tuple[int, int]:
    try:
        columns, rows = os.get_terminal_size(sys.stdin.fileno())
    except (OSError, ValueError):
        return 24, 80
    return max(rows, 1), max(columns, 1)


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    """Every key goes to the command, Ctrl-C too; the terminal is put back whatever happens."""
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
