"""Spans of requests: always for changes by users, otherwise only if the request continues a trace."""

from collections.abc import Iterator
from contextlib import contextmanager

from mandor.api.caller import Caller
from mandor.api.http.problems import STATUS
from mandor.api.http.request import Request, header
from mandor.api.operation import Operation
from mandor.errors import MandorError
from mandor.telemetry.context import parse_header
from mandor.telemetry.span import Kind, Value, within
from mandor.telemetry.tracer import Tracer


@contextmanager
def request_span(tracer: Tracer, request: Request, operation: Operation, caller: Caller) -> Iterator[None]:
    """Record the span of a request, with the attributes of OpenTelemetry's conventions for HTTP servers.

    Reads and requests of the cluster's own parts start no trace.
    """
    parent = parse_header(header(request.headers, b"traceparent"))
    if parent is None and (operation.method == "GET" or not caller.user):
        yield
        return
    span = tracer.begin(f"{operation.method} {operation.path}", parent, Kind.SERVER)
    if span.sampled:
        span.attributes |= _about(request, operation, caller)
    status = operation.status
    try:
        with within(span):
            yield
    except MandorError as error:
        status = STATUS[error.code]
        span.attributes["error.type"] = error.code
        if status >= 500:
            span.fail(error.message)
        raise
    except Exception as error:
        status = 500
        span.fail(str(error), type(error).__name__)
        raise
    finally:
        span.attributes["http.response.status_code"] = status
        tracer.end(span)


def _about(request: Request, operation: Operation, caller: Caller) -> dict[str, Value]:
    return {
        "http.request.method": operation.method,
        "http.route": operation.path,
        "url.path": request.path,
        "url.scheme": request.scheme,
        "client.address": request.address,
        "mandor.operation": operation.name,
        "mandor.caller": caller.identity,
    }
