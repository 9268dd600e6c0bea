"""Keeps the server's own certificate from the cluster's authority, and the file of authorities that verify nodes."""

import ipaddress
import logging
import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from mandor.api.certificates import CertificateAuthority
from mandor.api.http.server import ServerTls
from mandor.errors import Invalid, MandorError, Unavailable
from mandor.lib import x509
from mandor.lib.clock import Clock
from mandor.lib.metrics import Family, gauge
from mandor.lib.x509 import Pair
from mandor.model.record import RENEWAL_SHARE
from mandor.roots.secret_file import write_secret
from mandor.roots.settings import ServerSettings, split_address

log = logging.getLogger("mandor.server")

CHECK_SECONDS = 5.0
WILDCARDS = frozenset({"0.0.0.0", "::", ""})


class ServerCertificates:
    """Writes `tls/server.pem` (key and certificate) and `tls/authorities.pem` when one of them has to change."""

    def __init__(self, authority: CertificateAuthority, clock: Clock, folder: Path, hosts: list[str]) -> None:
        self._authority, self._clock, self._folder, self._hosts = authority, clock, folder, hosts
        self._issued = ""
        """Authorities of the current certificate."""
        self._issuer = self.presented = ""
        """Fingerprints of the authorities of the written certificate and of the one that the server presents: it loads
        a new certificate a moment after it was written, so `presented` follows one check later."""
        self._renew_at = 0.0
        self._ends_at = 0.0

    @property
    def tls(self) -> ServerTls:
        own = self._folder / "server.pem"
        return ServerTls(own, own, self.authorities_file)

    @property
    def authorities_file(self) -> Path:
        return self._folder / "authorities.pem"

    def keep(self) -> None:
        """Write the files again if the certificate expires soon or the authorities have changed."""
        bundle, now = self._authority.bundle, self._clock.now()
        if not self.authorities_file.exists() or self.authorities_file.read_text() != bundle + "\n":
            write_secret(self.authorities_file, bundle)
        if not self._authority.serves or (self._issued == bundle and now < self._renew_at):
            return
        key = x509.new_key()
        chain = self._authority.for_server(x509.public_key(key), self._hosts)
        write_secret(self._folder / "server.pem", key + chain)
        made = x509.read(x509.split_bundle(chain)[0])
        self._issued, self._ends_at = bundle, made.ends_at
        self._issuer = self._authority.fingerprint
        self.presented = self.presented or self._issuer
        self._renew_at = now + RENEWAL_SHARE * (made.ends_at - now)
        log.info("issued a certificate of this server for %s", ", ".join(self._hosts))

    def begin(self) -> None:
        """Write the files; with a certificate of an earlier start a failure is logged and `run` retries."""
        try:
            self.keep()
        except Unavailable as error:
            if not (self._folder / "server.pem").exists():
                raise
            log.error("the certificate of the last start stays in use: %s", error)

    async def run(self, cluster: str) -> None:
        """Update the files when the authority in the store changes."""
        while True:
            await self._clock.sleep(CHECK_SECONDS)
            self.presented = self._issuer
            try:
                await self._authority.ensure(cluster)
                await self._authority.forget_ended()
                if self._authority.ready:
                    self.keep()
            except (MandorError, OSError) as error:
                log.warning("cannot update the certificate of this server: %s", error)

    def families(self) -> Iterator[Family]:
        now = self._clock.now()
        left = {
            (what,): ends - now
            for what, ends in (("server", self._ends_at), ("authority", self._authority_end()))
            if ends
        }
        meaning = "Until a certificate ends: this server's own, and that of the authority which issues."
        yield gauge("mandor_certificate_seconds_left", meaning, left, "certificate")

    def _authority_end(self) -> float:
        found = self._authority.certificates
        return x509.read(found[0].certificate).ends_at if found else 0.0


def own_authority(settings: ServerSettings) -> Pair | None:
    """Return the administrator's authority from its files; None: the cluster has its own."""
    if not settings.ca_cert:
        return None
    try:
        pair = Pair(x509.split_bundle(Path(settings.ca_cert).read_text())[0], Path(settings.ca_key).read_text())
        x509.check_pair(pair)
    except OSError as error:
        raise Invalid(f"cannot read the files of the authority: {error}") from error
    except (ValueError, TypeError, IndexError) as error:
        raise Invalid(f"{settings.ca_cert} and {settings.ca_key} are not an authority: {error}") from error
    return pair


def host_names(settings: ServerSettings) -> list[str]:
    """Return the names and addresses under which clients can reach this server."""
    listen, _ = split_address(settings.listen)
    advertised = urlsplit(settings.address).hostname or "" if settings.address else ""
    own = socket.gethostname()
    found = [advertised, *settings.tls_name, *([] if listen in WILDCARDS else [listen]), own]
    with suppress(OSError):
        found.append(socket.getfqdn(own))
    found += ["localhost", "127.0.0.1", "::1"]
    if listen in WILDCARDS:
        found += local_addresses()
    return [each for each in dict.fromkeys(found) if _is_host(each)]


def _is_host(text: str) -> bool:
    with suppress(ValueError):
        return not ipaddress.ip_address(text).is_unspecified
    return re.fullmatch(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", text) is not None


def local_addresses() -> list[str]:
    """Return the addresses of this machine's interfaces, as Linux lists them."""
    found: list[str] = []
    with suppress(OSError):
        found += _of_fib(Path("/proc/net/fib_trie").read_text().splitlines())
    with suppress(OSError):
        words = [line.split() for line in Path("/proc/net/if_inet6").read_text().splitlines()]
        # Link-local addresses need an interface.
        found += [str(ipaddress.IPv6Address(int(each[0], 16))) for each in words if each[3] not in {"20", "10"}]
    return list(dict.fromkeys(found))


def _of_fib(lines: Iterable[str]) -> Iterator[str]:
    address = ""
    for line in lines:
        text = line.strip()
        if text.startswith("|--"):
            address = text.removeprefix("|--").strip()
        elif text.startswith("/32 host LOCAL"):
            yield address


def advertised_host(listen: str) -> str:
    """Return the host of this server's URL: the listen address, or the address of the default route if that is a
    wildcard."""
    if listen not in WILDCARDS:
        return listen
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # Nothing is sent: the system only chooses a route.
        return str(probe.getsockname()[0])
    return socket.gethostname()
