"""Sends the HTTP questions of plugins before a scheduling cycle."""

import asyncio
import ssl
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from mandor.placement.framework.points import HttpCall, HttpReply, Tls

ANSWER_MOST = 16 * 1024 * 1024
AT_ONCE = 32


class HttpInquiry:
    """One session for all questions; every failure becomes a `HttpReply` with a problem, never an exception."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._room = asyncio.Semaphore(AT_ONCE)
        self._contexts: dict[Tls, tuple[object, ssl.SSLContext]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def __call__(self, question: HttpCall) -> HttpReply:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        timeout = aiohttp.ClientTimeout(total=question.seconds)
        try:
            context = self._context(question) if question.url.startswith("https://") else True
            async with (
                self._room,
                self._session.post(
                    question.url,
                    data=msgspec.json.encode(question.body),
                    headers={"Content-Type": "application/json"},
                    timeout=timeout,
                    allow_redirects=False,
                    ssl=context,
                    server_hostname=question.tls.server_name or None,
                ) as response,
            ):
                if response.status != 200:
                    return HttpReply(problem=f"{question.url} answered {response.status}")
                return await _read(question, response)
        except TimeoutError:
            return HttpReply(problem=f"{question.url} did not answer within {question.seconds:g}s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return HttpReply(problem=f"{question.url}: {str(error) or type(error).__name__}")

    def _context(self, question: HttpCall) -> ssl.SSLContext:
        """Return the TLS context, created again when a file has changed: certificates are renewed while servers run."""
        tls = question.tls
        seen = tuple(Path(file).stat().st_mtime_ns for file in (tls.ca_file, tls.cert_file, tls.key_file) if file)
        known = self._contexts.get(tls)
        if known is not None and known[0] == seen:
            return known[1]
        made = ssl.create_default_context(cafile=tls.ca_file or None)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        if tls.cert_file:
            made.load_cert_chain(tls.cert_file, tls.key_file)
        self._contexts[tls] = (seen, made)
        return made


async def _read(question: HttpCall, response: aiohttp.ClientResponse) -> HttpReply:
    body = bytearray()
    async for part in response.content.iter_chunked(65536):
        body += part
        if len(body) > ANSWER_MOST:
            return HttpReply(problem=f"{question.url} answered more than {ANSWER_MOST} bytes")
    try:
        answer: Any = msgspec.json.decode(bytes(body))
    except msgspec.DecodeError as error:
        return HttpReply(problem=f"{question.url} did not answer in JSON: {error}")
    return HttpReply(answer)
