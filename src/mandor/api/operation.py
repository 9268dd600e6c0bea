"""Operation: one method of one path with its input and output types; the source of routes and OpenAPI document."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from starlette.types import Receive, Scope, Send

from mandor.api.caller import Caller
from mandor.api.gate import READERS, WRITERS, Gate
from mandor.api.http.fair_queue import Lane
from mandor.api.http.request import Headers

if TYPE_CHECKING:
    from mandor.api.parts import ApiParts

Q = TypeVar("Q")
B = TypeVar("B")

JSON = "application/json"
NDJSON = "application/x-ndjson"
YAML = "application/yaml"
MERGE_PATCH = "application/merge-patch+json"
Method = Literal["GET", "PUT", "POST", "PATCH", "DELETE"]


@dataclass(frozen=True, slots=True)
class Call(Generic[Q, B]):
    """One decoded request: `query` and `body` have the types that the operation declares."""

    parts: "ApiParts"
    caller: Caller
    path: Mapping[str, str]
    query: Q
    body: B
    content_type: str
    headers: Headers
    address: str
    """IP address of the caller, for the audit record."""
    secure: bool = False
    """Whether the request came over TLS."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A streaming response; `run` sends all of it, including the status and headers."""

    run: Callable[[Receive, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Text:
    """A response that is not JSON, or JSON that is encoded already."""

    body: bytes
    content_type: str = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    method: Method
    path: str
    name: str
    """The operationId of the OpenAPI document."""
    summary: str
    tag: str
    handler: Callable[[Call[Any, Any]], Coroutine[Any, Any, Any]]
    query: type | None = None
    """A struct with one field per query parameter."""
    body: Any = None
    """The type of the JSON body; `bytes`: the body is not decoded."""
    shape: Any = None
    """The type in the OpenAPI document, if the handler accepts more than that."""
    body_optional: bool = False
    takes: tuple[str, ...] = (JSON,)
    """The accepted content types of the body."""
    result: Any = None
    gives: str = JSON
    status: int = 200
    open: bool = False
    """Whether the operation needs no token."""
    gate: Gate | None = None
    """The callers that may use the operation; None: `READERS` for GET, `WRITERS` for every other method."""
    enrols: bool = False
    """Whether a node that has a certificate may authenticate with its secret, to get its next certificate."""
    refuses: tuple[str, ...] = ()
    """Error codes in addition to those that every operation may return."""
    path_notes: Mapping[str, str] = field(default_factory=dict)
    lane: Lane | None = None
    """The lane of the request; None: depends on the caller."""
    reports: bool = False
    """Whether agents use the operation to report status, which has a lane of its own."""
    prompt: bool = False
    """Whether the handler rarely waits: it is tried without a task first, and called again in one if it would wait."""
    cost: int = 1
    """Number of ordinary requests that this one counts for in its lane."""

    def check_caller(self, caller: Caller) -> None:
        """Raise `Forbidden` if the caller may not use this operation, whatever the request contains."""
        gate = self.gate or (READERS if self.method == "GET" else WRITERS)
        gate.check(caller, f"use {self.method} {self.path}")

    def lane_for(self, caller: Caller) -> Lane:
        """Return the lane of a request; nodes have lanes of their own, also for operations that are bulk for people."""
        if self.lane is Lane.HEARTBEAT:
            # Other callers are refused later, and must not get ahead of the queue.
            trusted = self.open or caller.role == "node" or not caller.token
            return Lane.HEARTBEAT if trusted else Lane.PEOPLE
        if caller.role in {"node", "join"}:
            return Lane.REPORT if self.reports else Lane.AGENT
        return self.lane or Lane.PEOPLE


Websocket = Callable[["ApiParts", Scope, Receive, Send], Awaitable[None]]
