"""Tracing of commands that change something; enabled by environment variables."""

import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

import click

from mandor import __version__
from mandor.errors import Unavailable
from mandor.telemetry.context import parse_header
from mandor.telemetry.otlp import encode
from mandor.telemetry.span import Kind
from mandor.telemetry.target import Target, find_target
from mandor.telemetry.tracer import Tracer

SENDING_SECONDS = 2.0
"""Seconds to wait for the trace receiver; the user waits meanwhile."""


class CommandTrace:
    """Trace of one command: a span for the command, and one for each request that changes something."""

    def __init__(self, command: str, target: Target, environ: Mapping[str, str]) -> None:
        self._target, self._tracer, self._requests = target, Tracer(ratio=target.ratio), 0
        parent = parse_header(environ.get("TRACEPARENT"))
        self._span = self._tracer.begin(command, parent, attributes={"mandor.command": command})

    @contextmanager
    def asking(self, method: str, path: str) -> Iterator[Mapping[str, str]]:
        """Yield the headers for a request; reads are not traced."""
        if method == "GET" or not self._span.sampled:
            yield {}
            return
        self._requests += 1
        request = self._tracer.below(
            self._span, f"{method} {path}", Kind.CLIENT, attributes={"http.request.method": method, "url.path": path}
        )
        try:
            with self._tracer.ending(request):
                yield {"traceparent": request.context.header}
        except Exception:
            self._span.failure = request.failure
            raise

    def close(self) -> None:
        """End the span of the command and send the trace."""
        if not self._requests:
            return
        self._tracer.end(self._span)
        try:
            _post(self._target, encode(self._tracer.take(), self._resource()))
            click.echo(f"trace {self._span.context.trace_id}", err=True)
        except Unavailable as error:
            click.echo(f"the trace could not be sent to {self._target.url}: {error}", err=True)

    def _resource(self) -> dict[str, str]:
        return {**self._target.resource, "service.name": "mandor-cli", "service.version": __version__}


def command_trace(command: str, environ: Mapping[str, str] = os.environ) -> CommandTrace | None:
    """Return the trace of a command, or None if tracing is not enabled."""
    target = find_target(environ.get("MANDOR_OTLP_TRACES", ""), None, environ)
    return CommandTrace(command, target, environ) if target is not None else None


def _post(target: Target, body: bytes) -> None:
    parts = urlsplit(target.url)
    assert parts.hostname is not None, "a target has an address"
    connection: HTTPConnection
    try:
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=target.ca or None)
            connection = HTTPSConnection(parts.hostname, parts.port, timeout=SENDING_SECONDS, context=context)
        else:
            connection = HTTPConnection(parts.hostname, parts.port, timeout=SENDING_SECONDS)
        try:
            path = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
            connection.request("POST", path, body, {**target.headers, "Content-Type": "application/json"})
            status = connection.getresponse().status
        finally:
            connection.close()
    except (OSError, HTTPException, ValueError) as error:
        raise Unavailable(str(error) or type(error).__name__) from error
    if status >= 300:
        raise Unavailable(f"status {status}")
