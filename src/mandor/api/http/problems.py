"""Errors as problem+json: one table from error code to HTTP status."""

import re
from http import HTTPStatus
from math import ceil
from typing import Any

import msgspec

from mandor.errors import Invalid, MandorError
from mandor.lib.words import did_you_mean

STATUS: dict[str, int] = {
    "internal": 500,
    "not_found": 404,
    "invalid": 400,
    "too_large": 413,
    "conflict": 409,
    "expired": 410,
    "unsupported": 422,
    "unauthenticated": 401,
    "forbidden": 403,
    "too_many": 429,
    "unavailable": 503,
    "engine_down": 503,
    "port_taken": 503,
}
"""HTTP status by error code; every code of `mandor.errors` is listed."""

CONTENT_TYPE = b"application/problem+json"
_RESERVED = frozenset({"type", "title", "status", "code", "detail", "hint", "message", "self"})
_PATH = re.compile(r" - at `([^`]*)`$")
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_MISSING = re.compile(r"missing required field `([^`]*)`")


class Problem(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The body of every error response (RFC 9457); further members hold the facts of the error."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    hint: str | None = None


def describe(error: MandorError, *, status: int | None = None) -> dict[str, Any]:
    """Return the error as a problem document; its facts are additional members."""
    status = status or STATUS[error.code]
    problem: dict[str, Any] = {
        "type": f"urn:mandor:problem:{error.code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": error.code,
        "detail": error.message,
    }
    if error.hint:
        problem["hint"] = error.hint
    return problem | {name: value for name, value in error.facts.items() if name not in _RESERVED}


def encode_problem(error: MandorError, *, status: int | None = None) -> bytes:
    return msgspec.json.encode(describe(error, status=status), enc_hook=str)


def headers_for(error: MandorError) -> list[tuple[bytes, bytes]]:
    headers = [(b"content-type", CONTENT_TYPE)]
    if error.code == "unauthenticated":
        headers.append((b"www-authenticate", b'Bearer realm="mandor"'))
    if error.code in {"too_many", "unavailable", "engine_down", "port_taken"}:
        headers.append((b"retry-after", b"%d" % _seconds(error)))
    return headers


def _seconds(error: MandorError) -> int:
    """Return the whole seconds after which a retry makes sense."""
    given = error.facts.get("seconds", 1)
    return max(1, ceil(given)) if isinstance(given, int | float) else 1


def misfit(error: msgspec.DecodeError, wanted: Any, what: str = "body") -> Invalid:
    """Return an error for input that did not decode, with its path and a guess at the intended field."""
    text = str(error)
    place = _PATH.search(text)
    facts: dict[str, object] = {"path": place[1]} if place else {}
    unknown, missing = _UNKNOWN.search(text), _MISSING.search(text)
    hint: str | None
    if unknown:
        hint = did_you_mean(unknown[1], _words(wanted))
    else:
        named = place[1].removeprefix("$.") if place else missing[1] if missing else ""
        hint = _number_at(named, wanted)
    return Invalid(f"the {what} is invalid: {text}", hint=hint or "see the expected format on the page /docs", **facts)


def _number_at(name: str, wanted: Any) -> str | None:
    """Return the range of a numeric field as a hint; None: the field is not numeric."""
    struct = msgspec.inspect.type_info(wanted)
    for field in struct.fields if isinstance(struct, msgspec.inspect.StructType) else ():
        if field.encode_name != name:
            continue
        info, about = field.type, ""
        if isinstance(info, msgspec.inspect.Metadata):
            about = (info.extra_json_schema or {}).get("description", "")
            info = info.type
        if isinstance(info, msgspec.inspect.IntType | msgspec.inspect.FloatType):
            kind = "a whole number" if isinstance(info, msgspec.inspect.IntType) else "a number"
            least = f" from {info.ge}" if info.ge is not None else f" above {info.gt}" if info.gt is not None else ""
            most = f" to {info.le:,}" if info.le is not None else ""
            return f"`{name}` is {kind}{least}{most}" + (f": {about.lower().rstrip('.')}" if about else "")
    return None


def _words(wanted: Any) -> set[str]:
    """Return every field name that occurs in a type, at any depth."""
    found: set[str] = set()
    seen: set[int] = set()
    stack = [msgspec.inspect.type_info(wanted)]
    while stack:
        info = stack.pop()
        if id(info) in seen:
            continue
        seen.add(id(info))
        if isinstance(info, msgspec.inspect.StructType):
            found |= {field.encode_name for field in info.fields}
            stack += [field.type for field in info.fields]
        elif isinstance(info, msgspec.inspect.UnionType):
            stack += info.types
        elif isinstance(info, msgspec.inspect.DictType):
            stack.append(info.value_type)
        elif isinstance(info, msgspec.inspect.VarTupleType | msgspec.inspect.ListType):
            stack.append(info.item_type)
        elif isinstance(info, msgspec.inspect.Metadata):
            stack.append(info.type)
    return found
