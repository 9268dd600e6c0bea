"""Blocking client of the HTTP API over http.client, with one request per connection."""

import json
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from mandor import __version__
from mandor.client.failover import DOUBT_SECONDS, LIFE_PATH, LIFE_SECONDS, ServerList, pause_before, repeatable
from mandor.client.problem import STALL_SECONDS, STALLED, error_of
from mandor.client.trust import check_private, fetch_authority, has_fingerprint, pinned_context, split_fingerprint
from mandor.errors import Invalid, MandorError, Unavailable

JSON = "application/json"
YAML = "application/yaml"
MERGE_PATCH = "application/merge-patch+json"
NDJSON = "application/x-ndjson"

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 60.0
WATCH_QUIET_SECONDS = 45.0
"""Seconds without data after which a watch is dead; servers send a bookmark every ten seconds."""
ANSWER_BYTES_MOST = 256 << 20
MAYBE_DONE = "check whether it was done before you retry"

Query = Mapping[str, str | int | float | bool | Sequence[str] | None]


@dataclass(frozen=True, slots=True)
class Server:
    """Address of one API server."""

    scheme: str
    host: str
    port: int
    prefix: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"


def parse_server(text: str) -> Server:
    """Parse `http://HOST:PORT`, `https://HOST` or `HOST:PORT`."""
    address = text.strip()
    parts = urlsplit(address if "://" in address else f"http://{address}")
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == -1:
        raise Invalid(f"{text!r} is not the URL of a server", hint="write http://HOST:PORT or https://HOST:PORT")
    standard = 443 if parts.scheme == "https" else 80
    return Server(parts.scheme, parts.hostname, port or standard, parts.path.rstrip("/"))


@dataclass(frozen=True, slots=True)
class Examined:
    """Response of one server, with details of the connection."""

    body: dict[str, Any]
    seconds: float
    """Seconds until the response, including the connection."""
    date: str
    """The server's clock, as an HTTP date; empty if unknown."""
    certificate_until: str
    """End of the certificate's validity in OpenSSL's format; empty without TLS."""
    certificate_from: str = ""
    """Start of the certificate's validity."""


Waits = Callable[[str], AbstractContextManager[None]]
"""Context manager that shows progress while a request is waiting."""


class _Patience(NamedTuple):
    """Timeouts in seconds; None waits without limit."""

    head: float | None
    piece: float | None
    """Timeout between two pieces of the body."""


Asking = Callable[[str, str], AbstractContextManager[Mapping[str, str]]]
"""Called with the method and path of a request; returns a context manager that yields additional headers."""


class _Passed(Exception):
    """Raised when a server had no effect, so that the next one is tried."""

    def __init__(self, why: str, answer: MandorError | None = None) -> None:
        """`answer`: the error that the server responded with."""
        super().__init__(why)
        self.answer = answer


class Client:
    """Client for several servers; unreachable ones are skipped."""

    def __init__(
        self,
        servers: Sequence[str],
        *,
        token: str = "",
        ca_file: str = "",
        connect_seconds: float = CONNECT_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
        waits: Waits | None = None,
        asking: Asking | None = None,
    ) -> None:
        """`asking` wraps each request and provides additional headers."""
        if not servers:
            raise Invalid("no server given", hint="set --server URL")
        self._servers = ServerList(parse_server(each) for each in servers)
        self.token, self._fingerprint = split_fingerprint(token)
        self.ca_file = ca_file
        self._connect_seconds = connect_seconds
        self._answer_seconds = answer_seconds
        self._waits = waits or (lambda _: nullcontext())
        self._asking: Asking = asking or (lambda method, path: nullcontext({}))

    @property
    def servers(self) -> list[Server]:
        """All servers, the one to try first in front."""
        return self._servers.in_order()

    # Objects.

    def get(self, plural: str, name: str, namespace: str | None = None) -> dict[str, Any]:
        return self._object("GET", _path(plural, name), query={"namespace": namespace})

    def list(self, plural: str, query: Query | None = None) -> tuple[list[dict[str, Any]], int]:
        """Return all items, page by page, and the revision from which a watch misses nothing."""
        items: list[dict[str, Any]] = []
        after, revision = None, 0
        while True:
            page = self._object("GET", _path(plural), query={**(query or {}), "limit": 1000, "after": after})
            items += page["items"]
            # The first page's: a watch repeats what changed while the other pages were read.
            revision = revision or int(page["revision"])
            after = page.get("after")
            if not after:
                return items, revision

    def patch(
        self,
        plural: str,
        name: str,
        change: Mapping[str, Any],
        *,
        namespace: str | None = None,
        version: int | None = None,
    ) -> dict[str, Any]:
        query = {"namespace": namespace, "version": version}
        return self._object("PATCH", _path(plural, name), query=query, body=change, content=MERGE_PATCH)

    def delete(self, plural: str, name: str, namespace: str | None = None) -> dict[str, Any]:
        return self._object("DELETE", _path(plural, name), query={"namespace": namespace})

    def post(self, path: str, body: Any, query: Query | None = None) -> dict[str, Any]:
        return self._object("POST", path, query=query, body=body)

    def read(self, path: str, query: Query | None = None) -> dict[str, Any]:
        return self._object("GET", path, query=query)

    def _object(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        found = self.call(method, path, **options)
        if not isinstance(found, dict):
            raise Unavailable(
                f"{path} did not return a JSON object", hint="check that the URL is that of a mandor server"
            )
        return found

    def examine(self, server: Server, path: str) -> Examined:
        """Send a request to this server only."""
        connection, began = self._connection(server, self._connect_seconds), time.monotonic()
        try:
            answer = self._ask_one(connection, server, "GET", path, None, {}, self._whole)
            seconds = time.monotonic() - began
            if answer.status >= 400:
                raise _problem(answer)
            begins, ends = _certificate_times(connection)
            body = _json(_read(answer), answer)
            return Examined(body, seconds, answer.headers.get("Date", ""), ends, begins)
        except _Passed as why:
            raise why.answer or Unavailable(str(why)) from None
        finally:
            connection.close()

    # Requests.

    def call(self, method: str, path: str, *, query: Query | None = None, body: Any = None, content: str = JSON) -> Any:
        """Return the JSON of the response; problems are raised as errors."""
        data = _encoded(body)
        headers = {"Content-Type": content} if data is not None else {}
        failures: list[str] = []
        with self._waits(f"{method} {path}"):
            for _ in self.servers:
                try:
                    with self._answer(method, path, query, data, headers, self._whole) as answer:
                        return _json(_read(answer), answer)
                except _Passed as why:
                    failures.append(f"{self._servers.first}: {why}")
                    self._servers.leave(self._servers.first)
                    if not repeatable(method):
                        raise Unavailable(failures[0], hint=MAYBE_DONE) from why
        raise Unavailable(
            f"no server responded completely: {'; '.join(failures)}",
            hint="try again; if it persists, check the network and the server's log",
        )

    @property
    def _whole(self) -> _Patience:
        """Timeouts for a response that is read to its end."""
        return _Patience(self._answer_seconds, min(self._answer_seconds, STALL_SECONDS))

    @contextmanager
    def stream(
        self, path: str, *, query: Query | None = None, accept: str = NDJSON, quiet_seconds: float | None = None
    ) -> Iterator[HTTPResponse]:
        """Open a streaming response of lines or blocks. `quiet_seconds` is the idle timeout; None waits without
        limit.
        """
        patience = _Patience(quiet_seconds, quiet_seconds)
        with self._answer("GET", path, query, None, {"Accept": accept}, patience) as answer:
            yield answer

    def watch(self, kind: str, *, since: int, query: Query | None = None) -> Iterator[dict[str, Any]]:
        """Yield each change after `since`, and bookmarks, until the connection ends. Raises `Expired` if a new list
        is needed.
        """
        asked = {**(query or {}), "kind": kind, "since": since}
        try:
            with self.stream("/v1/watch", query=asked, quiet_seconds=WATCH_QUIET_SECONDS) as answer:
                for line in answer:
                    change = json.loads(line)
                    if "error" in change:
                        raise error_of(change["error"])
                    yield change
        except (OSError, HTTPException, ValueError):
            return  # The caller watches again from the last revision it saw.

    def websocket(self, path: str, query: Query) -> tuple[str, dict[str, str], ssl.SSLContext | None]:
        """Return URL, headers and TLS context of a WebSocket at the first live server."""
        server = self._living()
        url = str(server).replace("http", "ws", 1) + path + _encoded_query(query)
        context = self._context() if server.scheme == "https" else None
        return url, self._headers(server), context

    def authority(self) -> Path | None:
        """Return the file of the authority that the token names; None: `ca_file` or those of the system are trusted."""
        return self._pinned(self._fingerprint) if self._fingerprint and not self.ca_file else None

    def _living(self) -> Server:
        return next((server for server in self.servers[:-1] if self._trouble(server) is None), self.servers[-1])

    def _trouble(self, server: Server) -> Exception | None:
        """Return the error of a server's health check; None if the server is alive."""
        connection = self._connection(server, LIFE_SECONDS)
        try:
            connection.request("GET", server.prefix + LIFE_PATH)
            connection.getresponse()
        except (OSError, HTTPException) as error:
            return error
        finally:
            connection.close()
        return None

    def _hangs(self, server: Server) -> bool:
        return isinstance(self._trouble(server), TimeoutError)

    @contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        query: Query | None,
        data: bytes | None,
        headers: dict[str, str],
        patience: _Patience,
    ) -> Iterator[HTTPResponse]:
        """Send a request and yield the response; the server that answers is tried first from then on."""
        with self._asking(method, path) as more:
            target = path + _encoded_query(query)
            connection, answer = self._patiently(method, target, data, headers | dict(more), patience)
            try:
                yield answer
            finally:
                answer.close()
                connection.close()

    def _patiently(
        self, method: str, target: str, data: bytes | None, headers: dict[str, str], patience: _Patience
    ) -> tuple[HTTPConnection, HTTPResponse]:
        """Return a successful response; requests rejected by an overloaded server are retried a few times."""
        for tries in count(1):
            connection, answer = self._ask(method, target, data, headers, patience)
            if answer.status < 400:
                return connection, answer
            try:
                error = _problem(answer)
            finally:
                answer.close()
                connection.close()
            pause = pause_before(tries, error)
            if pause is None:
                raise error
            time.sleep(pause)
        raise AssertionError("unreachable")

    def _ask(
        self, method: str, target: str, data: bytes | None, headers: dict[str, str], patience: _Patience
    ) -> tuple[HTTPConnection, HTTPResponse]:
        """Return the first response of a server, with its connection."""
        failures: list[str] = []
        answer: MandorError | None = None
        several = self._servers.several
        for server in self.servers:
            connection = self._connection(server, self._connect_seconds)
            try:
                # A write is sent only once, so prefer a server that is alive.
                if several and not repeatable(method) and self._hangs(server):
                    raise _Passed("the server hangs")
                with self._doubt(connection, server) if several else nullcontext():
                    return connection, self._ask_one(connection, server, method, target, data, headers, patience)
            except _Passed as why:
                connection.close()
                failures.append(f"{server}: {why}")
                answer = answer or why.answer
                self._servers.leave(server)
            except BaseException:
                connection.close()
                raise
        if answer is not None:
            raise answer  # A server's response is more useful than a failed connection to another one.
        raise Unavailable(
            f"no server responds: {'; '.join(failures)}",
            hint="start a local cluster with `mandor dev`, or set --server or MANDOR_SERVER",
        )

    @contextmanager
    def _doubt(self, connection: HTTPConnection, server: Server) -> Iterator[None]:
        """Close the connection if the server hangs, so that reading from it fails."""
        from threading import Event, Lock, Thread

        over, lock = Event(), Lock()

        def look() -> None:
            while not over.wait(DOUBT_SECONDS):
                if not self._hangs(server):
                    continue
                with lock:
                    if not over.is_set() and connection.sock is not None:
                        # Not the method of a TLS socket, which would change its state while another thread reads.
                        with suppress(OSError):
                            socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)
                return

        Thread(target=look, daemon=True, name=f"whether {server} lives").start()
        try:
            yield
        finally:
            with lock:
                over.set()

    def _ask_one(
        self,
        connection: HTTPConnection,
        server: Server,
        method: str,
        target: str,
        data: bytes | None,
        headers: dict[str, str],
        patience: _Patience,
    ) -> HTTPResponse:
        own = self._headers(server)
        try:
            connection.connect()
        except OSError as error:
            raise _Passed(_reason(error)) from error
        try:
            wire: socket.socket = connection.sock  # which the connection forgets if this is its last answer
            wire.settimeout(patience.head)
            connection.request(method, server.prefix + target, data, own | headers)
            answer = connection.getresponse()
            wire.settimeout(patience.piece)
        except (OSError, HTTPException) as error:
            if repeatable(method):
                raise _Passed(_reason(error)) from error
            raise Unavailable(f"{server} did not respond: {_reason(error)}", hint=MAYBE_DONE) from error
        if answer.status == 503 and repeatable(method) and self._servers.several:
            problem = _problem(answer)
            raise _Passed(problem.message, problem)
        return answer

    def _connection(self, server: Server, seconds: float) -> HTTPConnection:
        if server.scheme == "https":
            return HTTPSConnection(server.host, server.port, timeout=seconds, context=self._context())
        return HTTPConnection(server.host, server.port, timeout=seconds)

    def _context(self) -> ssl.SSLContext:
        if (pinned := self.authority()) is not None:
            return pinned_context(pinned)
        try:
            return ssl.create_default_context(cafile=self.ca_file or None)
        except OSError as error:
            raise Invalid(f"cannot use the certificates in {self.ca_file}: {error}") from error

    def _pinned(self, fingerprint: str) -> Path:
        """Return the file with the authority of the token's fingerprint, fetched once and verified."""
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mandor"
        file = folder / f"{fingerprint[:64]}.pem"
        with suppress(OSError):
            if has_fingerprint(file.read_text(), fingerprint):
                return file
        found = fetch_authority([str(each) for each in self.servers if each.scheme == "https"], fingerprint)
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            partial = file.with_suffix(f".{os.getpid()}")
            partial.write_text(found)
            partial.replace(file)
        except OSError as error:
            raise Invalid(
                f"cannot store the cluster's authority in {folder}: {error.strerror}",
                hint="set XDG_CACHE_HOME to another directory, or give the authority with --ca FILE",
            ) from error
        return file

    def _headers(self, server: Server) -> dict[str, str]:
        check_private(str(server), self.token)
        said = {"X-Mandor-Version": __version__}
        return said | {"Authorization": f"Bearer {self.token}"} if self.token else said


def _certificate_times(connection: HTTPConnection) -> tuple[str, str]:
    found = connection.sock.getpeercert() if isinstance(connection.sock, ssl.SSLSocket) else None
    return (str(found["notBefore"]), str(found["notAfter"])) if found else ("", "")


def _problem(answer: HTTPResponse) -> MandorError:
    try:
        found = json.loads(_read(answer))
    except _Passed as why:
        return Unavailable(f"the server responded with {answer.status} {answer.reason}, but {why}")
    except ValueError:
        found = None
    if isinstance(found, dict) and "code" in found:
        return error_of(found)
    return Unavailable(
        f"the server responded with {answer.status} {answer.reason}",
        hint="check that the URL is that of a mandor server",
    )


def _json(raw: bytes, answer: HTTPResponse) -> Any:
    if not raw:
        return None
    try:
        return json.loads(raw)
    except ValueError:
        kind = answer.headers.get("Content-Type", "nothing known")
        raise Unavailable(
            f"the server responded with {kind}, not JSON", hint="check that the URL is that of a mandor server"
        ) from None


def _read(answer: HTTPResponse) -> bytes:
    try:
        raw = answer.read(ANSWER_BYTES_MOST)
    except TimeoutError as error:
        raise _Passed(STALLED) from error
    except (OSError, HTTPException) as error:
        raise _Passed(f"the response was interrupted: {_reason(error)}") from error
    if len(raw) == ANSWER_BYTES_MOST:
        raise Unavailable(f"the response has more than {ANSWER_BYTES_MOST} bytes", hint="request less data")
    return raw


def _encoded(body: Any) -> bytes | None:
    if body is None or isinstance(body, bytes):
        return body
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()


def _encoded_query(query: Query | None) -> str:
    pairs: list[tuple[str, str]] = []
    for key, value in (query or {}).items():
        if value is None or value == "":
            continue
        if isinstance(value, bool):
            pairs.append((key, "true" if value else "false"))
        elif isinstance(value, str | int | float):
            pairs.append((key, str(value)))
        else:
            pairs += [(key, each) for each in value]
    return f"?{urlencode(pairs)}" if pairs else ""


def _path(*words: str) -> str:
    return "/v1/" + "/".join(quote(word, safe="") for word in words)


def _reason(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not trusted ({error.verify_message}); give the authority with --ca FILE"
    if isinstance(error, TimeoutError):
        return "no response in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
