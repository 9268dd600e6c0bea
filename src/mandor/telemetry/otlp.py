"""Spans as OTLP in JSON: the body of a request to `/v1/traces`, and the meaning of its answer."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from mandor import __version__
from mandor.telemetry.span import Span, Value

_SAMPLED = 1
_ERROR = 2


class _Wire(Struct, frozen=True, gc=False, omit_defaults=True, rename="camel"):
    pass


class _Status(_Wire, frozen=True):
    message: str = ""
    code: int = 0


class _Link(_Wire, frozen=True):
    trace_id: str
    span_id: str
    flags: int = _SAMPLED


class _Span(_Wire, frozen=True):
    """A span in OTLP/JSON. The standard writes ids in hexadecimal and 64-bit numbers as text."""

    trace_id: str
    span_id: str
    name: str
    kind: int
    start_time_unix_nano: str
    end_time_unix_nano: str
    parent_span_id: str = ""
    flags: int = _SAMPLED
    attributes: Sequence[dict[str, Any]] = ()
    links: Sequence[_Link] = ()
    status: _Status = _Status()


def encode(spans: Iterable[Span], resource: Mapping[str, Value]) -> bytes:
    scope = {"name": "mandor", "version": __version__}
    scoped = [{"scope": scope, "spans": [_wire(each) for each in spans]}]
    return msgspec.json.encode(
        {"resourceSpans": [{"resource": {"attributes": attributes(resource)}, "scopeSpans": scoped}]}
    )


def _wire(span: Span) -> _Span:
    context = span.context
    return _Span(
        trace_id=context.trace_id,
        span_id=context.span_id,
        name=span.name,
        kind=int(span.kind),
        start_time_unix_nano=str(span.start),
        end_time_unix_nano=str(span.end),
        parent_span_id=span.parent_id,
        attributes=attributes(span.attributes),
        links=[_Link(each.trace_id, each.span_id) for each in span.links],
        status=_Status(span.failure, _ERROR) if span.failure is not None else _Status(),
    )


def attributes(values: Mapping[str, Value]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _any(value)} for name, value in values.items()]


def _any(value: Value) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"arrayValue": {"values": [_any(each) for each in value]}}


def refused(answer: bytes, of: str) -> tuple[int, str]:
    """Return the number of rejected items and the reason; `of`: the field with the number, such as `rejectedSpans`."""
    try:
        partial = (msgspec.json.decode(answer) if answer.strip() else {}).get("partialSuccess") or {}
        return int(partial.get(of) or 0), str(partial.get("errorMessage", ""))
    except (msgspec.MsgspecError, AttributeError, ValueError):
        return 0, ""  # The batch was accepted; the rest of the answer is ignored.
