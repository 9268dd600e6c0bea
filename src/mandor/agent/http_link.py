"""The link to the API servers over HTTP."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from urllib.parse import quote

from msgspec import Struct

from mandor.agent.journal import Journal
from mandor.agent.link import Applied, Duplex, Heartbeat
from mandor.agent.settings import AgentSettings
from mandor.client.aio import SESSION_HEADER, Client
from mandor.client.trust import has_fingerprint, split_fingerprint
from mandor.errors import Forbidden, Invalid, Unauthenticated, Unavailable
from mandor.lib.x509 import make_request, new_key, split_bundle
from mandor.model.authority import FEATURE as CERTIFICATES
from mandor.model.codec import to_plain
from mandor.model.instance import Instance
from mandor.model.record import ClusterSpec, Session

log = logging.getLogger(__name__)


class _Joined(Struct, frozen=True):
    credential: str
    cluster: ClusterSpec
    renew_seconds: float | None = None
    certificate: str = ""
    ca: str = ""
    certificate_seconds: float | None = None


class _Issued(Struct, frozen=True):
    certificate: str
    ca: str = ""
    renew_seconds: float | None = None


class _Renewed(Struct, frozen=True):
    until: float
    renew_seconds: float | None = None


class _Identity(Struct, frozen=True):
    token: str
    seconds: float


class _About(Struct, frozen=True):
    cluster: ClusterSpec
    everywhere: tuple[str, ...] = ()
    features: tuple[str, ...] = ()


class HttpLink:
    """Authenticates with the join token once, then with the node's certificate, or its credential if it has none."""

    def __init__(
        self,
        client: Client,
        settings: AgentSettings,
        journal: Journal,
        address: Callable[[], str] = lambda: "",
        join_token: Callable[[], str | None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        pins: bool = False,
    ) -> None:
        """`join_token`: returns the current join token; absent: the one of the settings. `monotonic`: the clock.
        `pins`: trust the certificate authority that the servers present, because none is configured."""
        self._client, self._settings, self._journal, self._address = client, settings, journal, address
        self._monotonic, self._pins = monotonic, pins
        self.renew_at: float | None = None
        self.certify_at: float | None = None
        self._fresh = join_token or (lambda: settings.join_token)
        self._join_token, self._fingerprint = split_fingerprint(settings.join_token or "")
        self._path = f"/v1/nodes/{quote(settings.name)}"
        self._secret_text = journal.credential or self._join_token
        """The join token or credential that the node joins with."""
        self._client.token = "" if client.trust.shows else self._secret_text
        self._joining = asyncio.Lock()
        self.features: frozenset[str] = frozenset()

    async def join(self) -> ClusterSpec:
        async with self._joining:
            await self._pin()
            try:
                return await self._join()
            except Unauthenticated as error:
                # An administrator may have replaced the credential, or a renewal was interrupted.
                for kept in (self._journal.credential, self._journal.next_credential):
                    if kept in ("", self._secret_text):
                        continue
                    log.warning("the servers refuse this node's credential; trying the one in its data directory")
                    with suppress(Unauthenticated):
                        return await self._join_as(kept)
                # The credential was revoked with the node, or the join token was replaced.
                self._join_token, self._fingerprint = split_fingerprint(self._fresh() or "")
                if not self._join_token or self._secret_text == self._join_token:
                    raise error
                log.warning("the servers refuse this node's credential; trying the current join token")
            await self._pin()
            return await self._join_as(self._join_token)

    async def _pin(self) -> None:
        """Trust the authority that the join token names, before anything secret is sent."""
        if not self._pins or not self._fingerprint or not self._client.server.startswith("https:"):
            return
        file = self._journal.authorities
        known = split_bundle(file.read_text()) if file.exists() else []
        if any(has_fingerprint(each, self._fingerprint) for each in known):
            return
        try:
            self._journal.keep_authorities(await self._client.authority(self._fingerprint))
        except (Invalid, Unavailable) as error:
            if not known:
                raise
            log.info("keeping the known certificate authority; the join token names another one: %s", error)

    async def _join_as(self, token: str) -> ClusterSpec:
        before, self._secret_text = self._secret_text, token
        try:
            return await self._join()
        except BaseException:
            self._secret_text = before
            raise

    async def _join(self) -> ClusterSpec:
        body: dict[str, object] = {"labels": dict(self._settings.labels)}
        if self._secret_text == self._join_token:
            body["secret"] = self._secret()
        if address := self._settings.address or self._address():
            body["address"] = address
        if self._settings.pool is not None:
            body["pool"] = self._settings.pool
        key = ""
        if self._secure:
            key = self._key(following=self._secret_text == self._journal.next_credential)
            body["csr"] = make_request(key, self._settings.name)
        joined = await self._ask_to_join(body)
        if joined.credential and joined.credential != self._journal.credential:
            self._journal.keep_credential(joined.credential)
        self._secret_text = joined.credential or self._secret_text
        self._renew_in(joined.renew_seconds)
        if joined.certificate:
            self._take(key, joined.certificate, joined.ca, joined.certificate_seconds)
        else:
            self._client.token, self.certify_at = self._secret_text, None
        return joined.cluster

    async def _ask_to_join(self, body: dict[str, object]) -> _Joined:
        """Send the join request; without `csr` to servers of earlier versions, which refuse unknown fields."""
        path = f"{self._path}/join"
        try:
            return await self._client.call("POST", path, _Joined, body=body, token=self._secret_text)
        except Invalid:
            if "csr" not in body or CERTIFICATES in await self._features():
                raise
            less = {name: value for name, value in body.items() if name != "csr"}
            return await self._client.call("POST", path, _Joined, body=less, token=self._secret_text)

    async def _features(self) -> tuple[str, ...]:
        try:
            return (await self._client.call("GET", "/v1", _About, token=self._secret_text)).features
        except Forbidden:  # A join token may only join.
            return ()

    def _take(self, key: str, certificate: str, authorities: str, seconds: float | None) -> None:
        """Use this certificate from now on."""
        self._journal.keep_identity(key, certificate)
        if self._pins and authorities:
            self._journal.keep_authorities(authorities)
        self._client.token = "" if self._client.trust.shows else self._secret_text
        self.certify_at = self._monotonic() + seconds if seconds is not None else None

    def _renew_in(self, seconds: float | None) -> None:
        self.renew_at = self._monotonic() + seconds if seconds is not None else None

    @property
    def _secure(self) -> bool:
        return self._client.server.startswith("https:")

    def _key(self, *, following: bool = False) -> str:
        return self._journal.node_key(new_key, following=following)

    def _secret(self) -> str:
        """Return the credential's secret, saved before the first join: a join whose answer is lost can be repeated."""
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
                # Saved before it is sent: wherever this is interrupted, one of the two credentials is valid.
                following = self._credential(secrets.token_hex(32))
                self._journal.keep_next_credential(following)
            body = {"secret": following.rpartition("_")[2]}
            if certified := self.certify_at is not None:
                body["csr"] = make_request(self._key(following=True), self._settings.name)
            renewed = await self._client.call("POST", f"{self._path}/credential", _Renewed, body=body, repeat=True)
            self._journal.keep_credential(following)
            self._secret_text = following
            if certified:
                await self._certify()
            else:
                self._client.token = following
            self._renew_in(renewed.renew_seconds)

    async def renew_certificate(self) -> None:
        async with self._joining:
            await self._certify()

    async def _certify(self) -> None:
        key = self._key()
        body = {"csr": make_request(key, self._settings.name)}
        path = f"{self._path}/certificate"
        issued = await self._client.call("POST", path, _Issued, body=body, repeat=True, token=self._secret_text)
        self._take(key, issued.certificate, issued.ca, issued.renew_seconds)

    def _credential(self, secret: str) -> str:
        return f"mdr_node.{self._settings.name}_{secret}"

    async def cluster(self) -> ClusterSpec:
        about = await self._client.call("GET", "/v1", _About)
        self.features = frozenset(about.everywhere)
        return about.cluster

    async def identity(self, instance: Instance, task: str) -> tuple[str, float]:
        path, meta = f"/v1/instances/{quote(instance.meta.name)}/identity", instance.meta
        body = {"uid": meta.uid, "task": task}
        found = await self._client.call(
            "POST", path, _Identity, query={"namespace": meta.namespace}, body=body, repeat=True
        )
        return found.token, found.seconds

    async def heartbeat(self, beat: Heartbeat) -> ClusterSpec:
        # A repeated heartbeat does no harm, so another server may be tried at once.
        return await self._client.call("POST", f"{self._path}/heartbeat", ClusterSpec, body=to_plain(beat), repeat=True)

    async def report_applied(self, namespaces: Mapping[str, int]) -> None:
        body = {"namespaces": dict(namespaces)}
        await self._client.call("POST", f"{self._path}/applied", Applied, body=body, repeat=True)

    async def wait_applied(self, asks: Mapping[str, int]) -> Applied:
        body = {"asks": dict(asks)}
        return await self._client.call("POST", f"{self._path}/applied", Applied, body=body, repeat=True)

    def leave_server(self) -> None:
        self._client.leave_server()

    async def dial(self, session: Session) -> Duplex:
        return await self._client.dial(
            f"/v1/sessions/{quote(session.meta.name)}",
            server=session.spec.server,
            headers={SESSION_HEADER: session.spec.secret},
        )
