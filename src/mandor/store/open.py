"""Opens a store by its URL: `memory:`, `sqlite:PATH`, `etcd://h1:p1,h2:p2/prefix`, `etcds://…` with TLS."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from mandor.errors import Invalid
from mandor.lib import registry
from mandor.lib.words import did_you_mean
from mandor.store.access import ANONYMOUS, StoreAccess
from mandor.store.base import Store

__all__ = ["StoreAccess", "open_store"]

GROUP = "mandor.stores"
Opener = Callable[[str, StoreAccess], Awaitable[Store]]
"""Type of an entry point in this group; its first argument is the URL without the scheme."""


async def open_store(url: str, *, access: StoreAccess = ANONYMOUS) -> Store:
    """Open the store that the URL names; entry points (`mandor.stores`) add schemes."""
    scheme, colon, address = url.partition(":")
    if not colon or not scheme:
        raise Invalid(
            f"{url!r} is not the URL of a store", hint=f"like sqlite:state.db; {did_you_mean(url, _schemes())}"
        )
    if scheme == "etcds":
        scheme, access = "etcd", replace(access, tls=True)
    opener = _built_in(scheme) or _plugged_in(scheme)
    return await opener(address, access)


def _built_in(scheme: str) -> Opener | None:
    """Return the opener of a built-in store, imported on demand: an agent needs no SQLite, a laptop no etcd."""
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
        raise Invalid(f"there is no store type {scheme!r}", hint=did_you_mean(scheme, _schemes())) from error
    return found


def _schemes() -> set[str]:
    return {"memory", "sqlite", "etcd", "etcds", *registry.names(GROUP)}
