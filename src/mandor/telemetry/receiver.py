"""HttpReceiver: sends logs or traces over HTTP, over one connection, one POST after another."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

from mandor import __version__
from mandor.errors import Unavailable
from mandor.lib.egress import Egress

ANSWER_MOST = 64 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes

    @property
    def accepted(self) -> bool:
        return 200 <= self.status < 300

    def __str__(self) -> str:
        return f"{self.status} {' '.join(self.body.decode(errors='replace').split())[:200]}".strip()


class HttpReceiver:
    def __init__(self, url: str, *, ca: str = "", seconds: float, egress: Egress | None = None) -> None:
        """`ca`: file with the certificates to trust; empty: those of the machine. `seconds`: time limit of an answer.
        `egress`: the policy for an address from an API object; None: the address is a setting."""
        self.url, self._ca, self._seconds, self._egress = url, ca, seconds, egress
        self._session: aiohttp.ClientSession | None = None

    async def post(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Send a body; raise `Unavailable` if there is no answer."""
        sent = {"Content-Type": "application/json", "User-Agent": f"mandor/{__version__}", **headers}
        try:
            async with self._open().post(self.url, data=body, headers=sent, allow_redirects=False) as answer:
                return Answer(answer.status, await answer.content.read(ANSWER_MOST))
        except TimeoutError as error:
            raise Unavailable(f"no answer within {self._seconds:g}s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(" ".join(str(error).split())[:200] or type(error).__name__) from error

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            trusted: ssl.SSLContext | bool = True
            if self._ca:
                try:
                    trusted = ssl.create_default_context(cafile=self._ca)
                except (OSError, ssl.SSLError) as error:
                    raise Unavailable(f"the certificates in {self._ca} cannot be read: {error}") from error
            allowed = self._egress.socket_factory(self.url) if self._egress is not None else None
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=1, ssl=trusted, socket_factory=allowed),
                timeout=aiohttp.ClientTimeout(total=self._seconds),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session
