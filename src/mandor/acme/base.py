"""The interface between the certificate controller and a certificate authority."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

CONNECTION, SERVER = "connection", "serverInternal"
RATE_LIMITED = "rateLimited"
NO_ACCOUNT = "accountDoesNotExist"
DETAIL_MOST = 500
"""Characters of a problem in words."""


class AcmeProblem(Exception):
    """The certificate authority cannot be reached, or rejected a request."""

    def __init__(self, type_: str, detail: str, *, retry_seconds: float | None = None) -> None:
        """`type_`: type of the problem without its prefix, as in RFC 8555, section 6.7; `connection`: no answer.

        `retry_seconds`: time after which the authority allows the next request.
        """
        # Parts of it were written by others: terminals show it.
        self.detail = "".join(each if each.isprintable() else " " for each in detail[:DETAIL_MOST])
        super().__init__(self.detail)
        self.type, self.retry_seconds = type_[:DETAIL_MOST], retry_seconds


@dataclass(frozen=True, slots=True)
class Challenge:
    """A file that gateways must serve to prove control of a host."""

    url: str
    token: str
    """Last part of the file's path."""
    answer: str
    """Content of the file: the key authorization."""


@dataclass(frozen=True, slots=True)
class AcmeOrder:
    """An order for a certificate of one host."""

    url: str
    status: str
    """pending, ready, processing, valid or invalid."""
    finalize: str
    """URL that accepts the signing request."""
    certificate: str = ""
    """URL of the certificate, once it is issued."""
    challenges: tuple[Challenge, ...] = ()
    """Challenges that are still to be fulfilled."""


@dataclass(frozen=True, slots=True)
class RenewalWindow:
    """Time in which the authority suggests to renew a certificate (RFC 9773)."""

    start: float
    end: float
    check_seconds: float
    """Time until the window is to be read again."""


class CertificateIssuer(ABC):
    """An account at a certificate authority. Every method raises `AcmeProblem`."""

    @abstractmethod
    async def order(self, host: str, known: str = "", replaces: str = "") -> AcmeOrder:
        """Return the order at the URL `known` if it can still lead to a certificate, otherwise a new one.

        `replaces`: the certificate in PEM format that the new one renews.
        """

    @abstractmethod
    async def serves(self, host: str, challenge: Challenge) -> bool | None:
        """Return whether the host serves the challenge; None: the host cannot be reached from here."""

    @abstractmethod
    async def validate(self, order: AcmeOrder) -> AcmeOrder:
        """Let the authority check the challenges, and return the order once it is ready."""

    @abstractmethod
    async def complete(self, order: AcmeOrder, request: str) -> str:
        """Send the signing request, unless the order has one already, and return the certificate with its chain."""

    @abstractmethod
    async def window(self, certificate: str) -> RenewalWindow | None:
        """Return the suggested time of renewal; None: the authority suggests none."""
