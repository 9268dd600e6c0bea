"""Endpoint: authenticates and decodes a request, calls its operation and encodes the reply; errors become problems."""

import logging
from collections.abc import Iterable
from time import perf_counter
from typing import Any, get_origin, get_type_hints
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Receive, Scope, Send

from mandor.api.auth import check_local
from mandor.api.caller import LOCAL, Caller
from mandor.api.http.body import ClientDisconnected, TooSlow, WrongContent, check_body, decode_body, read_body
from mandor.api.http.fair_queue import Lane
from mandor.api.http.problems import STATUS, misfit
from mandor.api.http.request import CLIENT_CERTIFICATE, Pairs, Reply, Request, Source, problem_reply, send_reply
from mandor.api.operation import JSON, Call, Operation, Stream, Text
from mandor.api.parts import ApiParts
from mandor.api.revocation import ENDS
from mandor.api.tracing import request_span
from mandor.api.versions import check_skew, note_newer
from mandor.errors import Forbidden, Invalid, MandorError, TooLarge, Unauthenticated, Unsupported
from mandor.lib.at_once import Waits, at_once
from mandor.lib.words import did_you_mean
from mandor.model.codec import encode

log = logging.getLogger("mandor.api")

QUERY_BYTES_MOST = 16 * 1024
LONG = frozenset({Lane.FORECAST, Lane.BULK})
"""Lanes of operations that may take seconds: they are cancelled when the caller's token is revoked."""
DISCONNECTED = 499
"""Status in the metrics for a client that disconnected before the response."""
WEIGHTS = {"component": 4}
"""Share of a caller in its lane, by role; 1 for other roles. A component works for many users."""
_JSON: Pairs = ((b"content-type", JSON.encode()),)


class Endpoint:
    """The operations of one path; an ASGI application, and a function for requests that have arrived completely."""

    def __init__(self, parts: ApiParts, operations: Iterable[Operation]) -> None:
        self._parts = parts
        self._by_method: dict[str, Operation] = {each.method: each for each in operations}
        self._queries: dict[str, Query] = {each.method: Query(each.query) for each in self._by_method.values()}
        self.whole = frozenset(each.method for each in self._by_method.values() if each.gives == JSON)
        """Methods whose responses are one piece."""
        self.prompt = frozenset(each.method for each in self._by_method.values() if each.prompt)
        """Methods for which `reply_at_once` is worth a try."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await refuse_websocket(send, receive)
            return
        answer = await self.reply(request_of(scope), receive)
        if isinstance(answer, Stream):
            try:
                await answer.run(receive, send)
            except ENDS as error:
                # The response is incomplete and must not look complete: the connection is closed.
                log.info("%s was ended: %s", scope["path"], error)
        elif answer is not None:
            await send_reply(send, answer)

    async def reply(self, request: Request, body: bytes | Receive) -> Reply | Stream | None:
        """Return the response, also for every error; None: the client disconnected.

        `body`: the whole body, or the ASGI channel to read it from.
        """
        metrics, began, status = self._parts.request_metrics, perf_counter(), DISCONNECTED
        metrics.in_flight += 1
        try:
            answer = await self._answer(request, body)
            status = answer.status if isinstance(answer, Reply) else 200
            return answer
        except ClientDisconnected:
            return None
        except Exception as error:
            refusal = self._refusal(request, error)
            status = refusal.status
            return refusal
        finally:
            metrics.in_flight -= 1
            metrics.answered(self._name(request.method), status, perf_counter() - began)

    def reply_at_once(self, request: Request, body: bytes) -> Reply | None:
        """Return the response without waiting; None: the handler would have to wait."""
        began = perf_counter()
        try:
            reply = self._answer_at_once(request, body)
        except Waits:
            return None
        except Exception as error:
            reply = self._refusal(request, error)
        self._parts.request_metrics.answered(self._name(request.method), reply.status, perf_counter() - began)
        return reply

    async def _answer(self, request: Request, body: bytes | Receive) -> Reply | Stream:
        operation = self._operation(request)
        parts = self._parts
        caller = await self._identify(operation, request)
        self._check_gate(operation, caller)
        query = self._queries[operation.method].read(request.query)
        data, content_type = b"", ""
        # Read before the request enters the queue: a slow sender must not hold a slot.
        if operation.body is not None:
            content_type = self._check_body(operation, request)
            data = body if isinstance(body, bytes) else await read_body(body, parts.settings)
        admission, weight = parts.request_admission, WEIGHTS.get(caller.role, 1)
        lane = operation.lane_for(caller)
        ticket = admission.enqueue(lane, caller, weight=weight, cost=operation.cost, size_bytes=len(data))
        try:
            if not ticket.admitted:
                await admission.wait(ticket)
            if caller.role == "node" and lane is not Lane.HEARTBEAT:
                await parts.of_nodes.turn()
            call = self._call(operation, request, caller, query, data, content_type)
            if operation.lane in LONG:
                async with parts.revocation.guard(caller):
                    return await self._handled(operation, request, call)
            return await self._handled(operation, request, call)
        finally:
            # Sending the response, at the client's pace, needs no slot.
            admission.release(ticket)

    async def _handled(self, operation: Operation, request: Request, call: Call[Any, Any]) -> Reply | Stream:
        if self._parts.tracer is None:
            return _reply(operation, await operation.handler(call))
        with request_span(self._parts.tracer, request, operation, call.caller):
            return _reply(operation, await operation.handler(call))

    def _answer_at_once(self, request: Request, body: bytes) -> Reply:
        """Answer a request that needs no slot, such as a heartbeat; with the same steps as `_answer`."""
        operation = self._operation(request)
        parts = self._parts
        if parts.tracer is not None and b"traceparent" in request.headers:
            raise Waits
        caller = at_once(self._identify(operation, request))
        self._check_gate(operation, caller)
        if operation.lane_for(caller) is not Lane.HEARTBEAT:
            raise Waits
        query = self._queries[operation.method].read(request.query)
        content_type = self._check_body(operation, request) if operation.body is not None else ""
        parts.request_admission.count(Lane.HEARTBEAT, caller)
        call = self._call(operation, request, caller, query, body, content_type)
        reply = _reply(operation, at_once(operation.handler(call)))
        if isinstance(reply, Stream):
            raise Waits
        return reply

    def _operation(self, request: Request) -> Operation:
        method = "GET" if request.method == "HEAD" else request.method
        operation = self._by_method.get(method)
        # HEAD of a stream would wait for the end of the stream.
        if operation is None or (method != request.method and operation.gives != JSON):
            raise WrongMethod(
                f"{request.path} does not support {method}", hint=f"supported: {', '.join(self._by_method)}"
            )
        return operation

    async def _identify(self, operation: Operation, request: Request) -> Caller:
        parts = self._parts
        if operation.open:
            parts.request_admission.count_unauthenticated(request.address)
            if not parts.settings.tokens_required:
                check_local(request.headers)
            return LOCAL
        try:
            caller = await parts.auth.identify(
                request.headers, Source(request.scheme, request.address, request.certificate), enrols=operation.enrols
            )
        except Unauthenticated:
            parts.request_admission.count_unauthenticated(request.address)
            raise
        if request.identified is not None:
            request.identified(caller)
        if caller.user:
            check_skew(request.headers)
        return caller

    def _check_gate(self, operation: Operation, caller: Caller) -> None:
        """Raise `Forbidden` before query and body are read; a refused request counts against the rate limit."""
        try:
            operation.check_caller(caller)
        except Forbidden:
            self._parts.request_admission.count(operation.lane_for(caller), caller)
            raise

    def _call(
        self, operation: Operation, request: Request, caller: Caller, query: Any, data: bytes, content_type: str
    ) -> Call[Any, Any]:
        body = _decoded(operation, data) if operation.body is not None else None
        return Call(
            self._parts,
            caller,
            request.names,
            query,
            body,
            content_type,
            request.headers,
            request.address,
            request.scheme == "https",
        )

    def _check_body(self, operation: Operation, request: Request) -> str:
        settings, optional = self._parts.settings, operation.body_optional
        return check_body(operation.takes, request.headers, settings, optional=optional)

    def _name(self, method: str) -> str:
        operation = self._by_method.get("GET" if method == "HEAD" else method)
        return operation.name if operation is not None else ""

    def _refusal(self, request: Request, error: Exception) -> Reply:
        if not isinstance(error, MandorError):
            log.error("%s %s failed", request.method, request.path, exc_info=error)
            return problem_reply(MandorError("internal error", hint="the server's log has the details"))
        note_newer(error, request.headers)
        if isinstance(error, WrongMethod):
            return problem_reply(error, status=405, more=[(b"allow", ", ".join(self._by_method).encode())])
        status = 415 if isinstance(error, WrongContent) else 408 if isinstance(error, TooSlow) else STATUS[error.code]
        return problem_reply(error, status=status)


def request_of(scope: Scope) -> Request:
    return Request(
        scope["method"],
        scope["path"],
        scope.get("path_params") or {},
        scope["query_string"],
        dict(scope["headers"]),
        (scope.get("client") or ("",))[0],
        scope.get("scheme", "http"),
        scope.get("state", {}).get(CLIENT_CERTIFICATE),
        (scope.get("state") or {}).get("identified"),
    )


def _decoded(operation: Operation, data: bytes) -> Any:
    if operation.body is bytes:
        return data
    if not data and operation.body_optional:
        return None
    return decode_body(data, operation.body)


def _reply(operation: Operation, answer: Any) -> Reply | Stream:
    if isinstance(answer, Stream):
        return answer
    if isinstance(answer, Text):
        headers = ((b"content-type", answer.content_type.encode()), *answer.headers)
        return Reply(operation.status, headers, answer.body)
    return Reply(operation.status, _JSON, encode(answer))


class WrongMethod(Unsupported):
    """The path does not support the method; HTTP status 405."""


class Query:
    """Reads a query string into a struct; unknown parameters are errors."""

    def __init__(self, wanted: type | None) -> None:
        self._wanted = wanted
        hints = get_type_hints(wanted) if wanted is not None else {}
        self._many = {name for name, hint in hints.items() if get_origin(hint) is tuple}
        self._known = set(hints)
        self._optional = wanted is None or not any(each.required for each in msgspec.structs.fields(wanted))

    def read(self, text: bytes) -> Any:
        if not text and (self._wanted is None or self._optional):
            return self._wanted() if self._wanted is not None else None
        if len(text) > QUERY_BYTES_MOST:
            raise TooLarge(f"the query has {len(text)} bytes; at most {QUERY_BYTES_MOST} are allowed")
        try:
            pairs = parse_qsl(text.decode("ascii"), keep_blank_values=True, max_num_fields=100, errors="strict")
        except ValueError as error:
            raise Invalid(f"the query is invalid: {error}") from error
        given: dict[str, Any] = {}
        for name, value in pairs:
            if name not in self._known:
                raise Invalid(f"there is no parameter {name!r}", hint=did_you_mean(name, self._known), parameter=name)
            if name in self._many:
                given.setdefault(name, []).append(value)
            elif name in given:
                raise Invalid(f"the parameter {name!r} is given twice", parameter=name)
            else:
                given[name] = value
        assert self._wanted is not None
        try:
            return msgspec.convert(given, self._wanted, strict=False)
        except msgspec.ValidationError as error:
            raise misfit(error, self._wanted, "query") from error


async def refuse_websocket(send: Send, receive: Receive) -> None:
    await receive()
    await send({"type": "websocket.close", "code": 1000})
