"""Request and Reply: one HTTP exchange as an endpoint sees it, independent of the protocol class that received it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from starlette.types import Scope, Send

from mandor.api.caller import Caller
from mandor.api.http.client_certificate import ClientCertificate
from mandor.api.http.problems import STATUS, encode_problem, headers_for
from mandor.errors import MandorError

Headers = Mapping[bytes, bytes]
"""Header values by lower-case name; of a repeated header the last value, because proxies append theirs."""
Pairs = tuple[tuple[bytes, bytes], ...]
ALWAYS: Pairs = ((b"x-content-type-options", b"nosniff"),)
"""Headers that follow the content length in every response."""


def header(headers: Headers, name: bytes) -> str | None:
    found = headers.get(name)
    return None if found is None else found.decode("latin-1")


CLIENT_CERTIFICATE = "mandor.client_certificate"
"""Key of the client certificate in the state of an ASGI scope."""


class Source(NamedTuple):
    """The origin of a request: scheme, client address and client certificate."""

    scheme: str = "https"
    address: str = ""
    """IP address of the client; empty: unknown."""
    certificate: ClientCertificate | None = None
    """Client certificate of the connection."""

    @property
    def secure(self) -> bool:
        return self.scheme in {"https", "wss"}


def source_of(scope: Scope) -> Source:
    address = (scope.get("client") or ("",))[0]
    return Source(scope.get("scheme", "http"), address, scope.get("state", {}).get(CLIENT_CERTIFICATE))


@dataclass(slots=True)
class Request:
    method: str
    path: str
    names: Mapping[str, str]
    """Path parameters: the segments that matched the names of the path's pattern."""
    query: bytes
    headers: Headers
    address: str
    """IP address of the caller."""
    scheme: str = "http"
    certificate: ClientCertificate | None = None
    """Client certificate of the connection."""
    identified: Callable[[Caller], None] | None = None
    """Called when the request has been authenticated."""


@dataclass(slots=True)
class Reply:
    status: int
    headers: Pairs
    """Headers before the content length."""
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
