"""TLS settings of clients: trusted authorities and client certificates, reloaded when their files change.

A token may carry the fingerprint of the cluster's authority after a dot: `mdr_NAME_SECRET.FINGERPRINT`. A client
without a CA file fetches the authority from the server, compares it with the fingerprint, and trusts it from then on;
no secret is sent before.
"""

import hashlib
import http.client
import json
import logging
import ssl
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from mandor.errors import Invalid, Unavailable
from mandor.lib.loopback import is_loopback

PLAIN = "http"
PREFIX = "mdr_"
"""Prefix of tokens made by servers."""
FETCH_SECONDS = 10.0
AUTHORITY_BYTES_MOST = 256 * 1024
AUTHORITY_PATH = "/v1/ca"

log = logging.getLogger(__name__)


def check_private(url: str, token: str) -> None:
    """Raise `Invalid` for a token that would be sent over plain HTTP to another machine."""
    parts = urlsplit(url)
    if token and parts.scheme == PLAIN and not is_loopback(parts.hostname or ""):
        raise Invalid(
            f"tokens are not sent to {parts.netloc} over plain HTTP",
            hint="use an https:// URL",
        )


def split_fingerprint(token: str) -> tuple[str, str]:
    """Return the token as servers expect it, and its fingerprint; empty if it has none."""
    if not token.startswith(PREFIX):
        return token, ""  # An ID token has dots of its own.
    head, _, secret = token.rpartition("_")
    secret, _, fingerprint = secret.partition(".")
    return f"{head}_{secret}", fingerprint.lower()


def fetch_authority(servers: Sequence[str], fingerprint: str) -> str:
    """Return the authority with this fingerprint (PEM) from the first server that responds; no secret is sent.

    Raises `Invalid` if a server has another authority: it belongs to another cluster, or the connection is intercepted.
    """
    failures: list[str] = []
    for server in servers:
        try:
            answer = _get_unverified(server)
        except (OSError, http.client.HTTPException, ValueError) as error:
            failures.append(f"{server}: {str(error) or type(error).__name__}")
            continue
        return _chosen(answer, fingerprint, server)
    raise Unavailable(f"no server returned its authority: {'; '.join(failures)}")


def _get_unverified(server: str) -> bytes:
    parts = urlsplit(server)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection = http.client.HTTPSConnection(
        parts.hostname or "", parts.port or 443, timeout=FETCH_SECONDS, context=context
    )
    try:
        connection.request("GET", parts.path.rstrip("/") + AUTHORITY_PATH)
        answer = connection.getresponse()
        body = answer.read(AUTHORITY_BYTES_MOST)
        if answer.status != 200:
            raise ValueError(f"status {answer.status}")
        return body
    finally:
        connection.close()


def _chosen(answer: bytes, fingerprint: str, server: str) -> str:
    """Return the certificate with the fingerprint."""
    try:
        found = [str(each["certificate"]) for each in json.loads(answer)["certificates"]]
    except (ValueError, TypeError, KeyError):
        found = []
    for each in found:
        if has_fingerprint(each, fingerprint):
            return each
    raise Invalid(
        f"the authority of {server} does not match the fingerprint of the token",
        hint="the token belongs to another cluster, the authority was rotated (create a new token), "
        "or the connection is intercepted; no secret was sent",
    )


def has_fingerprint(certificate: str, fingerprint: str) -> bool:
    try:
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.strip())).hexdigest() == fingerprint
    except ValueError:
        return False


def pinned_context(file: Path) -> ssl.SSLContext:
    """Return a context that trusts only the authorities in the file."""
    context = ssl.create_default_context(cafile=file)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # It may be an authority that another one signed.
    return context


class Trust:
    """Trusted authorities and an optional client certificate. A CA file may contain old and new authorities during a
    rotation.
    """

    def __init__(self, ca_file: str = "", *, pinned: Path | None = None, identity: Path | None = None) -> None:
        """`pinned` is the file of the fetched authority, used if there is no CA file; `identity` is a file with a
        key and its certificate. Both may appear later.
        """
        self._file = Path(ca_file) if ca_file else None
        self._pinned, self._identity = pinned, identity
        self._bare: ssl.SSLContext | bool = True
        self._shown: ssl.SSLContext | bool = True
        self._ends_at = 0.0
        self._seen: tuple[int, int] = (0, 0)
        if self._file is not None:
            try:
                self._bare = self._shown = ssl.create_default_context(cafile=self._file)
                self._seen = (self._file.stat().st_mtime_ns, 0)
            except OSError as error:
                raise Invalid(f"cannot use the certificates in {self._file}: {error}") from error

    def context(self, *, bare: bool = False) -> ssl.SSLContext | bool:
        """Return the context for new connections; True means the system's CA certificates. `bare` omits the client
        certificate.
        """
        if self._file is not None or self._pinned is not None or self._identity is not None:
            self._look()
        return self._bare if bare or time.time() >= self._ends_at else self._shown

    @property
    def shows(self) -> bool:
        """Whether there is a valid client certificate."""
        self.context()
        return time.time() < self._ends_at

    def _look(self) -> None:
        seen = (_written_at(self._file or self._pinned), _written_at(self._identity))
        if seen == self._seen:
            return
        trusted_before, self._seen = self._seen[0], seen
        try:
            self._bare = self._made()
            self._shown, self._ends_at = self._with_identity()
        except (OSError, ValueError) as error:
            log.warning("the certificates in %s are not taken up: %s", self._file or self._pinned, error)
        else:
            if seen[0] != trusted_before:
                log.info("the certificates in %s are trusted from now on", self._file or self._pinned)

    def _made(self) -> ssl.SSLContext | bool:
        named = self._file is not None or (self._pinned is not None and self._pinned.exists())
        return self._read() if named else self._bare  # A pinned file that was deleted is trusted as it was.

    def _read(self) -> ssl.SSLContext:
        if self._file is None and self._pinned is not None and self._pinned.exists():
            return pinned_context(self._pinned)
        return ssl.create_default_context(cafile=self._file)

    def _with_identity(self) -> tuple[ssl.SSLContext | bool, float]:
        if self._identity is None or not self._identity.exists():
            return self._bare, 0.0
        if self._pinned is not None and not self._pinned.exists() and self._bare is not True:
            return self._shown, self._ends_at
        from mandor.lib.x509 import read, split_bundle

        # Not the one without a certificate: connections are kept apart by their contexts.
        context = self._read()
        context.load_cert_chain(self._identity)
        return context, read(split_bundle(self._identity.read_text())[0]).ends_at


def _written_at(file: Path | None) -> int:
    """Return the modification time of a file in nanoseconds; 0 if it does not exist."""
    try:
        return file.stat().st_mtime_ns if file is not None else 0
    except OSError:
        return 0
