"""Peer: the client certificate of a connection, read once however many requests come over it."""

from collections.abc import Sequence

from mandor.api.caller import Caller
from mandor.lib import x509
from mandor.model.authority import NODE_URI, TrustedCertificate
from mandor.model.record import Token


class Peer:
    """A certificate that the TLS layer has verified against the authorities that it knows."""

    __slots__ = ("_issuer", "_issuer_among", "_read", "der", "known")

    def __init__(self, der: bytes) -> None:
        self.der = der
        self.known: tuple[Token, Caller] | None = None
        """The caller that it was, and the credential that it was compared with."""
        self._read: x509.Presented | None = None
        self._issuer: TrustedCertificate | None = None
        self._issuer_among: Sequence[TrustedCertificate] = ()

    def issuer(self, among: Sequence[TrustedCertificate]) -> TrustedCertificate | None:
        """The authority that signed it; None: none of these. The signature is checked once for the same authorities."""
        if among is not self._issuer_among:
            self._issuer = next((each for each in among if self.presented.issued_by(each.certificate)), None)
            self._issuer_among = among
        return self._issuer

    @property
    def presented(self) -> x509.Presented:
        """`ValueError`: it is none that this cluster issues."""
        if self._read is None:
            self._read = x509.read(self.der)
        return self._read

    @property
    def node(self) -> str:
        """The node it is for; empty: it is for something else."""
        try:
            names = [each.removeprefix(NODE_URI) for each in self.presented.uris if each.startswith(NODE_URI)]
        except ValueError:
            return ""
        return names[0] if len(names) == 1 else ""
