"""Writes the output of a task to log files of bounded size, as lines with time and stream.

A line is `SECONDS STREAM TEXT`, STREAM being `o` or `e`. The newest file is `log`, older ones are `log.1`, `log.2` …
"""

import os
import time

READ_BYTES = 16 * 1024
LINE_BYTES_MAX = 16 * 1024
"""Limit of bytes per line; a longer line is split."""


class LogFile:
    def __init__(self, path: str, *, bytes_max: int, files: int) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._files = files
        self._file = -1
        self._size = 0
        self._torn = b""
        self._open()

    def _open(self) -> None:
        try:
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            self._size = os.fstat(self._file).st_size
        except OSError:
            self._file = -1  # If the disk is full, lines are lost, and the task goes on.

    def write(self, lines: bytes) -> None:
        """Append complete lines with their time."""
        if self._size and self._size + len(lines) > self._bytes_max:
            self._rotate()
        if self._file < 0:
            self._open()
        lines = self._torn + lines
        try:
            written = os.write(self._file, lines)
        except OSError:
            return
        self._size += written
        self._torn = b"" if written == len(lines) else b"\n"

    def _rotate(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        try:
            for number in range(self._files - 1, 0, -1):
                older = f"{self._path}.{number}"
                newer = f"{self._path}.{number - 1}" if number > 1 else self._path
                if os.path.exists(newer):
                    os.rename(newer, older)
            if self._files == 1:
                os.unlink(self._path)
        except OSError:
            pass  # Writing continues in the same file.
        self._open()


class Stream:
    """Standard output or standard error of a task: reads bytes, writes lines with times."""

    def __init__(self, pipe: int, letter: bytes, log: LogFile) -> None:
        self.pipe = pipe
        self.open = True
        self._letter = letter
        self._log = log
        self._rest = b""
        os.set_blocking(pipe, False)

    def pump(self) -> bool:
        """Read available output once; return whether there was any."""
        try:
            data = os.read(self.pipe, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        whole, newline, rest = data.rpartition(b"\n")
        if newline:
            self._write(self._rest + whole)
            self._rest = rest
        else:
            self._rest += data
        while len(self._rest) > LINE_BYTES_MAX:  # A line of exactly this length may end here.
            self._write(self._rest[:LINE_BYTES_MAX])
            self._rest = self._rest[LINE_BYTES_MAX:]
        return True

    def close(self) -> None:
        """Write the last line, which may lack its line end."""
        if self._rest:
            self._write(self._rest)
            self._rest = b""
        if self.open:
            self.open = False
            os.close(self.pipe)

    def _write(self, lines: bytes) -> None:
        stamp = b"%.6f %b " % (time.time(), self._letter)
        first, newline, others = lines.partition(b"\n")
        while len(first) > LINE_BYTES_MAX:
            self._log.write(stamp + first[:LINE_BYTES_MAX] + b"\n")
            first = first[LINE_BYTES_MAX:]
        text = first + newline + others
        self._log.write(stamp + text.replace(b"\n", b"\n" + stamp) + b"\n")
