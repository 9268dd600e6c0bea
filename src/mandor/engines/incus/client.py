"""Client of Incus' REST API, over its socket or HTTPS: requests, long operations, web sockets."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, TypedDict, Unpack
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec
from msgspec import Struct

from mandor.engines.containers import refused as containers
from mandor.errors import EngineDown, Invalid
from mandor.lib.egress import Egress

ANSWER_SECONDS = 60.0
LONG_SECONDS = 3600.0
"""Seconds for a long operation, such as an image of many gigabytes over a slow line."""
CONNECTIONS_MOST = 128
MISSING, TAKEN = 404, 409


class Refused(containers.Refused):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def unknown(self) -> bool:
        return self.status == MISSING or "not found" in self.message.lower()


class Server(Struct, frozen=True):
    """Address of Incus and the credentials for it."""

    url: str
    """`unix:///path/of/the/socket` or `https://HOST:PORT`."""
    certificate: Path | None = None
    """Client certificate that Incus trusts; for HTTPS."""
    key: Path | None = None
    server_certificate: Path | None = None
    """Pinned certificate of the server."""
    project: str = "default"

    @property
    def socket(self) -> str:
        return self.url.removeprefix("unix://") if self.url.startswith("unix://") else ""

    @property
    def local(self) -> bool:
        """Incus runs on this machine, so that both use the same folders."""
        return bool(self.socket) or urlsplit(self.url).hostname in {"127.0.0.1", "::1", "localhost"}


class Parts(TypedDict, total=False):
    """Parts of a request besides its path and JSON body."""

    query: Mapping[str, Any]
    data: bytes | AsyncIterator[bytes]
    """Body in pieces, sent without a time limit."""
    headers: Mapping[str, str]


class IncusClient:
    def __init__(self, server: Server, *, answer_seconds: float = ANSWER_SECONDS) -> None:
        self.server = server
        self._answer_seconds = answer_seconds
        self._session: aiohttp.ClientSession | None = None
        self.egress: Egress | None = None
        """Egress policy for an address from an API object; None: an administrator configured the address."""

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def get(self, path: str, **query: Any) -> Any:
        return await self.call("GET", path, query=query)

    async def call(self, method: str, path: str, body: Any = None, **parts: Unpack[Parts]) -> Any:
        """Return the answer; for a long operation, the operation (wait for it with `finish`)."""
        content = await self.fetch(method, path, body, **parts)
        answer = msgspec.json.decode(content) if content else {}
        if answer.get("type") == "error":
            raise Refused(int(answer.get("error_code", 0)), str(answer.get("error", "")))
        found = answer.get("metadata")
        return {**(found or {}), "operation": answer["operation"]} if answer.get("type") == "async" else found

    async def fetch(self, method: str, path: str, body: Any = None, **parts: Unpack[Parts]) -> bytes:
        """Return the raw answer, such as a file."""
        data, headers = parts.get("data"), dict(parts.get("headers", {}))
        if body is not None:
            data, headers = msgspec.json.encode(body), {"Content-Type": "application/json"} | headers
        wanted = {"project": self.server.project} | {name: str(value) for name, value in parts.get("query", {}).items()}
        quick = data is None or isinstance(data, bytes)
        limit = aiohttp.ClientTimeout(total=self._answer_seconds if quick else LONG_SECONDS)
        try:
            async with self._open().request(
                method, self._url(path), params=wanted, data=data, headers=headers, timeout=limit
            ) as answer:
                content = await answer.read()
        except aiohttp.ClientConnectorCertificateError as error:
            raise EngineDown(
                f"the certificate of incus at {self.server.url} is not trusted ({error.certificate_error}); name it as "
                "`server_certificate`"
            ) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EngineDown(
                f"incus at {self.server.url} does not answer: {str(error) or type(error).__name__}"
            ) from error
        if answer.status >= MISSING - 4 and not content.startswith(b'{"'):
            raise Refused(answer.status, content.decode(errors="replace").strip())
        if answer.status >= MISSING - 4:
            said = msgspec.json.decode(content)
            raise Refused(int(said.get("error_code") or answer.status), str(said.get("error", "")))
        return content

    async def finish(self, operation: Mapping[str, Any]) -> Any:
        """Wait for the end of a long operation; `Refused` if it failed."""
        path = str(operation["operation"])
        deadline = asyncio.get_running_loop().time() + LONG_SECONDS
        while True:
            found = await self._wait(path)
            if found is not None and found["status_code"] >= 200:  # 1xx: in progress
                break
            if asyncio.get_running_loop().time() > deadline:
                raise EngineDown(f"incus did not finish {path} within {LONG_SECONDS:.0f} s")
        if found["status_code"] != 200:
            raise Refused(int(found["status_code"]), str(found.get("err") or found.get("status")))
        return found.get("metadata") or {}

    async def _wait(self, path: str) -> Any | None:
        """Wait for an operation; None: it has not ended yet."""
        half = max(1, int(self._answer_seconds / 2))
        try:
            return await self.call("GET", f"{path}/wait", query={"timeout": half})
        except Refused as error:
            if "deadline exceeded" in error.message:
                return None
            raise

    async def run(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """Send a request and wait for its operation."""
        answer = await self.call(method, path, body, query=query)
        return await self.finish(answer) if isinstance(answer, dict) and "operation" in answer else answer

    async def connect(self, path: str, *, pongs: bool = True, **query: Any) -> aiohttp.ClientWebSocketResponse:
        wanted = {"project": self.server.project, **query}
        try:
            return await self._open().ws_connect(self._url(path), params=wanted, max_msg_size=0, autoping=pongs)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EngineDown(f"incus at {self.server.url} refused a web socket: {error}") from error

    def _url(self, path: str) -> str:
        return ("http://incus" if self.server.socket else self.server.url.rstrip("/")) + path

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=self._connector())
        return self._session

    def _connector(self) -> aiohttp.BaseConnector:
        if self.server.socket:
            if not Path(self.server.socket).exists():
                raise EngineDown(f"there is no socket of incus at {self.server.socket}", hint="is incusd running?")
            return aiohttp.UnixConnector(self.server.socket, limit=CONNECTIONS_MOST)
        allowed = self.egress.socket_factory(self.server.url) if self.egress is not None else None
        return aiohttp.TCPConnector(limit=CONNECTIONS_MOST, ssl=tls_of(self.server), socket_factory=allowed)


def tls_of(server: Server) -> ssl.SSLContext:
    """Return the TLS context: the certificate of Incus is pinned, or signed by an authority that the machine trusts."""
    context = ssl.create_default_context()
    try:
        if server.server_certificate is not None:
            context = ssl.create_default_context(cafile=str(server.server_certificate))
            context.check_hostname = (
                False  # The certificate names the machine it was made on; the pin replaces that check.
            )
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if server.certificate is not None:
            context.load_cert_chain(server.certificate, server.key)
    except (OSError, ssl.SSLError) as error:
        raise Invalid(f"the certificates for incus at {server.url} cannot be read: {error}") from error
    return context


def path_of(name: str, *rest: str) -> str:
    return "/".join(["/1.0/instances", quote(name, safe=""), *rest])
