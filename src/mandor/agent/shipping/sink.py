"""The log sink interface, and the sinks by URL scheme.

A sink sends lines in order and returns when the receiver has them. It keeps no state that matters: the caller repeats
the same lines until they are accepted, so a receiver may get a line twice and never misses one.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from mandor.agent.shipping.line import Line
from mandor.lib.egress import STRICT, Egress
from mandor.lib.secret_files import NO_FILES, SecretFiles
from mandor.model.log_sink import LogSinkSpec

ReadSecret = Callable[[str, str], Awaitable[str]]
"""(reference, namespace) → value; raises `Unavailable` if there is none."""


class Sink(ABC):
    """A receiver of log lines."""

    @abstractmethod
    async def send(self, lines: Sequence[Line]) -> None:
        """Return when the receiver has all lines, as far as its protocol shows that.

        Raise `Unavailable` if the receiver cannot be reached or authenticated to now, `TooLarge` if fewer lines at once
        would be accepted, and `Invalid` if the receiver will never accept them.
        """

    async def close(self) -> None:
        """Release the connection."""
        return


def open_sink(
    spec: LogSinkSpec,
    folders: Sequence[Path],
    read_secret: ReadSecret,
    egress: Egress = STRICT,
    files: SecretFiles = NO_FILES,
) -> Sink:
    """Open the sink of a URL. `folders`: directories for file sinks; `egress`: allowed hosts; `files`: secret files."""
    scheme = spec.scheme
    if scheme == "file":
        from mandor.agent.shipping.file import FileSink

        return FileSink(spec, folders)
    if scheme.startswith("syslog"):
        from mandor.agent.shipping.syslog import DatagramSyslog, StreamSyslog

        return StreamSyslog(spec, egress) if scheme == "syslog+tcp" else DatagramSyslog(spec, egress)
    if scheme == "fluent":
        from mandor.agent.shipping.fluent import FluentSink

        return FluentSink(spec, egress)
    from mandor.agent.shipping.web import LokiSink, OtlpSink

    kind = LokiSink if scheme.startswith("loki") else OtlpSink
    return kind(spec, read_secret, egress, files)
