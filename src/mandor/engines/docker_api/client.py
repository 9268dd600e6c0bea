"""Client of Docker's Engine API over a unix socket: requests, streams and errors."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from mandor.engines.containers import refused as containers
from mandor.engines.docker_api.hijack import Hijacked, hijack
from mandor.errors import EngineDown

ANSWER_SECONDS = 60.0
"""Seconds after which an ordinary request counts as not answered."""
START_SECONDS = 300.0
"""Seconds for requests that create or start a container, which are slow on a busy disk."""
CONNECTIONS_MOST = 256
ASKED_AGAIN = 5
"""Attempts of a request whose answer was outdated by an event."""
NEWEST = (1, 47)
"""Latest API version of this client; with an older engine its version is used."""

GONE, NOT_NOW = 404, 409
_ENDED = re.compile(r"no such process|/proc/\d+/\S*: no such file")


class Refused(containers.Refused):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def unknown(self) -> bool:
        return self.status == GONE

    @property
    def passing(self) -> bool:
        return self.status == NOT_NOW or super().passing

    @property
    def name_taken(self) -> bool:
        """The name is in use. Podman does not report a conflict while the other container is being created."""
        return self.status == NOT_NOW or "name is already in use" in self.message

    @property
    def overtaken(self) -> bool:
        """Podman inspected a process that ended at that moment: the next attempt succeeds."""
        return _ENDED.search(self.message) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    method: str
    path: str
    query: Mapping[str, Any] | None = None
    data: Any = None
    headers: Mapping[str, str] | None = None
    seconds: float | None = None
    """None: no limit."""


class ApiClient:
    """Client of one engine; connections are opened on demand and reused."""

    def __init__(self, name: str, socket: Path, *, cure: str, answer_seconds: float = ANSWER_SECONDS) -> None:
        """`cure`: the command that starts the engine, for messages."""
        self.name, self.socket = name, socket
        self._cure = cure
        self.version: tuple[int, ...] = ()
        """Version of the API; empty while the engine does not answer."""
        self.answered = False
        """The engine has answered at least once."""
        self._answer_seconds = answer_seconds
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, path: str, **query: Any) -> Any:
        for last in (*(False,) * ASKED_AGAIN, True):
            try:
                return await self.call("GET", path, query=query)
            except Refused as error:
                if last or not error.overtaken:
                    raise
            await asyncio.sleep(0.1)
        raise AssertionError("the last try raises")

    async def post(self, path: str, body: Any = None, *, seconds: float | None = None, **query: Any) -> Any:
        return await self.call("POST", path, body=body, query=query, seconds=seconds)

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> Any:
        """Return the answer, decoded if it is JSON; `Refused`: an error status."""
        limit = seconds or self._answer_seconds
        if body is not None:
            data = msgspec.json.encode(body)
            headers = {"Content-Type": "application/json", **(headers or {})}
        request = _Request(method=method, path=path, query=query, data=data, headers=headers, seconds=limit)
        async with self._request(request) as answer:
            content = await answer.read()
            # Podman does not always set the content type of JSON.
            return msgspec.json.decode(content) if content.startswith((b"{", b"[")) else content

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        data: Any = None,
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """Open an answer that is read in pieces, without a time limit."""
        async with self._request(_Request(method=method, path=path, query=query, data=data, headers=headers)) as answer:
            yield answer.content

    async def hijack(self, path: str, body: Any) -> Hijacked:
        """Open a separate connection with bytes in both directions."""
        await self.negotiate()
        try:
            async with asyncio.timeout(self._answer_seconds):
                status, message, connection = await hijack(self.socket, self._path(path), msgspec.json.encode(body))
        except (OSError, TimeoutError, EOFError) as error:
            raise self._down(error) from error
        if connection is None:
            raise Refused(status, _message(message))
        return connection

    async def negotiate(self) -> tuple[int, ...]:
        """Choose the newest API version that both sides support."""
        if not self.version:
            async with self._open(_Request(method="GET", path="/_ping", seconds=self._answer_seconds)) as answer:
                theirs = tuple(int(part) for part in re.findall(r"\d+", answer.headers.get("Api-Version", "1.41")))
                self.version, self.answered = min(theirs[:2], NEWEST), True
        return self.version

    @asynccontextmanager
    async def _request(self, request: _Request) -> AsyncIterator[aiohttp.ClientResponse]:
        await self.negotiate()
        async with self._open(replace(request, path=self._path(request.path))) as answer:
            if answer.status >= 400:
                raise Refused(answer.status, _message(await answer.read()))
            yield answer

    @asynccontextmanager
    async def _open(self, request: _Request) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            connector = aiohttp.UnixConnector(str(self.socket), limit=CONNECTIONS_MOST)
            self._session = aiohttp.ClientSession(connector=connector)
        try:
            async with self._session.request(
                request.method,
                f"http://engine{request.path}",
                params=_plain(request.query or {}),
                data=request.data,
                headers=request.headers,
                timeout=aiohttp.ClientTimeout(total=request.seconds, sock_connect=self._answer_seconds),
            ) as answer:
                yield answer
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._down(error) from error

    def _path(self, path: str) -> str:
        return f"/v{'.'.join(str(part) for part in self.version)}{path}"

    def _down(self, error: BaseException) -> EngineDown:
        self.version = ()  # The engine may have another version after its restart.
        if isinstance(error, TimeoutError):
            return EngineDown(f"{self.name} does not answer at {self.socket}")
        if not self.socket.exists():
            return EngineDown(
                f"{self.name} does not run: there is no socket {self.socket}; start it with `{self._cure}`"
            )
        if isinstance(error, PermissionError) or isinstance(getattr(error, "os_error", None), PermissionError):
            hint = f"run the agent as root, or as a user with access to {self.socket}"
            return EngineDown(f"this user has no access to the socket of {self.name} ({self.socket})", hint=hint)
        return EngineDown(
            f"the connection to {self.name} at {self.socket} failed: {str(error) or type(error).__name__}"
        )


def filters(**wanted: list[str]) -> str:
    return msgspec.json.encode(wanted).decode()


def _plain(query: Mapping[str, Any]) -> dict[str, str]:
    return {key: _word(value) for key, value in query.items() if value is not None}


def _word(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _message(content: bytes) -> str:
    try:
        found = msgspec.json.decode(content)
        return str(found.get("message") or found.get("cause") or found)
    except (msgspec.DecodeError, AttributeError):
        return content.decode(errors="replace").strip() or "no reason given"
