"""Asyncio client of the HTTP API: several servers, typed errors, streams and WebSockets."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from io import BytesIO
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import msgspec

from mandor import __version__
from mandor.client.failover import DOUBT_SECONDS, LIFE_PATH, LIFE_SECONDS, ServerList, pause_before, repeatable
from mandor.client.problem import STALL_SECONDS, STALLED, error_of
from mandor.client.trust import Trust, check_private, fetch_authority, split_fingerprint
from mandor.errors import BY_CODE, Invalid, MandorError, TooMany, Unavailable
from mandor.model.codec import decode_known
from mandor.telemetry.span import headers as trace_headers

T = TypeVar("T")
Query = Mapping[str, str | int | float | bool | None]

JSON = "application/json"
VERSION_HEADER = "x-mandor-version"
SESSION_HEADER = "X-Mandor-Session"
"""Header with the secret of a session, sent by the agent that connects back."""
CONNECT_SECONDS = 5.0
TOTAL_SECONDS = 30.0
SILENT_SECONDS = 35.0
"""Seconds without data after which a watch is dead; servers send a bookmark every ten seconds."""
PIECE_BYTES = 64 * 1024
FRAME_BYTES_MOST = 1024 * 1024
PROBLEM_BYTES_MOST = 1024 * 1024


class Client:
    """Client for several servers; use as `async with`. It stays with the server that answered last, and switches to
    another one if that one fails or hangs; open streams of that server then end.
    """

    def __init__(
        self,
        servers: Sequence[str],
        *,
        token: str = "",
        ca_file: str = "",
        pinned: Path | None = None,
        identity: Path | None = None,
        timeout_seconds: float = TOTAL_SECONDS,
    ) -> None:
        """`pinned` and `identity` are those of `Trust`."""
        if not servers:
            raise Invalid("no server given", hint="set --server URL or MANDOR_SERVER")
        self._servers = ServerList(server.rstrip("/") for server in servers)
        self.token = split_fingerprint(token)[0]
        """Token sent by this client. An agent replaces it with its own credential after joining, or uses its
        certificate instead.
        """
        self.trust = Trust(ca_file, pinned=pinned, identity=identity)
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=CONNECT_SECONDS)
        self._session: aiohttp.ClientSession | None = None
        self._streams: dict[aiohttp.ClientResponse, str] = {}
        """Open streams with their servers."""
        self.ahead_seconds = 0.0
        """Seconds by which this machine's clock is ahead of the last server's, to about a second."""

    @property
    def server(self) -> str:
        """The server that is tried first."""
        return self._servers.first

    async def call(
        self,
        method: str,
        path: str,
        wanted: type[T],
        *,
        query: Query | None = None,
        body: Any = None,
        repeat: bool | None = None,
        token: str | None = None,
    ) -> T:
        """Send a request with a JSON body and decode the response as this type. `token` overrides the client's token
        and certificate.
        """
        data = msgspec.json.encode(body) if body is not None else None
        answer = await self.request(method, path, query=query, body=data, repeat=repeat, token=token)
        return decode_known(answer, wanted)

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        repeat: bool | None = None,
        token: str | None = None,
    ) -> bytes:
        """Return the body of the response; problems are raised as errors.

        `repeat` allows sending the request again if its outcome is unknown (default: only for GET; otherwise
        `Unavailable` is raised). A request rejected by an overloaded server is retried a few times.
        """
        may_repeat = repeatable(method) if repeat is None else repeat
        return await _patiently(lambda: self._request(method, path, query, body, content_type, may_repeat, token))

    async def _request(
        self,
        method: str,
        path: str,
        query: Query | None,
        body: bytes | None,
        content_type: str,
        may_repeat: bool,
        token: str | None,
    ) -> bytes:
        headers = {"content-type": content_type} if body is not None else {}
        last: Exception | None = None
        for server in self._servers.in_order():
            try:
                status, data = await self._heed(
                    server, self._exchange(method, server + path, query, body, headers, token)
                )
                if status < 400:
                    self._servers.prefer(server)
                    return data
                error = problem(status, data)
            except aiohttp.ClientConnectorError as refused:
                last = last or refused  # A server's response is more useful than a failed connection.
                continue
            except (aiohttp.ClientError, TimeoutError, OSError) as broken:
                last = last if isinstance(last, MandorError) else broken
                if not may_repeat:
                    break
                continue
            if not (isinstance(error, Unavailable) and may_repeat):
                self._servers.prefer(server)
                raise error
            last = error
        raise self._unreachable(last)

    async def _exchange(
        self, method: str, url: str, query: Query | None, body: bytes | None, headers: dict[str, str], token: str | None
    ) -> tuple[int, bytes]:
        async with self._open().request(
            method,
            url,
            params=_plain(query),
            # Large bodies go out piece by piece, so that other tasks can run.
            data=BytesIO(body) if body is not None and len(body) > PIECE_BYTES else body,
            headers=self._headers(url, headers, token),
            timeout=self._timeout,
            allow_redirects=False,
            ssl=self.trust.context(bare=token is not None),
        ) as answer:
            data = b"".join([piece async for piece in flowing(answer.content)])
            self.ahead_seconds = _ahead(answer.headers.get("date", ""))
            return answer.status, data

    async def _heed(self, server: str, asking: Awaitable[T]) -> T:
        """Return the response; raises `TimeoutError` if the server hangs and there are other servers. The outcome of
        the request is then unknown.
        """
        if not self._servers.several:
            return await asking
        answer = asyncio.ensure_future(asking)
        try:
            while not (await asyncio.wait({answer}, timeout=DOUBT_SECONDS))[0]:
                if not await self._lives(server) and not answer.done():
                    self._leave(server)
                    raise TimeoutError(f"{server} hangs")
            return await answer
        finally:
            if not answer.done():
                answer.cancel()
                await asyncio.gather(answer, return_exceptions=True)

    async def _lives(self, server: str) -> bool:
        timeout = aiohttp.ClientTimeout(total=LIFE_SECONDS)
        try:
            async with self._open().get(server + LIFE_PATH, timeout=timeout, ssl=self.trust.context()):
                return True
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Query | None = None, accept: str = "", silent_seconds: float | None = SILENT_SECONDS
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """Open a streaming response; leaving the block closes it."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silent_seconds)
        answer = await self._begin(path, query, {"accept": accept} if accept else {}, timeout)
        try:
            yield answer.content
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(error) from error
        finally:
            # Not `release`: that would read the rest of an endless answer.
            answer.close()
            self._streams.pop(answer, None)

    async def _begin(
        self, path: str, query: Query | None, headers: dict[str, str], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        return await _patiently(lambda: self._begin_once(path, query, headers, timeout))

    async def _begin_once(
        self, path: str, query: Query | None, headers: dict[str, str], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        last: Exception | None = None
        for server in self._servers.in_order():
            try:
                async with asyncio.timeout(self._timeout.total):
                    beginning = self._open().get(
                        server + path,
                        params=_plain(query),
                        headers=self._headers(server, headers),
                        timeout=timeout,
                        allow_redirects=False,
                        ssl=self.trust.context(),
                    )
                    answer = await self._heed(server, beginning)
                    if answer.status < 400:
                        self._servers.prefer(server)
                        self._streams[answer] = server
                        return answer
                    error = problem(answer.status, await answer.content.read(PROBLEM_BYTES_MOST))
                    answer.close()
            except (aiohttp.ClientError, TimeoutError, OSError) as broken:
                last = last if isinstance(last, MandorError) else broken
                continue
            if not isinstance(error, Unavailable):
                self._servers.prefer(server)
                raise error
            last = error
        raise self._unreachable(last)

    async def dial(
        self, path: str, *, server: str = "", query: Sequence[tuple[str, str]] = (), headers: Mapping[str, str] = {}
    ) -> "Line":
        """Open a WebSocket; `server` overrides the server and need not be one of the client's."""
        url = (server.rstrip("/") or self.server) + path
        try:
            async with asyncio.timeout(self._timeout.total):
                socket = await self._open().ws_connect(
                    url,
                    params=list(query),
                    headers=self._headers(url, dict(headers)),
                    heartbeat=20,
                    max_msg_size=FRAME_BYTES_MOST,
                    compress=0,
                    ssl=self.trust.context(),
                )
        except aiohttp.WSServerHandshakeError as refused:
            raise _refusal(refused) from refused
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(f"cannot connect to {url}: {str(error) or type(error).__name__}") from error
        return Line(socket)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=25)
            self._session = aiohttp.ClientSession(connector=connector, auto_decompress=True)
        return self._session

    def _headers(self, url: str, more: dict[str, str], token: str | None = None) -> dict[str, str]:
        shown = self.token if token is None else token
        check_private(url, shown or more.get(SESSION_HEADER, ""))
        more = {**more, **trace_headers(), VERSION_HEADER: __version__}
        return {**more, "authorization": f"Bearer {shown}"} if shown else more

    async def authority(self, fingerprint: str) -> str:
        """Return the authority with this fingerprint (PEM), fetched from a server without sending any secret."""
        return await asyncio.to_thread(fetch_authority, self._servers.in_order(), fingerprint)

    def leave_server(self) -> None:
        """Send the next requests to another server, if there are several."""
        self._leave(self._servers.first)

    def _leave(self, server: str) -> None:
        """Stop using a hanging server: try another one first, and close its streams."""
        self._servers.leave(server)
        for answer in [each for each, whose in self._streams.items() if whose == server]:
            answer.close()

    def _unreachable(self, error: Exception | None) -> MandorError:
        if isinstance(error, MandorError):
            return error
        asked = ", ".join(self._servers.in_order())
        return Unavailable(
            f"no response from {asked}: {str(error) or type(error).__name__}",
            hint="check that the server is running",
        )


class Line:
    """A connection for binary frames in both directions; leaving the block closes it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def send(self, frame: bytes) -> None:
        try:
            await self._socket.send_bytes(frame)
        except (aiohttp.ClientError, ConnectionError) as error:
            raise Unavailable(f"the connection is broken: {error}") from error

    async def receive(self) -> bytes | None:
        """Return the next frame; None if the other side has closed the connection."""
        while True:
            message = await self._socket.receive()
            if message.type is aiohttp.WSMsgType.BINARY:
                data: bytes = message.data
                return data
            if message.type is not aiohttp.WSMsgType.TEXT:
                return None

    async def close(self) -> None:
        await self._socket.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def flowing(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield the pieces of a finite response; raises `TimeoutError` if it stalls."""
    while True:
        try:
            async with asyncio.timeout(STALL_SECONDS):
                piece = await content.readany()
        except TimeoutError as error:
            raise TimeoutError(STALLED) from error
        if not piece:
            return
        yield piece


def problem(status: int, data: bytes) -> MandorError:
    """Return the error that a server responded with."""
    try:
        document = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        document = {}
    return error_of(document, status)


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Retry requests that an overloaded server rejects."""
    for tries in count(1):
        try:
            return await ask()
        except TooMany as error:
            pause = pause_before(tries, error)
            if pause is None:
                raise
            await asyncio.sleep(pause)
    raise AssertionError("unreachable")


def _refusal(refused: aiohttp.WSServerHandshakeError) -> MandorError:
    codes = {401: "unauthenticated", 403: "forbidden", 404: "not_found", 409: "conflict", 429: "too_many"}
    kind = BY_CODE[codes.get(refused.status, "unavailable")]
    return kind(f"the server rejected the connection with status {refused.status}")


def _ahead(date: str) -> float:
    try:
        return time.time() - parsedate_to_datetime(date).timestamp()
    except ValueError:
        return 0.0


def _plain(query: Query | None) -> dict[str, str]:
    found = {}
    for name, value in (query or {}).items():
        if value is not None:
            found[name] = ("true" if value else "false") if isinstance(value, bool) else str(value)
    return found
