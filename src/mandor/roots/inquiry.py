"""Asks others over HTTP what a plugin wants to know before a cycle."""

import asyncio
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from mandor.placement.framework.points import Question, Reply

ANSWER_MOST = 16 * 1024 * 1024
AT_ONCE = 32


class HttpInquiry:
    """One session for all questions; whatever goes wrong is a `Reply` with a problem, never an exception."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._room = asyncio.Semaphore(AT_ONCE)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def __call__(self, question: Question) -> Reply:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        timeout = aiohttp.ClientTimeout(total=question.seconds)
        try:
            async with (
                self._room,
                self._session.post(
                    question.url,
                    data=msgspec.json.encode(question.body),
                    headers={"Content-Type": "application/json"},
                    timeout=timeout,
                    allow_redirects=False,
                ) as response,
            ):
                if response.status != 200:
                    return Reply(problem=f"{question.url} answered {response.status}")
                return await _read(question, response)
        except TimeoutError:
            return Reply(problem=f"{question.url} did not answer within {question.seconds:g}s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Reply(problem=f"{question.url}: {str(error) or type(error).__name__}")


async def _read(question: Question, response: aiohttp.ClientResponse) -> Reply:
    body = bytearray()
    async for part in response.content.iter_chunked(65536):
        body += part
        if len(body) > ANSWER_MOST:
            return Reply(problem=f"{question.url} answered more than {ANSWER_MOST} bytes")
    try:
        answer: Any = msgspec.json.decode(bytes(body))
    except msgspec.DecodeError as error:
        return Reply(problem=f"{question.url} did not answer in JSON: {error}")
    return Reply(answer)
