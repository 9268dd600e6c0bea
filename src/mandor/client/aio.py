"""The HTTP API from asyncio: several servers, typed errors, streams and dial-back."""

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
"""The secret of a session, from the agent that dials back."""
CONNECT_SECONDS = 5.0
TOTAL_SECONDS = 30.0
SILENT_SECONDS = 35.0
"""A watch has a bookmark every ten seconds, so one that is silent for so long is dead."""
PIECE_BYTES = 64 * 1024
FRAME_BYTES_MOST = 1024 * 1024
PROBLEM_BYTES_MOST = 1024 * 1024


class Client:
    """Use as `async with`. It stays with the server that answered last and moves on when that one does not, or hangs:
    then its streams end, too."""

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
        """`pinned`, `identity`: as `Trust` takes them."""
        if not servers:
            raise Invalid("no server to talk to", hint="--server URL, or MANDOR_SERVER")
        self._servers = ServerList(server.rstrip("/") for server in servers)
        self.token = split_fingerprint(token)[0]
        """What this client shows; an agent that has joined changes it to its own credential, or shows its certificate
        instead."""
        self.trust = Trust(ca_file, pinned=pinned, identity=identity)
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=CONNECT_SECONDS)
        self._session: aiohttp.ClientSession | None = None
        self._streams: dict[aiohttp.ClientResponse, str] = {}
        """Answers that go on, and whose they are."""
        self.ahead_seconds = 0.0
        """How far this machine's clock is ahead of the server's that answered last, to about a second."""

    @property
    def server(self) -> str:
        """The server that is asked first."""
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
        """Ask for a value of this type; the body is sent as JSON. `token`: shown instead of what is shown else, and
        without a certificate."""
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
        """The body of the answer; problems are raised as the errors they were.

        `repeat`: whether the request may be sent again when it is not known what became of it
        (absent: reading may, writing may not; then the error is `Unavailable`). One that a busy server turned away
        is sent again a few times.
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
                last = last or refused  # What a server answered says more than that another is away.
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
            # Large bodies go out piece by piece, so that others get their turn.
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
        """What it answers; `TimeoutError` when it does not, and does not live either, where there are others to ask.
        Whether it did what it was asked to is not known then."""
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
        """An answer that goes on; leaving the block ends it."""
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
                last = broken
                continue
            if not isinstance(error, Unavailable):
                self._servers.prefer(server)
                raise error
            last = error
        raise self._unreachable(last)

    async def dial(
        self, path: str, *, server: str = "", query: Sequence[tuple[str, str]] = (), headers: Mapping[str, str] = {}
    ) -> "Line":
        """A WebSocket; `server`: this very one, which need not be among ours."""
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
            raise Unavailable(f"{url} cannot be dialled: {str(error) or type(error).__name__}") from error
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
        """The authority with this fingerprint (PEM), as a server tells it; nothing secret is sent."""
        return await asyncio.to_thread(fetch_authority, self._servers.in_order(), fingerprint)

    def _leave(self, server: str) -> None:
        """It hangs: whoever comes next asks another one first, and whoever listens to it does not wait any longer."""
        self._servers.leave(server)
        for answer in [each for each, whose in self._streams.items() if whose == server]:
            answer.close()

    def _unreachable(self, error: Exception | None) -> MandorError:
        if isinstance(error, MandorError):
            return error
        asked = ", ".join(self._servers.in_order())
        return Unavailable(
            f"no answer from {asked}: {str(error) or type(error).__name__}",
            hint="is the server running there?",
        )


class Line:
    """Binary frames both ways; leaving the block closes it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def send(self, frame: bytes) -> None:
        try:
            await self._socket.send_bytes(frame)
        except (aiohttp.ClientError, ConnectionError) as error:
            raise Unavailable(f"the line is broken: {error}") from error

    async def receive(self) -> bytes | None:
        """None: the other side has closed it."""
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
    """The pieces of an answer that has an end; `TimeoutError`: it does not go on."""
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
    """The error that a server answered."""
    try:
        told = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        told = {}
    return error_of(told, status)


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """What a server that has too much to do turns away is asked again a few times."""
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
    return kind(f"the server refused the line with {refused.status}")


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
