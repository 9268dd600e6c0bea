"""Messages between the relay balancer of an agent and its server process, and the stored table."""

import msgspec

from mandor.network.base import Balance, Endpoint, Frontend, FrontendKey, Protocol, Traffic


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One frontend."""

    key: FrontendKey
    addresses: tuple[str, ...]
    port: int
    protocol: Protocol
    endpoints: tuple[Endpoint, ...]
    balance: Balance
    affinity_seconds: float

    @staticmethod
    def of(frontend: Frontend) -> "Entry":
        """Return the entry of a frontend."""
        return Entry(
            frontend.key,
            frontend.addresses,
            frontend.port,
            frontend.protocol,
            frontend.endpoints,
            frontend.balance,
            frontend.affinity_seconds,
        )


class Request(msgspec.Struct, frozen=True):
    """A change of the table, or a question for counters if both lists are empty and `whole` is False."""

    put: tuple[Entry, ...] = ()
    delete: tuple[FrontendKey, ...] = ()
    whole: bool = False
    """Whether `put` is the whole table, so that other frontends are removed."""


class Reply(msgspec.Struct, frozen=True):
    """Answer to every request, sent when the change is in effect."""

    problems: tuple[tuple[FrontendKey, str], ...] = ()
    """Reasons of frontends that are not served."""
    traffic: tuple[tuple[FrontendKey, Traffic], ...] = ()
    """Counters; only for a question."""
