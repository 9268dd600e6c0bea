"""Transport: HTTPS requests to a certificate authority, with limits and within the egress policy."""

import email.utils
import ssl
from typing import Any, NamedTuple

import aiohttp

from mandor import __version__
from mandor.acme.base import CONNECTION, AcmeProblem
from mandor.lib.egress import Egress, Refused, host_of

ANSWER_MOST = 512 * 1024
"""Bytes of an answer."""
SECONDS_MOST = 30.0
"""Seconds for one request."""
CONNECT_SECONDS_MOST = 10.0
HOSTS_MOST = 8
"""Hosts that one directory may refer to."""
CHALLENGE_SECONDS_MOST = 3.0
CHALLENGE_PATH = "/.well-known/acme-challenge/"


class Answer(NamedTuple):
    url: str
    status: int
    headers: Any
    body: bytes


class Transport:
    """Sends requests. The host of the directory is trusted, because an administrator names it; other hosts that its
    answers name, and the hosts of routes, have to be allowed by the egress policy.
    """

    def __init__(
        self, directory: str, egress: Egress, trust: ssl.SSLContext | bool = True, *, challenge_port: int = 80
    ) -> None:
        """Raise `ValueError` unless the directory is a URL with https. `challenge_port`: port of hosts that serve
        challenges.
        """
        if not directory.startswith("https://"):
            raise ValueError(f"{directory[:80]!r} is not a URL with https")
        try:
            self._own = host_of(directory)
        except Refused as error:
            raise ValueError(str(error)) from None
        self._egress, self._trust, self._challenge_port = egress, trust, challenge_port
        self._sessions: dict[tuple[str, int], aiohttp.ClientSession] = {}

    async def close(self) -> None:
        sessions, self._sessions = list(self._sessions.values()), {}
        for each in sessions:
            await each.close()

    async def send(self, method: str, url: str, body: bytes | None = None, accept: str = "application/json") -> Answer:
        headers = {"User-Agent": f"mandor/{__version__}", "Accept": accept}
        if body is not None:
            headers["Content-Type"] = "application/jose+json"
        try:
            async with self._session(url).request(
                method, url, data=body, headers=headers, allow_redirects=False
            ) as answer:
                data = await _read(answer.content, ANSWER_MOST)
        except TimeoutError:
            raise AcmeProblem(CONNECTION, f"{url} did not answer within {SECONDS_MOST:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise AcmeProblem(CONNECTION, f"{url}: {str(error) or type(error).__name__}") from error
        if len(data) > ANSWER_MOST:
            raise AcmeProblem(CONNECTION, f"{url} answered more than {ANSWER_MOST} bytes")
        return Answer(url, answer.status, answer.headers, data)

    async def file(self, host: str, token: str) -> bytes | None:
        """Return what a host serves for a token; None: the host cannot be reached from here."""
        url = f"http://{host}:{self._challenge_port}{CHALLENGE_PATH}{token}"
        try:
            connector = aiohttp.TCPConnector(socket_factory=self._egress.socket_factory(url))
            timeout = aiohttp.ClientTimeout(total=CHALLENGE_SECONDS_MOST)
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeout, cookie_jar=_no_cookies()) as session,
                session.get(url, allow_redirects=False) as answer,
            ):
                return await _read(answer.content, 1024) if answer.status == 200 else b""
        except (aiohttp.ClientError, OSError, ValueError):
            return None

    def _session(self, url: str) -> aiohttp.ClientSession:
        if not url.startswith("https://"):
            raise AcmeProblem(CONNECTION, f"the certificate authority names {url[:80]!r}, which is not https")
        place = host_of(url)
        session = self._sessions.get(place)
        if session is None:
            if len(self._sessions) >= HOSTS_MOST:
                raise AcmeProblem(CONNECTION, f"the certificate authority names more than {HOSTS_MOST} hosts")
            factory = None if place == self._own else self._egress.socket_factory(url)
            connector = aiohttp.TCPConnector(limit=8, ssl=self._trust, socket_factory=factory)
            timeout = aiohttp.ClientTimeout(total=SECONDS_MOST, sock_connect=CONNECT_SECONDS_MOST)
            session = aiohttp.ClientSession(connector=connector, timeout=timeout, cookie_jar=_no_cookies())
            self._sessions[place] = session
        return session


async def _read(content: aiohttp.StreamReader, most: int) -> bytes:
    """Return the content, or at least one byte more than `most` if it is longer."""
    data = b""
    while len(data) <= most and (more := await content.read(most + 1 - len(data))):
        data += more
    return data


def _no_cookies() -> aiohttp.DummyCookieJar:
    return aiohttp.DummyCookieJar()


def retry_after(headers: Any, now: float) -> float | None:
    """Return the seconds in the header `Retry-After`, which contains seconds or a date; None: there is none."""
    text = str(headers.get("Retry-After", "")).strip()
    if text.isdecimal():
        return float(text[:9])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now)
    except ValueError:
        return None
