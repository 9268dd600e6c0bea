"""The sink of an address; what it needs is loaded when one is there."""

from collections.abc import Sequence
from pathlib import Path

from mandor.agent.shipping.sink import ReadSecret, Sink
from mandor.lib.egress import STRICT, Egress
from mandor.lib.secret_files import NO_FILES, SecretFiles
from mandor.model.log_sink import LogSinkSpec


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
