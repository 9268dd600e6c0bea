"""The log sink interface: what mandor needs from whoever takes log lines.

A sink is given lines in order and says when the receiver has them all. It remembers nothing that matters: the caller
gives the same lines again until they are taken, so a receiver may see a line twice, and never misses one.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from mandor.agent.shipping.line import Line
from mandor.lib.egress import STRICT, Egress
from mandor.lib.secret_files import NO_FILES, SecretFiles
from mandor.model.log_sink import LogSinkSpec

ReadSecret = Callable[[str, str], Awaitable[str]]
"""(reference, namespace) → value; `Unavailable` while there is none."""


class Sink(ABC):
    @abstractmethod
    async def send(self, lines: Sequence[Line]) -> None:
        """Return when the receiver has all of them, as far as its protocol can tell.

        `Unavailable` when nobody took them, or can just now, or nobody may say who we are. `TooLarge` when fewer at
        once would do. `Invalid` when the receiver will never take them.
        """

    async def close(self) -> None:
        """Nothing is sent any more."""
        return


def open_sink(
    spec: LogSinkSpec,
    folders: Sequence[Path],
    read_secret: ReadSecret,
    egress: Egress = STRICT,
    files: SecretFiles = NO_FILES,
) -> Sink:
    """`folders`: where files may be written; `egress`: which hosts may be called; `files`: where secrets are."""
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
