"""The HTTP API for programs that wait for their answers: thin, over http.client, one request a connection."""

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
"""A watch sends a bookmark every ten seconds; one that is silent for so long is dead."""
ANSWER_BYTES_MOST = 256 << 20
MAYBE_DONE = "look whether it was done before you try again"

Query = Mapping[str, str | int | float | bool | Sequence[str] | None]


@dataclass(frozen=True, slots=True)
class Server:
    """One API server's address."""

    scheme: str
    host: str
    port: int
    prefix: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"


def parse_server(text: str) -> Server:
    """`http://HOST:PORT`, `https://HOST`, or just `HOST:PORT`."""
    address = text.strip()
    parts = urlsplit(address if "://" in address else f"http://{address}")
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == -1:
        raise Invalid(f"{text!r} is not the address of a server", hint="write http://HOST:PORT or https://HOST:PORT")
    standard = 443 if parts.scheme == "https" else 80
    return Server(parts.scheme, parts.hostname, port or standard, parts.path.rstrip("/"))


@dataclass(frozen=True, slots=True)
class Examined:
    """One server's answer, and how it came."""

    body: dict[str, Any]
    seconds: float
    """How long it took, connecting included."""
    date: str
    """Its clock, as HTTP says it; empty: it did not say."""
    certificate_until: str
    """When its certificate ends, as OpenSSL says it; empty: there is none."""
    certificate_from: str = ""
    """When it begins."""


Waits = Callable[[str], AbstractContextManager[None]]
"""Shows people that something takes a while."""


class _Patience(NamedTuple):
    """How long to wait, in seconds; None: for ever."""

    head: float | None
    piece: float | None
    """Of what the answer says, once it has begun."""


Asking = Callable[[str, str], AbstractContextManager[Mapping[str, str]]]
"""Told the method and the path of a request: what else it says, and what it is part of."""


class _Passed(Exception):
    """This server did nothing for us: ask the next one."""


class Client:
    """A cluster, through any of its servers: one that cannot be reached is passed over."""

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
        """`asking`: each request is made within it, with the headers it gives."""
        if not servers:
            raise Invalid("no server is named", hint="give --server URL")
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
        """All items, page by page, and the revision from which a watch misses nothing."""
        items: list[dict[str, Any]] = []
        after, revision = None, 0
        while True:
            page = self._object("GET", _path(plural), query={**(query or {}), "limit": 1000, "after": after})
            items += page["items"]
            # The first page's: what changed while the others were read comes again in a watch.
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
                f"{path} was answered with something else than an object", hint="is this a mandor server?"
            )
        return found

    def examine(self, server: Server, path: str) -> Examined:
        """Ask this one server, whatever the others do."""
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
            raise Unavailable(str(why)) from None
        finally:
            connection.close()

    # Requests.

    def call(self, method: str, path: str, *, query: Query | None = None, body: Any = None, content: str = JSON) -> Any:
        """The answer's JSON; a problem is raised as the error it tells of."""
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
            f"no server answers to the end: {'; '.join(failures)}",
            hint="try again; if it stays so, look at the network and at the server's log",
        )

    @property
    def _whole(self) -> _Patience:
        """With an answer that is read to its end."""
        return _Patience(self._answer_seconds, min(self._answer_seconds, STALL_SECONDS))

    @contextmanager
    def stream(
        self, path: str, *, query: Query | None = None, accept: str = NDJSON, quiet_seconds: float | None = None
    ) -> Iterator[HTTPResponse]:
        """An answer that goes on: read lines or blocks from it. `quiet_seconds`: None waits for ever."""
        patience = _Patience(quiet_seconds, quiet_seconds)
        with self._answer("GET", path, query, None, {"Accept": accept}, patience) as answer:
            yield answer

    def watch(self, kind: str, *, since: int, query: Query | None = None) -> Iterator[dict[str, Any]]:
        """Each change after `since`, bookmarks too; ends when the connection does. `Expired`: list again."""
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
        """Where and how to open a WebSocket, at the first server that answers."""
        server = self._living()
        url = str(server).replace("http", "ws", 1) + path + _encoded_query(query)
        context = self._context() if server.scheme == "https" else None
        return url, self._headers(server), context

    def _living(self) -> Server:
        return next((server for server in self.servers[:-1] if self._trouble(server) is None), self.servers[-1])

    def _trouble(self, server: Server) -> Exception | None:
        """Why it does not say that it lives."""
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
        """Of the server that is the first of all from then on."""
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
        """An answer that is no problem; a server that has too much to do is asked again a few times."""
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
        """The first answer of a server, with its connection."""
        failures: list[str] = []
        several = self._servers.several
        for server in self.servers:
            connection = self._connection(server, self._connect_seconds)
            try:
                # What is written is sent once: better to whom lives.
                if several and not repeatable(method) and self._hangs(server):
                    raise _Passed("it hangs")
                with self._doubt(connection, server) if several else nullcontext():
                    return connection, self._ask_one(connection, server, method, target, data, headers, patience)
            except _Passed as why:
                connection.close()
                failures.append(f"{server}: {why}")
                self._servers.leave(server)
            except BaseException:
                connection.close()
                raise
        raise Unavailable(
            f"no server answers: {'; '.join(failures)}",
            hint="`mandor dev` starts a cluster on this machine; --server or MANDOR_SERVER names another",
        )

    @contextmanager
    def _doubt(self, connection: HTTPConnection, server: Server) -> Iterator[None]:
        """A server that hangs is not waited for: the connection to it ends, and reading from it fails."""
        from threading import Event, Lock, Thread

        over, lock = Event(), Lock()

        def look() -> None:
            while not over.wait(DOUBT_SECONDS):
                if not self._hangs(server):
                    continue
                with lock:
                    if not over.is_set() and connection.sock is not None:
                        # Not the method of a TLS socket: that one would take its state from under who reads.
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
            raise Unavailable(f"{server} did not answer: {_reason(error)}", hint=MAYBE_DONE) from error
        if answer.status == 503 and repeatable(method) and self._servers.several:
            raise _Passed(_problem(answer).message)
        return answer

    def _connection(self, server: Server, seconds: float) -> HTTPConnection:
        if server.scheme == "https":
            return HTTPSConnection(server.host, server.port, timeout=seconds, context=self._context())
        return HTTPConnection(server.host, server.port, timeout=seconds)

    def _context(self) -> ssl.SSLContext:
        if self._fingerprint and not self.ca_file:
            return pinned_context(self._pinned(self._fingerprint))
        try:
            return ssl.create_default_context(cafile=self.ca_file or None)
        except OSError as error:
            raise Invalid(f"cannot use the certificates in {self.ca_file}: {error}") from error

    def _pinned(self, fingerprint: str) -> Path:
        """The file with the authority that the token names: fetched once, then compared with the fingerprint."""
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
                f"the authority of the cluster cannot be kept in {folder}: {error.strerror}",
                hint="XDG_CACHE_HOME names another folder; --ca FILE names the authority",
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
        return Unavailable(f"the server answered {answer.status} {answer.reason}, but {why}")
    except ValueError:
        found = None
    if isinstance(found, dict) and "code" in found:
        return error_of(found)
    return Unavailable(f"the server answered {answer.status} {answer.reason}", hint="is this a mandor server?")


def _json(raw: bytes, answer: HTTPResponse) -> Any:
    if not raw:
        return None
    try:
        return json.loads(raw)
    except ValueError:
        kind = answer.headers.get("Content-Type", "nothing known")
        raise Unavailable(f"the server answered with {kind}, not JSON", hint="is this a mandor server?") from None


def _read(answer: HTTPResponse) -> bytes:
    try:
        raw = answer.read(ANSWER_BYTES_MOST)
    except TimeoutError as error:
        raise _Passed(STALLED) from error
    except (OSError, HTTPException) as error:
        raise _Passed(f"its answer broke off: {_reason(error)}") from error
    if len(raw) == ANSWER_BYTES_MOST:
        raise Unavailable(f"the answer has more than {ANSWER_BYTES_MOST} bytes", hint="ask for less")
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
        return f"its certificate is not trusted ({error.verify_message}); --ca FILE names the authority"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
