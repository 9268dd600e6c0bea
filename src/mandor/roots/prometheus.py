"""Queries Prometheus for autoscaling."""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from mandor.errors import Unavailable
from mandor.lib.egress import LOOPBACK, Egress, Refused, host_of
from mandor.model.autoscale import Metric

ANSWER_MOST = 256 * 1024
SECONDS = 5.0
AT_ONCE = 8


class Prometheus:
    """One session for all queries. `allowed`: the only servers that are queried, the first by default. `loopback`:
    servers on this machine are allowed, too, as in `mandor dev`."""

    def __init__(self, allowed: Sequence[str] = (), *, loopback: bool = False) -> None:
        self._allowed = tuple(each.rstrip("/") for each in allowed)
        self._loopback = Egress(LOOPBACK) if loopback else None
        self._session: aiohttp.ClientSession | None = None
        self._room = asyncio.Semaphore(AT_ONCE)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, metric: Metric) -> float:
        url = self._url(metric)
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=SECONDS))
        try:
            async with (
                self._room,
                self._session.get(
                    f"{url}/api/v1/query", params={"query": metric.query}, allow_redirects=False
                ) as response,
            ):
                body = await response.content.read(ANSWER_MOST + 1)
                while len(body) <= ANSWER_MOST and (part := await response.content.read(ANSWER_MOST)):
                    body += part
        except TimeoutError:
            raise Unavailable(f"{url} did not answer within {SECONDS:g}s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unavailable(f"{url}: {str(error) or type(error).__name__}") from error
        if len(body) > ANSWER_MOST:
            raise Unavailable(f"{url} answered more than {ANSWER_MOST} bytes")
        return number_in(body, url, response.status)

    def _url(self, metric: Metric) -> str:
        url = metric.url.rstrip("/") or next(iter(self._allowed), "")
        if not url:
            raise Unavailable("no Prometheus server is configured: start the server with --prometheus URL")
        if url not in self._allowed and not self._is_here(url):
            known = ", ".join(self._allowed) or "none; start the server with --prometheus URL"
            raise Unavailable(f"{url} is not one of the configured Prometheus servers: {known}")
        return url

    def _is_here(self, url: str) -> bool:
        """Return whether `mandor dev` may query the server: its host is localhost or an address of this machine."""
        try:
            return self._loopback is not None and self._loopback.lists(*host_of(url))
        except Refused:
            return False


def number_in(body: bytes, url: str, status: int) -> float:
    """Return the only number of an answer; raise `Unavailable` if there is none."""
    try:
        answer: Any = msgspec.json.decode(body)
    except msgspec.DecodeError:
        raise Unavailable(f"{url} answered with status {status}, but not in Prometheus' format") from None
    if not isinstance(answer, dict) or answer.get("status") != "success":
        problem = answer.get("error") if isinstance(answer, dict) else None
        raise Unavailable(f"{url} answered {status}: {str(problem or 'no success')[:200]}")
    try:
        return _number(answer["data"], url)
    except (KeyError, TypeError, IndexError, ValueError):
        raise Unavailable(f"the answer of {url} is not a number") from None


def _number(data: Any, url: str) -> float:
    if data["resultType"] == "scalar":
        return float(data["result"][1])
    if data["resultType"] != "vector":
        raise Unavailable(f"the result of the query is a {str(data['resultType'])[:20]}, not a number: add `sum(…)`")
    found = data["result"]
    if len(found) != 1:
        raise Unavailable(f"the query has {len(found)} results instead of one: wrap it in `sum(…)`")
    return float(found[0]["value"][1])
