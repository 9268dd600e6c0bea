"""Reads documents of OpenID providers over HTTP, with limits, and the issuer of the settings."""

import ssl
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

from mandor.errors import Invalid, Unavailable
from mandor.model.role import IssuerSpec
from mandor.roots.settings import ServerSettings

BYTES_MOST = 512 * 1024
SECONDS_MOST = 10.0


class HttpFetch:
    """Reads documents of issuers; redirects are not followed, and no proxy of the environment is used."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=SECONDS_MOST, sock_connect=5.0)
        self._session = aiohttp.ClientSession(timeout=timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def __call__(self, url: str, ca: str) -> bytes:
        assert self._session is not None
        try:
            async with self._session.get(url, ssl=_trust(ca), allow_redirects=False) as answer:
                if answer.status != 200:
                    raise Unavailable(f"{url} answers {answer.status}")
                data = await answer.content.read(BYTES_MOST + 1)
                while len(data) <= BYTES_MOST and (more := await answer.content.read(BYTES_MOST + 1)):
                    data += more
        except (aiohttp.ClientError, TimeoutError, ssl.SSLError) as error:
            raise Unavailable(f"{url} cannot be read: {error}") from error
        if len(data) > BYTES_MOST:
            raise Unavailable(f"{url} gives more than {BYTES_MOST} bytes")
        return data


@lru_cache(maxsize=16)
def _trust(ca: str) -> ssl.SSLContext | bool:
    return ssl.create_default_context(cadata=ca) if ca else True


def default_issuer(settings: ServerSettings) -> IssuerSpec | None:
    """Return the issuer of the settings; None: there is none."""
    if not settings.oidc_issuer:
        return None
    try:
        ca = Path(settings.oidc_ca).read_text(encoding="utf-8") if settings.oidc_ca else ""
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"cannot use the certificates in {settings.oidc_ca}: {error}") from error
    return IssuerSpec(
        url=settings.oidc_issuer,
        audience=(settings.oidc_client_id,),
        username_claim=settings.oidc_username_claim,
        groups_claim=settings.oidc_groups_claim,
        ca=ca,
    )
