"""Request and Reply: one exchange as an endpoint sees it, whichever way it came in."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from starlette.types import Scope, Send

from mandor.api.caller import Caller
from mandor.api.peer import Peer
from mandor.api.problems import STATUS, encode_problem, headers_for
from mandor.errors import MandorError

Headers = Mapping[bytes, bytes]
"""By lower-case name; the last one counts where it stood twice, as proxies append."""
Pairs = tuple[tuple[bytes, bytes], ...]
ALWAYS: Pairs = ((b"x-content-type-options", b"nosniff"),)
"""Behind the length of every body."""


def header(headers: Headers, name: bytes) -> str | None:
    found = headers.get(name)
    return None if found is None else found.decode("latin-1")


PEER = "mandor.peer"
"""Where the state of an ASGI scope has the client certificate."""


class Source(NamedTuple):
    """How a request came in."""

    scheme: str = "https"
    address: str = ""
    """Of the machine that sent it; empty: not known."""
    peer: Peer | None = None
    """The client certificate of its connection."""

    @property
    def secure(self) -> bool:
        return self.scheme in {"https", "wss"}


def source_of(scope: Scope) -> Source:
    address = (scope.get("client") or ("",))[0]
    return Source(scope.get("scheme", "http"), address, scope.get("state", {}).get(PEER))


@dataclass(slots=True)
class Request:
    method: str
    path: str
    names: Mapping[str, str]
    """What stands in the path where its pattern has names."""
    query: bytes
    headers: Headers
    address: str
    """Where the caller is."""
    scheme: str = "http"
    peer: Peer | None = None
    identified: Callable[[Caller], None] | None = None
    """Called when the request has shown who sends it."""


@dataclass(slots=True)
class Reply:
    status: int
    headers: Pairs
    """Those before the length of the body."""
    body: bytes


def problem_reply(error: MandorError, *, status: int | None = None, more: Iterable[tuple[bytes, bytes]] = ()) -> Reply:
    headers = (*headers_for(error), *more)
    return Reply(status or STATUS[error.code], headers, encode_problem(error, status=status))


async def send_reply(send: Send, reply: Reply) -> None:
    length = (b"content-length", str(len(reply.body)).encode())
    await send({"type": "http.response.start", "status": reply.status, "headers": [*reply.headers, length, *ALWAYS]})
    await send({"type": "http.response.body", "body": reply.body})


async def send_problem(send: Send, error: MandorError) -> None:
    await send_reply(send, problem_reply(error))
