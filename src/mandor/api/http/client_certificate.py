"""ClientCertificate: the certificate that a client sent in its TLS handshake, parsed once per connection."""

from collections.abc import Sequence

from mandor.api.caller import Caller
from mandor.lib import x509
from mandor.model.authority import NODE_URI, TrustedCertificate
from mandor.model.record import Token


class ClientCertificate:
    """A certificate that the TLS layer has verified against the trusted authorities."""

    __slots__ = ("_issuer", "_issuer_candidates", "_parsed", "authenticated", "der")

    def __init__(self, der: bytes) -> None:
        self.der = der
        self.authenticated: tuple[Token, Caller] | None = None
        """Cached result of the last authentication: the node's credential and the caller made from it."""
        self._parsed: x509.CertificateInfo | None = None
        self._issuer: TrustedCertificate | None = None
        self._issuer_candidates: Sequence[TrustedCertificate] = ()

    def issuer(self, candidates: Sequence[TrustedCertificate]) -> TrustedCertificate | None:
        """Return the authority that signed the certificate, or None if none of the candidates did.

        The result is cached for the same sequence of candidates.
        """
        if candidates is not self._issuer_candidates:
            self._issuer = next((each for each in candidates if self.presented.issued_by(each.certificate)), None)
            self._issuer_candidates = candidates
        return self._issuer

    @property
    def presented(self) -> x509.CertificateInfo:
        """The parsed certificate; raises `ValueError` for a form that this cluster does not issue."""
        if self._parsed is None:
            self._parsed = x509.read(self.der)
        return self._parsed

    @property
    def node(self) -> str:
        """The node that the certificate names; empty: it does not name exactly one node."""
        try:
            names = [each.removeprefix(NODE_URI) for each in self.presented.uris if each.startswith(NODE_URI)]
        except ValueError:
            return ""
        return names[0] if len(names) == 1 else ""
