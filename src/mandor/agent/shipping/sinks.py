"""The sink of an address; what it needs is loaded when one is there."""

from collections.abc import Sequence
from pathlib import Path

from mandor.agent.shipping.sink import ReadSecret, Sink
from mandor.model.log_sink import LogSinkSpec


def open_sink(spec: LogSinkSpec, folders: Sequence[Path], read_secret: ReadSecret) -> Sink:
    """`folders`: where files may be written."""
    scheme = spec.scheme
    if scheme == "file":
        from mandor.agent.shipping.file import FileSink

        return FileSink(spec, folders)
    if scheme.startswith("syslog"):
        from mandor.agent.shipping.syslog import DatagramSyslog, StreamSyslog

        return StreamSyslog(spec) if scheme == "syslog+tcp" else DatagramSyslog(spec)
    if scheme == "fluent":
        from mandor.agent.shipping.fluent import FluentSink

        return FluentSink(spec)
    from mandor.agent.shipping.web import LokiSink, OtlpSink

    return LokiSink(spec, read_secret) if scheme.startswith("loki") else OtlpSink(spec, read_secret)
