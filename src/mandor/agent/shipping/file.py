"""Log sink that writes lines as JSON to a file of the node, with rotation."""

import asyncio
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from mandor.agent.shipping.line import Line
from mandor.agent.shipping.sink import Sink
from mandor.engines.stamped import rotate
from mandor.errors import Unavailable
from mandor.model.log_sink import LogSinkSpec


class FileSink(Sink):
    """`folders`: directories in which the agent allows files; the manifest alone is not enough."""

    def __init__(self, spec: LogSinkSpec, folders: Sequence[Path]) -> None:
        self._spec = spec
        self._path = Path(unquote(urlsplit(spec.url).path))
        self._folders = folders

    async def send(self, lines: Sequence[Line]) -> None:
        place = self._path.parent.resolve()
        if not any(place.is_relative_to(folder.resolve()) for folder in self._folders):
            raise Unavailable(
                f"this node does not allow log sinks to write {self._path}",
                hint=f"mandor agent --allow-host-path {self._path.parent}",
            )
        try:
            await asyncio.to_thread(self._write, lines)
        except OSError as error:
            raise Unavailable(f"cannot write {self._path}: {error.strerror or error}") from error

    def _write(self, lines: Sequence[Line]) -> None:
        """Write all lines or none: a partial write is truncated."""
        data = b"".join(msgspec.json.encode(_entry(each)) + b"\n" for each in lines)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists() and self._path.stat().st_size + len(data) > self._spec.rotate:
            rotate(self._path, self._spec.keep + 1)
        # A symbolic link could lead to any file.
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o640)
        with os.fdopen(handle, "ab") as file:
            begin = os.fstat(handle).st_size
            try:
                file.write(data)
                file.flush()
            except OSError:
                os.ftruncate(file.fileno(), begin)
                raise


def _entry(line: Line) -> dict[str, str]:
    at = datetime.fromtimestamp(line.at, UTC).isoformat(timespec="microseconds")
    return {"at": at, **line.record}
