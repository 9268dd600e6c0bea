"""Sends an image to several nodes in parallel, with a progress bar for each."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from mandor.cli.line import END, STDIN, connect_line, read_result
from mandor.errors import MandorError, Unavailable

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

    from mandor.client.image_file import ImageSource
    from mandor.client.sync import Client

Advance = Callable[[int], None]
"""Callback with the number of bytes sent."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of loading the image into one engine of one node."""

    node: str
    engine: str
    result: str
    """`loaded`, `already there`, `failed` or `skipped`."""
    message: str = ""
    hint: str = ""

    @property
    def failed(self) -> bool:
        return self.result == "failed"

    @property
    def skipped(self) -> bool:
        return self.result == "skipped"

    def row(self) -> tuple[str, ...]:
        return self.node, self.engine, self.result, f"{self.message} ({self.hint})" if self.hint else self.message

    def plain(self) -> dict[str, str]:
        found = {"node": self.node, "engine": self.engine, "result": self.result}
        return found | {name: value for name in ("message", "hint") if (value := getattr(self, name))}


def load_all(client: "Client", source: "ImageSource", nodes: list[str], engine: str, parallel: int) -> list[Outcome]:
    """Send the image to each node, at most `parallel` at a time; a failure does not affect other nodes."""
    if not nodes:
        return []
    stop = threading.Event()
    with _bars(source.image.size) as bar, ThreadPoolExecutor(parallel) as pool:
        work = [pool.submit(_load_one, client, source, node, engine, bar(node), stop) for node in nodes]
        try:
            return [outcome for each in work for outcome in each.result()]
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _load_one(
    client: "Client", source: "ImageSource", node: str, engine: str, advance: Advance, stop: threading.Event
) -> list[Outcome]:
    image = source.image
    query: dict[str, Any] = {
        "kind": image.kind,
        "size": image.size,
        "id": image.id or None,
        "names": list(image.names),
        "metadata_bytes": image.metadata_bytes or None,
        "engine": engine or None,
    }
    try:
        with connect_line(client, f"/v1/nodes/{quote(node)}/images", query) as line:
            result = _send(line, source, advance, stop)
    except MandorError as error:
        return [Outcome(node, engine or "-", "failed", error.message, error.hint or "")]
    return [_outcome(node, each) for each in result.get("engines", ())]


def _outcome(node: str, result: dict[str, Any]) -> Outcome:
    error = result.get("error")
    if error:
        return Outcome(node, result["engine"], "failed", str(error.get("detail", "")), error.get("hint") or "")
    return Outcome(node, result["engine"], "loaded" if result.get("new") else "already there")


def _send(line: "ClientConnection", source: "ImageSource", advance: Advance, stop: threading.Event) -> dict[str, Any]:
    """Send the image and return the node's result. The node may respond before it has received everything; then the
    rest is not sent.
    """
    over = threading.Event()

    def feed() -> None:
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed, OSError):
            for block in source.read():
                if over.is_set() or stop.is_set():
                    return
                line.send(bytes([STDIN]) + block)
                advance(len(block))
            line.send(bytes([STDIN]))

    sending = threading.Thread(target=feed, daemon=True)
    sending.start()
    try:
        return _answer(line)
    finally:
        over.set()
        line.close()
        sending.join()


def _answer(line: "ClientConnection") -> dict[str, Any]:
    from websockets.exceptions import ConnectionClosed

    while True:
        try:
            frame = line.recv()
        except ConnectionClosed as error:
            raise Unavailable("the connection ended before the image was loaded", hint="load it again") from error
        if isinstance(frame, bytes) and frame[:1] == bytes([END]):
            return read_result(frame[1:])


@contextlib.contextmanager
def _bars(size: int) -> Iterator[Callable[[str], Advance]]:
    """Yield a function that makes a progress bar for a node; without a terminal the bars do nothing."""
    if not sys.stderr.isatty():
        yield lambda node: lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:

        def bar(node: str) -> Advance:
            task = progress.add_task(node, total=size)
            return lambda count: progress.advance(task, count)

        yield bar
