"""CertificateAuthority: issues the certificates of servers and nodes, and verifies those of nodes."""

from collections.abc import Callable
from contextlib import suppress

import msgspec

from mandor.api.http.client_certificate import ClientCertificate
from mandor.errors import Conflict, Invalid, Unavailable, Unsupported
from mandor.lib import x509
from mandor.lib.clock import Clock
from mandor.lib.sealing import Sealer, Unsealable
from mandor.lib.x509 import Pair
from mandor.model.authority import FEATURE, KEY, NODE_URI, Authority, AuthoritySpec, TrustedCertificate
from mandor.model.meta import Meta
from mandor.store.base import Put, Store, Write

AUTHORITY_SECONDS = 10 * 365 * 86_400.0
SERVER_SECONDS = 7 * 86_400.0
"""Lifetime of a server's certificate."""
OVERLAP_LIVES = 2
"""After a rotation the former authority is trusted for this many lifetimes of a node's certificate."""
TRIES = 5


class CertificateAuthority:
    """The cluster's authority, shared by all servers through the store; `refresh` reads changes of other servers."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        sealer: Sealer,
        *,
        own: Pair | None = None,
        node_seconds: float = 86_400.0,
        serves: bool = True,
        everywhere: Callable[[], frozenset[str]] = lambda: frozenset({FEATURE}),
    ) -> None:
        """`own`: an authority of the administrator that replaces the one in the store.

        `node_seconds`: lifetime of a node's certificate. `serves`: issue the certificates of servers, too.
        """
        self._store, self._clock, self._sealer, self._own = store, clock, sealer, own
        self.node_seconds, self.serves, self._everywhere = node_seconds, serves, everywhere
        self._known: Authority | None = None
        self._issuing: Pair | None = None

    async def ensure(self, cluster: str) -> None:
        """Create the authority of a new cluster, or replace it by the administrator's own."""
        for _ in range(TRIES):
            await self.refresh()
            if FEATURE not in self._everywhere():
                return
            if self._known is not None and (self._own is None or self._current == self._own.certificate):
                return
            made = self._own or self._make(cluster)
            with suppress(Conflict):  # Another server was first.
                await self._store.commit(self._replaced_by(made, self.overlap_seconds))

    async def refresh(self) -> None:
        """Read the authority from the store."""
        found = await self._store.get(KEY)
        if not isinstance(found, Authority) or found == self._known:
            return
        self._issuing = self._opened(found.spec.certificates[0])
        self._known = found

    async def rotate(self, cluster: str, overlap_seconds: float, *more: Write) -> None:
        """Create a new authority that issues from now on; the former one stays trusted for the overlap."""
        if self._own is not None:
            raise Unsupported(
                "the authority of this cluster comes from files",
                hint="replace the files of --ca-cert and --ca-key, and restart the servers one by one",
            )
        self._check_ready()
        await self.refresh()
        await self._store.commit(self._replaced_by(self._make(cluster), overlap_seconds), *more)
        await self.refresh()

    async def forget_ended(self) -> None:
        """Delete authorities whose overlap is over, with their keys."""
        if self._known is None or len(self._trusted()) == len(self._known.spec.certificates):
            return
        with suppress(Conflict):
            await self._store.commit(Put(self._known.changed(spec=AuthoritySpec(certificates=tuple(self._trusted())))))
        await self.refresh()

    @property
    def ready(self) -> bool:
        """Whether certificates can be issued: there is an authority, and all servers support it."""
        return self._issuing is not None and FEATURE in self._everywhere()

    @property
    def overlap_seconds(self) -> float:
        return OVERLAP_LIVES * self.node_seconds

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the authority that issues; empty: there is none."""
        return x509.fingerprint(self._current) if self._known is not None else ""

    @property
    def certificates(self) -> list[TrustedCertificate]:
        """Certificates of all trusted authorities, without their keys; the first one issues."""
        return [msgspec.structs.replace(each, key="") for each in self._trusted()]

    @property
    def bundle(self) -> str:
        """Certificates of all trusted authorities, as one PEM text."""
        return "".join(each.certificate for each in self._trusted())

    def for_node(self, name: str, public: bytes) -> str:
        """Return a client certificate for a node."""
        return self._issue(public, name, uri=node_uri(name), seconds=self.node_seconds)

    def for_server(self, public: bytes, hosts: list[str]) -> str:
        """Return a server certificate for these names, with a chain for clients that trust a former authority."""
        certificate = self._issue(public, hosts[0], hosts=hosts, server=True, seconds=SERVER_SECONDS)
        return certificate + "".join(each.cross for each in self._trusted()[:-1])

    def trusts(self, certificate: ClientCertificate) -> bool:
        """Return whether the certificate is valid now and issued by an authority that is trusted now."""
        now, presented = self._clock.now(), certificate.presented
        if self._known is None or not presented.starts_at <= now < presented.ends_at:
            return False
        issuer = certificate.issuer(self._known.spec.certificates)
        return issuer is not None and (not issuer.until or issuer.until > now)

    @property
    def _current(self) -> str:
        assert self._known is not None
        return self._known.spec.certificates[0].certificate

    def _trusted(self) -> list[TrustedCertificate]:
        now = self._clock.now()
        known = self._known.spec.certificates if self._known is not None else ()
        return [each for each in known if not each.until or each.until > now]

    def _issue(
        self,
        public: bytes,
        name: str,
        *,
        uri: str = "",
        hosts: list[str] | None = None,
        server: bool = False,
        seconds: float,
    ) -> str:
        self._check_ready()
        assert self._issuing is not None
        now = self._clock.now()
        return x509.issue(
            self._issuing, public, name, uri=uri, hosts=hosts or (), server=server, now=now, seconds=seconds
        )

    def _check_ready(self) -> None:
        if self._issuing is None:
            raise Unavailable("this server cannot issue certificates", hint="the server's log has the reason")

    def _make(self, cluster: str) -> Pair:
        name = f"Mandor authority {cluster[:12]} {int(self._clock.now())}"
        return x509.make_authority(name, now=self._clock.now(), seconds=AUTHORITY_SECONDS)

    def _replaced_by(self, made: Pair, overlap_seconds: float) -> Put:
        """Return the write that puts a new authority before the current one."""
        sealed = "" if made is self._own else self._sealer.seal(made.key, about(made.certificate))
        if self._known is None:
            first = TrustedCertificate(certificate=made.certificate, key=sealed)
            return Put(Authority(meta=Meta(name=KEY.name), spec=AuthoritySpec(certificates=(first,))))
        now = self._clock.now()
        cross = x509.cross_sign(self._issuing, made.certificate, now=now) if self._issuing is not None else ""
        first = TrustedCertificate(certificate=made.certificate, key=sealed, cross=cross)
        ending, *earlier = self._trusted()
        rest = [msgspec.structs.replace(ending, until=now + overlap_seconds), *earlier]
        return Put(self._known.changed(spec=AuthoritySpec(certificates=(first, *rest))))

    def _opened(self, stored: TrustedCertificate) -> Pair | None:
        if self._own is not None and self._own.certificate == stored.certificate:
            return self._own
        if not stored.key:
            return None
        try:
            return Pair(stored.certificate, self._sealer.open(stored.key, about(stored.certificate)))
        except Unsealable as error:
            raise Invalid(
                f"cannot decrypt the key of the cluster's authority: {error}",
                hint="start the server with the secrets key of the other servers (--secrets-key)",
            ) from error


def node_uri(name: str) -> str:
    return NODE_URI + name


def about(certificate: str) -> str:
    """Return the context that the key of this authority is sealed with."""
    return f"authority {x509.fingerprint(certificate)}"
