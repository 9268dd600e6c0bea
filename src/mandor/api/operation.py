"""Operation: one method of one path, with the types it takes and gives; routes and OpenAPI both come from these."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from starlette.types import Receive, Scope, Send

from mandor.api.caller import Caller
from mandor.api.gate import READERS, WRITERS, Gate
from mandor.api.request import Headers
from mandor.api.turn_plan import Lane

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
    """One request, decoded and checked: `query` and `body` have the types the operation declared."""

    parts: "ApiParts"
    caller: Caller
    path: Mapping[str, str]
    query: Q
    body: B
    content_type: str
    headers: Headers
    address: str
    """Where the caller is, for the audit."""
    secure: bool = False
    """It came over TLS."""


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer that is sent piece by piece; `run` sends everything, the start included."""

    run: Callable[[Receive, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Text:
    """An answer that is not JSON, or JSON that is ready."""

    body: bytes
    content_type: str = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    method: Method
    path: str
    name: str
    """Its operationId."""
    summary: str
    tag: str
    handler: Callable[[Call[Any, Any]], Coroutine[Any, Any, Any]]
    query: type | None = None
    """A struct: one field a parameter."""
    body: Any = None
    """The type of the JSON body; `bytes`: taken as it is."""
    shape: Any = None
    """The type the document shows where the handler itself takes a looser one."""
    body_optional: bool = False
    takes: tuple[str, ...] = (JSON,)
    """The content types of the body."""
    result: Any = None
    gives: str = JSON
    status: int = 200
    open: bool = False
    """Needs no token."""
    gate: Gate | None = None
    """The callers that may use it at all; None: `READERS` for GET, `WRITERS` for every other method."""
    enrols: bool = False
    """A node that has a certificate may call it with its secret, too: it gets the next certificate here."""
    refuses: tuple[str, ...] = ()
    """Error codes beside those that every operation may answer."""
    path_notes: Mapping[str, str] = field(default_factory=dict)
    lane: Lane | None = None
    """How important it is under load; None: as who asks."""
    reports: bool = False
    """Agents use it to report: that trails behind their orders."""
    prompt: bool = False
    """Its handler waits for nothing: it is answered without a task where that is so, and may be begun twice."""
    cost: int = 1
    """So many ordinary requests it counts for among those of the same lane."""

    def check_caller(self, caller: Caller) -> None:
        """Raise `Forbidden` if the caller may not use this operation, whatever the request contains."""
        gate = self.gate or (READERS if self.method == "GET" else WRITERS)
        gate.check(caller, f"use {self.method} {self.path}")


Websocket = Callable[["ApiParts", Scope, Receive, Send], Awaitable[None]]
