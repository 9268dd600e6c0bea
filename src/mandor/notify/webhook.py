"""Signed webhooks: one POST per message, with a timestamp and an HMAC over timestamp and body."""

import time
from collections.abc import Callable

import aiohttp

from mandor import __version__
from mandor.errors import Invalid, Unavailable
from mandor.lib.egress import STRICT, Egress
from mandor.lib.secret_files import NO_FILES, SecretFiles
from mandor.lib.signing import SIGNATURE, sign
from mandor.model.receiver import WebhookSpec
from mandor.notify.message import CONTENT_TYPE, Message
from mandor.notify.secrets import ReadSecret, certificates, signing_key
from mandor.notify.sink import Sink

ANSWER_MOST = 4096
AWAY = frozenset({429, 502, 503, 504})
"""HTTP statuses of an overloaded receiver: the message was not processed."""
DELIVERY = "X-Mandor-Delivery"


class WebhookSink(Sink):
    """Sends to one URL. Redirects are not followed: only the configured address is called."""

    def __init__(
        self,
        spec: WebhookSpec,
        read_secret: ReadSecret,
        now: Callable[[], float] = time.time,
        *,
        egress: Egress = STRICT,
        files: SecretFiles = NO_FILES,
    ) -> None:
        self._spec, self._read_secret, self._now, self._egress, self._files = spec, read_secret, now, egress, files
        self._session: aiohttp.ClientSession | None = None

    async def send(self, message: Message) -> str:
        body = message.body()
        headers = {"Content-Type": CONTENT_TYPE, "User-Agent": f"mandor/{__version__}", DELIVERY: message.id}
        headers |= await self._signed(body)
        try:
            session = self._open()
            async with session.post(self._spec.url, data=body, headers=headers, allow_redirects=False) as answer:
                body_text = (await answer.content.read(ANSWER_MOST)).decode(errors="replace")
        except TimeoutError as error:
            raise Unavailable(f"no answer within {self._spec.timeout}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(_error_text(error)) from error
        if 200 <= answer.status < 300:
            return str(answer.status)
        body_text = f"{answer.status} {' '.join(body_text.split())[:200]}".strip()
        if answer.status in AWAY:
            raise Unavailable(body_text, retry_seconds=_retry_after(answer.headers.get("Retry-After", "")))
        if 300 <= answer.status < 400:
            raise Invalid(f"{answer.status}: redirects are not followed", hint="give the address it leads to")
        raise Invalid(body_text)

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            spec = self._spec
            trusted = certificates(self._files, spec.ca) if spec.ca and spec.url.startswith("https:") else True
            allowed = self._egress.socket_factory(spec.url)
            connector = aiohttp.TCPConnector(limit=2, ssl=trusted, socket_factory=allowed)
            timeout = aiohttp.ClientTimeout(total=float(self._spec.timeout))
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session

    async def _signed(self, body: bytes) -> dict[str, str]:
        """Return the signatures by the secret and, during a rotation, by the previous one."""
        spec, now = self._spec, self._now()
        references = [spec.secret] if spec.old_secret is None else [spec.secret, spec.old_secret]
        keys = [signing_key(await self._read_secret(each, spec.secret_namespace), each) for each in references]
        signed = [sign(key, body, now) for key in keys]
        return signed[0] | {SIGNATURE: " ".join(each[SIGNATURE] for each in signed)}


def _error_text(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _retry_after(text: str) -> float:
    return float(text) if text.isdecimal() and len(text) < 6 else 0.0
