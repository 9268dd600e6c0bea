"""The link over HTTP, as an agent on another machine uses it."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import quote

from msgspec import Struct

from mandor.agent.journal import Journal
from mandor.agent.link import Beat, Duplex
from mandor.agent.settings import AgentSettings
from mandor.client.aio import Client
from mandor.errors import Unauthenticated
from mandor.model.codec import to_plain
from mandor.model.record import ClusterSpec, Session

log = logging.getLogger(__name__)


class _Joined(Struct, frozen=True):
    credential: str
    cluster: ClusterSpec
    renew_seconds: float | None = None


class _Renewed(Struct, frozen=True):
    until: float
    renew_seconds: float | None = None


class _About(Struct, frozen=True):
    cluster: ClusterSpec
    everywhere: tuple[str, ...] = ()


class HttpLink:
    """Shows the join token once, and the node's own credential ever after."""

    def __init__(
        self,
        client: Client,
        settings: AgentSettings,
        journal: Journal,
        address: Callable[[], str] = lambda: "",
        join_token: Callable[[], str | None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`join_token`: as it is now; absent: the one of the settings. `monotonic`: the agent's clock."""
        self._client, self._settings, self._journal, self._address = client, settings, journal, address
        self._monotonic = monotonic
        self.renew_at: float | None = None
        self._fresh = join_token or (lambda: settings.join_token)
        self._join_token = settings.join_token
        self._path = f"/v1/nodes/{quote(settings.name)}"
        self._client.token = journal.credential or settings.join_token or ""
        self._joining = asyncio.Lock()
        self.features: frozenset[str] = frozenset()

    async def join(self) -> ClusterSpec:
        async with self._joining:
            try:
                return await self._join()
            except Unauthenticated as error:
                # One was written there by hand meanwhile, or was to follow.
                for kept in (self._journal.credential, self._journal.next_credential):
                    if kept in ("", self._client.token):
                        continue
                    log.warning("what this node shows is not known any more; trying what is in its data directory")
                    with suppress(Unauthenticated):
                        return await self._join_as(kept)
                # It was revoked with the node, or the join token by a newer one.
                self._join_token = self._fresh()
                if self._join_token is None or self._client.token == self._join_token:
                    raise error
                log.warning("what this node shows is not known any more; trying the join token as it is now")
            return await self._join_as(self._join_token)

    async def _join_as(self, token: str) -> ClusterSpec:
        before, self._client.token = self._client.token, token
        try:
            return await self._join()
        except BaseException:
            self._client.token = before
            raise

    async def _join(self) -> ClusterSpec:
        body: dict[str, object] = {"labels": dict(self._settings.labels)}
        if self._client.token == self._join_token:
            body["secret"] = self._secret()
        if address := self._settings.address or self._address():
            body["address"] = address
        if self._settings.pool is not None:
            body["pool"] = self._settings.pool
        joined = await self._client.call("POST", f"{self._path}/join", _Joined, body=body)
        if joined.credential and joined.credential != self._journal.credential:
            self._journal.keep_credential(joined.credential)
        self._client.token = joined.credential or self._client.token
        self._renew_in(joined.renew_seconds)
        return joined.cluster

    def _renew_in(self, seconds: float | None) -> None:
        self.renew_at = self._monotonic() + seconds if seconds is not None else None

    def _secret(self) -> str:
        """Chosen and written down before the first join, so that an answer that gets lost costs nothing."""
        known = (self._journal.credential or "").rpartition("_")[2]
        if known:
            return known
        secret = secrets.token_hex(32)
        self._journal.keep_credential(self._credential(secret))
        return secret

    @property
    def renewing(self) -> bool:
        return bool(self._journal.next_credential)

    async def renew_credential(self) -> None:
        async with self._joining:
            following = self._journal.next_credential
            if not following:
                # On disk before the servers know it: whenever this ends, one of the two is good.
                following = self._credential(secrets.token_hex(32))
                self._journal.keep_next_credential(following)
            body = {"secret": following.rpartition("_")[2]}
            renewed = await self._client.call("POST", f"{self._path}/credential", _Renewed, body=body, repeat=True)
            self._journal.keep_credential(following)
            self._client.token = following
            self._renew_in(renewed.renew_seconds)

    def _credential(self, secret: str) -> str:
        return f"mdr_node.{self._settings.name}_{secret}"

    async def cluster(self) -> ClusterSpec:
        about = await self._client.call("GET", "/v1", _About)
        self.features = frozenset(about.everywhere)
        return about.cluster

    async def heartbeat(self, beat: Beat) -> ClusterSpec:
        # Saying twice that one lives does no harm, so another server may be asked at once.
        return await self._client.call("POST", f"{self._path}/heartbeat", ClusterSpec, body=to_plain(beat), repeat=True)

    async def dial(self, session: Session) -> Duplex:
        return await self._client.dial(
            f"/v1/sessions/{quote(session.meta.name)}",
            server=session.spec.server,
            headers={"X-Mandor-Session": session.spec.secret},
        )
