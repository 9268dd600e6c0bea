"""Endpoint: reads a request, calls its operation, sends the answer; every error becomes a problem."""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import nullcontext
from time import perf_counter
from typing import Any, TypeVar, get_origin, get_type_hints
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Receive, Scope, Send

from mandor.api.auth import Headers, check_local, header
from mandor.api.caller import LOCAL, Caller
from mandor.api.lanes import lane_of, weight_of
from mandor.api.operation import JSON, Call, Operation, Stream, Text
from mandor.api.parts import ApiParts
from mandor.api.problems import STATUS, encode_problem, headers_for, misfit
from mandor.api.settings import ApiSettings
from mandor.api.tracing import request_span
from mandor.api.turn_plan import Lane
from mandor.api.versions import check_skew, note_newer
from mandor.errors import Invalid, MandorError, TooLarge, Unauthenticated, Unsupported
from mandor.lib.words import did_you_mean
from mandor.model.codec import decode_as, encode

log = logging.getLogger("mandor.api")
T = TypeVar("T")

QUERY_BYTES_MOST = 16 * 1024
GONE = 499
"""Counted for who went away before there was an answer."""


class Gone(Exception):
    """The caller went away before the request was complete."""


class Endpoint:
    """One path; an ASGI application."""

    def __init__(self, parts: ApiParts, operations: Iterable[Operation]) -> None:
        self._parts = parts
        self._by_method: dict[str, Operation] = {each.method: each for each in operations}
        self._queries: dict[str, Query] = {each.method: Query(each.query) for each in self._by_method.values()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await refuse_websocket(send, receive)
            return
        measures, began, status = self._parts.measures, perf_counter(), GONE
        measures.in_flight += 1
        try:
            answer, status = await self._answer(scope, receive)
        except Gone:
            return
        except MandorError as error:
            note_newer(error, scope["headers"])
            status, more = self._refusal(error)
            await send_problem(send, error, status=status, more=more)
            return
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            status = 500
            await send_problem(send, MandorError("something went wrong inside", hint="the server's log has more"))
            return
        finally:
            measures.in_flight -= 1
            measures.answered(self._name(scope["method"]), status, perf_counter() - began)
        if isinstance(answer, Stream):
            await answer.run(receive, send)
        else:
            await send_body(
                send, status, [(b"content-type", answer.content_type.encode()), *answer.headers], answer.body
            )

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[Stream | Text, int]:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        operation = self._by_method.get(method)
        # Whoever wants only the head of a stream would wait for its end.
        if operation is None or (method != scope["method"] and operation.gives != JSON):
            raise WrongMethod(f"{scope['path']} has no {method}", hint=f"it has {', '.join(self._by_method)}")
        parts, headers, address = self._parts, scope["headers"], (scope.get("client") or ("",))[0]
        caller = await self._identify(operation, headers, address)
        query = self._queries[operation.method].read(scope["query_string"])
        data, content_type = b"", ""
        # Read before the turn: who sends it slowly takes nobody's seat.
        if operation.body is not None:
            data, content_type = await _read_body(operation, headers, receive, parts.settings)
        stile = parts.turnstile
        turn = stile.ask(
            lane_of(operation, caller), caller, weight=weight_of(caller), cost=operation.cost, size_bytes=len(data)
        )
        try:
            if not turn.seated:
                await stile.wait(turn)
            if caller.role == "node" and turn.lane is not Lane.HEARTBEAT:
                await parts.of_nodes.turn()
            body = _decoded(operation, data) if operation.body is not None else None
            call = Call(parts, caller, scope.get("path_params") or {}, query, body, content_type, headers, address)
            with nullcontext() if parts.tracer is None else request_span(parts.tracer, scope, operation, caller):
                answer = await operation.handler(call)
            if not isinstance(answer, Stream | Text):
                answer = Text(encode(answer))
            return answer, operation.status
        finally:
            # What is left is to send it, at the caller's own pace.
            stile.leave(turn)

    async def _identify(self, operation: Operation, headers: Headers, address: str) -> Caller:
        parts = self._parts
        if operation.open:
            parts.turnstile.stranger(address)
            if not parts.settings.tokens_required:
                check_local(headers)
            return LOCAL
        try:
            caller = await parts.auth.identify(headers)
        except Unauthenticated:
            parts.turnstile.stranger(address)
            raise
        if caller.user:
            check_skew(headers)
        return caller

    def _name(self, method: str) -> str:
        operation = self._by_method.get("GET" if method == "HEAD" else method)
        return operation.name if operation is not None else ""

    def _refusal(self, error: MandorError) -> tuple[int, list[tuple[bytes, bytes]]]:
        """The status, and headers beside the usual ones."""
        if isinstance(error, WrongMethod):
            return 405, [(b"allow", ", ".join(self._by_method).encode())]
        return 415 if isinstance(error, WrongContent) else STATUS[error.code], []


class WrongMethod(Unsupported):
    """Answered with 405."""


class WrongContent(Unsupported):
    """Answered with 415."""


class Query:
    """Reads a query string into a struct; parameters nobody knows are errors."""

    def __init__(self, wanted: type | None) -> None:
        self._wanted = wanted
        hints = get_type_hints(wanted) if wanted is not None else {}
        self._many = {name for name, hint in hints.items() if get_origin(hint) is tuple}
        self._known = set(hints)

    def read(self, text: bytes) -> Any:
        if not text:
            return self._wanted() if self._wanted is not None else None
        if len(text) > QUERY_BYTES_MOST:
            raise TooLarge(f"the query has {len(text)} bytes; at most {QUERY_BYTES_MOST} are allowed")
        try:
            pairs = parse_qsl(text.decode("ascii"), keep_blank_values=True, max_num_fields=100, errors="strict")
        except ValueError as error:
            raise Invalid(f"the query cannot be read: {error}") from error
        given: dict[str, Any] = {}
        for name, value in pairs:
            if name not in self._known:
                raise Invalid(f"there is no parameter {name!r}", hint=did_you_mean(name, self._known), parameter=name)
            if name in self._many:
                given.setdefault(name, []).append(value)
            elif name in given:
                raise Invalid(f"the parameter {name!r} stands there twice", parameter=name)
            else:
                given[name] = value
        assert self._wanted is not None
        try:
            return msgspec.convert(given, self._wanted, strict=False)
        except msgspec.ValidationError as error:
            raise misfit(error, self._wanted, "query") from error


async def _read_body(
    operation: Operation, headers: Headers, receive: Receive, settings: ApiSettings
) -> tuple[bytes, str]:
    most = settings.body_bytes_most
    content_type = (header(headers, b"content-type") or "").partition(";")[0].strip().lower()
    announced = header(headers, b"content-length")
    if announced is not None and announced.isdecimal() and int(announced) > most:
        raise TooLarge(f"the body has {announced} bytes; at most {most} are allowed", most=most)
    bare = not content_type and operation.body_optional
    # A web page cannot send these types to another origin without asking first.
    if content_type not in operation.takes and not bare:
        raise WrongContent(
            f"the content type {content_type or '(none)'!r} is not taken here",
            hint=f"send {' or '.join(operation.takes)}",
        )
    try:
        async with asyncio.timeout(settings.body_seconds_most):
            data = await read_all(receive, most)
    except TimeoutError as error:
        raise Invalid(f"the body did not come within {settings.body_seconds_most:g} s") from error
    return data, content_type


def _decoded(operation: Operation, data: bytes) -> Any:
    if operation.body is bytes:
        return data
    if not data and operation.body_optional:
        return None
    return decode_body(data, operation.body)


def decode_body(data: bytes, wanted: type[T]) -> T:
    try:
        return decode_as(data, wanted)
    except Invalid as error:
        if isinstance(error.__cause__, msgspec.DecodeError):
            raise misfit(error.__cause__, wanted) from error
        raise
    except (RecursionError, UnicodeDecodeError) as error:
        raise Invalid(f"the body is not JSON that can be read: {error}") from error


async def read_all(receive: Receive, most: int) -> bytes:
    """The whole body, which has at most so many bytes."""
    pieces, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        piece = message.get("body", b"")
        size += len(piece)
        if size > most:
            raise TooLarge(f"the body has more than {most} bytes", most=most)
        pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)


async def send_body(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    headers.append((b"content-length", str(len(body)).encode()))
    headers.append((b"x-content-type-options", b"nosniff"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_problem(
    send: Send, error: MandorError, *, status: int | None = None, more: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    headers = [*headers_for(error), *more]
    await send_body(send, status or STATUS[error.code], headers, encode_problem(error, status=status))


async def refuse_websocket(send: Send, receive: Receive) -> None:
    await receive()
    await send({"type": "websocket.close", "code": 1000})
