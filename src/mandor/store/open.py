"""Opens a store by its URL: `memory:`, `sqlite:PATH`, `etcd://h1:p1,h2:p2/prefix`, `etcds://…` with TLS."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from mandor.errors import Invalid
from mandor.lib import registry
from mandor.lib.words import did_you_mean
from mandor.store.access import NOBODY, StoreAccess
from mandor.store.base import Store

__all__ = ["StoreAccess", "open_store"]

GROUP = "mandor.stores"
Opener = Callable[[str, StoreAccess], Awaitable[Store]]
"""What an entry point of this group is: it gets what follows the scheme's colon."""


async def open_store(url: str, *, access: StoreAccess = NOBODY) -> Store:
    """The store that the URL names; others add schemes by entry point (`mandor.stores`)."""
    scheme, colon, address = url.partition(":")
    if not colon or not scheme:
        raise Invalid(f"{url!r} names no store", hint=f"like sqlite:state.db; {did_you_mean(url, _schemes())}")
    if scheme == "etcds":
        scheme, access = "etcd", replace(access, tls=True)
    opener = _built_in(scheme) or _plugged_in(scheme)
    return await opener(address, access)


def _built_in(scheme: str) -> Opener | None:
    """Imported only when asked for: an agent has no use for SQLite, nor a laptop for etcd."""
    match scheme:
        case "memory":
            from mandor.store.memory import open_memory

            return open_memory
        case "sqlite":
            from mandor.store.sqlite import open_sqlite

            return open_sqlite
        case "etcd":
            from mandor.store.etcd import open_etcd

            return open_etcd
    return None


def _plugged_in(scheme: str) -> Opener:
    try:
        found: Opener = registry.load(GROUP, scheme)
    except LookupError as error:
        raise Invalid(f"no store is called {scheme!r}", hint=did_you_mean(scheme, _schemes())) from error
    return found


def _schemes() -> set[str]:
    return {"memory", "sqlite", "etcd", "etcds", *registry.names(GROUP)}
