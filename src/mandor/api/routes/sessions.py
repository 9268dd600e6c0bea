"""Logs and exec for callers, and the WebSocket where agents dial back."""

import logging
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta as Note
from msgspec import Struct
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from mandor.api.access import missing
from mandor.api.caller import Caller, lacks
from mandor.api.changes import FieldChange
from mandor.api.endpoint import Query
from mandor.api.gate import Gate
from mandor.api.http.problems import CONTENT_TYPE, STATUS, encode_problem
from mandor.api.http.request import Headers, header, send_problem, source_of
from mandor.api.operation import NDJSON, Call, Operation, Stream
from mandor.api.parts import ApiParts
from mandor.api.revocation import ENDS
from mandor.api.rights import about, allowed_on
from mandor.api.routes.queries import Namespace
from mandor.api.sessions import END, STDERR, STDOUT, close, end_with, hand_over, receive_frame, splice
from mandor.errors import BY_CODE, Conflict, Forbidden, Invalid, MandorError, NotFound, Unauthenticated, Unavailable
from mandor.lib.words import did_you_mean
from mandor.model.group import FLAT
from mandor.model.instance import Instance
from mandor.model.manifest import DEFAULT_NAMESPACE
from mandor.model.meta import Key
from mandor.model.node import Node, NodePhase
from mandor.model.record import SessionSpec
from mandor.model.workload import Release

log = logging.getLogger("mandor.sessions")

COMMAND_MOST = 1000
Task = Annotated[str, Note(description="Required only for a group with several tasks.", max_length=63)]


class LogsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    namespace: Namespace = DEFAULT_NAMESPACE
    task: Task = ""
    follow: Annotated[bool, Note(description="Stream new lines.")] = False
    tail: Annotated[int, Note(description="Number of last lines.", ge=0, le=1_000_000)] | None = None
    since: Annotated[float, Note(description="Only lines after this time, in seconds since 1970.", ge=0)] | None = None
    timestamps: Annotated[bool, Note(description="Put the time before each line.")] = False


class ExecQuery(Struct, frozen=True, forbid_unknown_fields=True):
    command: tuple[str, ...] = ()
    namespace: Namespace = DEFAULT_NAMESPACE
    task: Task = ""
    terminal: bool = False
    stdin: bool = True
    rows: Annotated[int, Note(ge=1, le=10_000)] = 24
    columns: Annotated[int, Note(ge=1, le=10_000)] = 80


async def find(
    parts: ApiParts, caller: Caller, verb: str, name: str, namespace: str, task: str
) -> tuple[Instance, str]:
    """Return the instance of a session and its task; raise `Forbidden` before the instance is read.

    `verb`: `exec` or `logs`.
    """
    found = await _find(parts, caller, verb, name, namespace)
    chosen = await _task_of(parts, found, task)
    await _check_node(parts, found)
    return found, chosen


async def find_instance(parts: ApiParts, caller: Caller, verb: str, name: str, namespace: str) -> Instance:
    """Return the instance of a session without a task; raise `Forbidden` before the instance is read."""
    found = await _find(parts, caller, verb, name, namespace)
    await _check_node(parts, found)
    return found


async def _find(parts: ApiParts, caller: Caller, verb: str, name: str, namespace: str) -> Instance:
    if not about(caller.held, verb, "instance", namespace):
        raise _refused(caller, verb, f"instances in the namespace {namespace}")
    key = Key("instance", namespace, name)
    found = await parts.store.get(key)
    if isinstance(found, Instance) and not allowed_on(caller.held, verb, found):
        raise _refused(caller, verb, str(key)) if allowed_on(caller.held, "get", found) else missing(key)
    if not isinstance(found, Instance):
        raise missing(key)
    if not found.node:
        raise Conflict(
            f"{name} has no node yet",
            hint=found.status.message or "`mandor describe instance` shows the reason",
            phase=found.phase,
        )
    return found


async def _check_node(parts: ApiParts, instance: Instance) -> None:
    """Raise an error if no agent can answer for the instance, or sessions cannot be stored."""
    name, node = instance.meta.name, instance.node
    if instance.spec.claim is not None:
        raise Conflict(f"{name} reserves resources for a virtual machine and has no tasks")
    found = await parts.store.get(Key(Node.kind, "", node))
    if not isinstance(found, Node):
        raise NotFound(f"the node {node} of {name} does not exist any more", node=node)
    if found.status.phase is NodePhase.DOWN:
        why = f": {found.status.reason}" if found.status.reason else ""
        raise Unavailable(
            f"the node {node} of {name} is Down{why}",
            hint=f"check its agent; `mandor describe node {node}` shows more",
            node=node,
        )
    await parts.store.check_available()


_WORDS = {"exec": "run commands in", "logs": "read the logs of", "forward": "forward ports of"}


def _refused(caller: Caller, verb: str, what: str) -> Forbidden:
    return Forbidden(
        f"{caller.identity} ({caller.role}) may not {_WORDS[verb]} {what}",
        hint=lacks(verb, "instance"),
        role=caller.role,
    )


async def _task_of(parts: ApiParts, instance: Instance, task: str) -> str:
    release = await parts.store.get(Key("release", instance.meta.namespace, instance.spec.release))
    group = release.spec.groups.get(instance.spec.group) if isinstance(release, Release) else None
    if group is None:
        return task or FLAT
    if task and task not in group.tasks:
        raise Invalid(
            f"{instance.meta.name} has no task {task!r}", hint=did_you_mean(task, group.tasks), parameter="task"
        )
    mains = [name for name, each in group.tasks.items() if each.role == "main"]
    if not task and len(mains) > 1:
        raise Invalid(
            f"{instance.meta.name} has several tasks", hint=f"name one: {', '.join(group.tasks)}", parameter="task"
        )
    return task or mains[0]


# Logs.


async def logs(call: Call[LogsQuery, None]) -> Stream:
    query, parts = call.query, call.parts
    instance, task = await find(parts, call.caller, "logs", call.path["name"], query.namespace, query.task)
    parts.streams.check(call.caller.identity)
    await record(parts, call.caller, "logs", instance, call.address, {"task": task})
    spec = SessionSpec(
        verb="logs",
        instance=instance.meta.name,
        uid=instance.meta.uid,
        task=task,
        node=instance.node,
        server="",
        secret="",
        follow=query.follow,
        tail=query.tail,
        since=query.since,
    )
    as_json = NDJSON in (header(call.headers, b"accept") or "")
    show = _as_json if as_json else _as_text_with_time if query.timestamps else _as_text
    content_type = NDJSON if as_json else "text/plain; charset=utf-8"

    async def run(receive: Receive, send: Send) -> None:
        await LogStream(parts, call.caller, instance, spec, show, content_type.encode(), send).run(receive)

    return Stream(run)


def _as_text(line: dict[str, Any]) -> bytes:
    return str(line.get("text", "")).encode() + b"\n"


def _as_text_with_time(line: dict[str, Any]) -> bytes:
    from datetime import UTC, datetime

    at = datetime.fromtimestamp(float(line.get("at", 0)), UTC).isoformat(timespec="milliseconds")
    return f"{at.replace('+00:00', 'Z')} {line.get('text', '')}\n".encode()


def _as_json(line: dict[str, Any]) -> bytes:
    return msgspec.json.encode(line) + b"\n"


class LogStream:
    """Relays log lines from an agent to a caller; the response starts with the agent's first frame."""

    def __init__(
        self,
        parts: ApiParts,
        caller: Caller,
        instance: Instance,
        spec: SessionSpec,
        show: Any,
        content_type: bytes,
        send: Send,
    ) -> None:
        self._parts, self._caller, self._instance, self._spec = parts, caller, instance, spec
        self._show, self._content_type, self._send = show, content_type, send
        self._begun = False

    async def run(self, receive: Receive) -> None:
        try:
            ended = await self._parts.streams.run(receive, self._relay, self._caller)
        except MandorError as error:
            if not self._begun:
                await send_problem(self._send, error)
                return
            if isinstance(error, ENDS):
                raise  # the log is incomplete: the connection is closed without an end
            log.info("the log of %s ends early: %s", self._instance.meta.name, error)
            ended = True
        if ended or self._begun:
            await self._begin()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _relay(self) -> None:
        async with self._parts.sessions.dial(self._spec, self._caller, self._instance.meta.namespace) as agent:
            while (frame := await receive_frame(agent)) is not None:
                if not frame:
                    continue
                if frame[0] == END:
                    _raise_problem(frame[1:])
                    return
                if frame[0] in {STDOUT, STDERR}:
                    await self._begin()
                    body = b"".join(self._show(line) for line in _lines(frame[1:]))
                    await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            headers = [(b"content-type", self._content_type), (b"x-content-type-options", b"nosniff")]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})


def _lines(data: bytes) -> list[dict[str, Any]]:
    found = []
    for piece in data.splitlines():
        try:
            line = msgspec.json.decode(piece, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError):
            line = {"text": piece.decode(errors="replace")}
        found.append(line)
    return found


def _raise_problem(data: bytes) -> None:
    """Raise the error in the agent's last frame, if it contains one."""
    try:
        last = msgspec.json.decode(data or b"{}", type=dict[str, Any])
    except msgspec.DecodeError:
        return
    kind = BY_CODE.get(str(last.get("code")))
    if kind is not None:
        raise kind(str(last.get("detail", "the agent failed")), hint=last.get("hint"))


# Exec.

PROTOCOL = "mandor.exec"
OFFERED = "mandor.token."
"""Prefix of the subprotocol that carries a token: a browser cannot set headers of a WebSocket."""


def _with_offered_token(scope: Scope) -> Headers:
    offered = [each for each in scope.get("subprotocols", ()) if each.startswith(OFFERED)]
    headers: dict[bytes, bytes] = dict(scope["headers"])
    if offered:
        headers.setdefault(b"authorization", f"Bearer {offered[0].removeprefix(OFFERED)}".encode())
    return headers


async def identify(parts: ApiParts, scope: Scope, headers: Headers) -> Caller:
    """Return the caller that opens a WebSocket; raise `Unauthenticated`, or `TooMany` for too many failures."""
    try:
        caller = await parts.auth.identify(headers, source_of(scope))
    except Unauthenticated:
        parts.request_admission.count_unauthenticated((scope.get("client") or ("",))[0])
        raise
    identified = (scope.get("state") or {}).get("identified")
    if identified is not None:
        identified(caller)
    return caller


async def exec_socket(parts: ApiParts, scope: Scope, receive: Receive, send: Send) -> None:
    websocket = WebSocket(scope, receive, send)
    try:
        caller = await identify(parts, scope, _with_offered_token(scope))
        parts.streams.check(caller.identity)
        query: ExecQuery = _EXEC.read(scope["query_string"])
        if not query.command or len(query.command) > COMMAND_MOST:
            raise Invalid("the command is missing or too long", hint="?command=sh&command=-c&…", parameter="command")
        name = scope["path_params"]["name"]
        instance, task = await find(parts, caller, "exec", name, query.namespace, query.task)
        if instance.phase.over:
            raise Conflict(f"{name} has ended ({instance.phase})", hint="see its output with `mandor logs`")
        await _record_exec(parts, caller, instance, task, query, scope)
    except MandorError as error:
        await deny(websocket, error)
        return
    spec = SessionSpec(
        verb="exec",
        instance=name,
        uid=instance.meta.uid,
        task=task,
        node=instance.node,
        server="",
        secret="",
        command=query.command,
        terminal=query.terminal,
        rows=query.rows,
        columns=query.columns,
        stdin=query.stdin,
    )
    await websocket.accept(PROTOCOL if PROTOCOL in scope.get("subprotocols", ()) else None)
    try:
        async with parts.sessions.dial(spec, caller, query.namespace) as agent:
            await splice(websocket, agent, parts.settings.session_idle_seconds)
    except MandorError as error:
        await end_with(websocket, error)
    await close(websocket)


_EXEC = Query(ExecQuery)


async def _record_exec(
    parts: ApiParts, caller: Caller, instance: Instance, task: str, query: ExecQuery, scope: Scope
) -> None:
    address = (scope.get("client") or ("",))[0]
    await record(parts, caller, "exec", instance, address, {"command": list(query.command), "task": task})


async def record(
    parts: ApiParts, caller: Caller, verb: str, instance: Instance, address: str, facts: Mapping[str, object]
) -> None:
    """Write the audit record of a session before it begins."""
    parts.write_rates.spend(caller.identity, 1)
    facts = {"node": instance.node, **facts}
    changes = [FieldChange(path=path, after=value) for path, value in facts.items()]
    await parts.store.commit(parts.auditor.record(caller, verb, str(instance.key), address, changes))


# Agents.


async def dial_socket(parts: ApiParts, scope: Scope, receive: Receive, send: Send) -> None:
    websocket = WebSocket(scope, receive, send)
    try:
        headers = dict(scope["headers"])
        caller = await identify(parts, scope, headers)
        if caller.role != "node":
            raise Forbidden(f"{caller.identity} is not a node", hint="only the node's agent dials back")
        secret = header(headers, b"x-mandor-session") or ""
        waiting = parts.sessions.check(caller, scope["path_params"]["name"], secret)
    except MandorError as error:
        await deny(websocket, error)
        return
    await websocket.accept()
    try:
        async with parts.revocation.guard(caller):
            await hand_over(waiting, websocket)
    except ENDS as error:
        log.info("the session %s ends: %s: %s", waiting.session.meta.name, caller.identity, error)
        await close(websocket, 1008, error.message[:100])


async def deny(websocket: WebSocket, error: MandorError) -> None:
    """Refuse a WebSocket before its handshake, with an HTTP response that contains a problem."""
    message = await websocket.receive()
    if message["type"] != "websocket.connect":
        return
    if "websocket.http.response" not in websocket.scope.get("extensions", {}):
        await websocket.close(1008, error.message[:100])
        return
    body = encode_problem(error)
    headers = [(b"content-type", CONTENT_TYPE), (b"content-length", str(len(body)).encode())]
    await websocket.send({"type": "websocket.http.response.start", "status": STATUS[error.code], "headers": headers})
    await websocket.send({"type": "websocket.http.response.body", "body": body})


OPERATIONS = [
    Operation(
        method="GET",
        path="/v1/instances/{name}/logs",
        name="logs",
        summary="Stream the output of an instance; `Accept: application/x-ndjson` returns lines of {at, stream, text}",
        tag="instances",
        gate=Gate(verbs=("logs",), kind="instance"),
        handler=logs,
        query=LogsQuery,
        result=str,
        gives="text/plain",
        refuses=("not_found", "conflict", "too_many"),
    ),
]
WEBSOCKETS = {"/v1/instances/{name}/exec": exec_socket, "/v1/sessions/{name}": dial_socket}
