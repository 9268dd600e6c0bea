"""Optimistic update of one object: read, change and commit, again after a conflict."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from mandor.errors import Conflict, NotFound
from mandor.model.meta import Key, Object
from mandor.store.base import Check, Delete, Put, Store, Write

TRIES = 20  # attempts before the conflict is raised

T = TypeVar("T", bound=Object)


async def read(store: Store, kind: type[T], key: Key) -> T:
    """Return the object; raise `NotFound` if it does not exist."""
    found = await store.get(key)
    if not isinstance(found, kind):
        raise NotFound(f"there is no {kind.kind} {key.name}", hint=f"`mandor get {kind.plural}` lists them", key=key)
    return found


async def update(
    store: Store,
    kind: type[T],
    key: Key,
    change: Callable[[T], T],
    *,
    first: T | None = None,
    also: Callable[[T, T], Awaitable[Sequence[Write]]] | None = None,
) -> T:
    """Commit the result of `change` and return it; nothing is written if `change` returns its argument.

    `first` is the object as the caller has just read it. `also` gets the object before and after the change, and
    returns further writes of the same commit.
    """
    for _ in range(TRIES):
        before = first if first is not None else await read(store, kind, key)
        first = None
        after = change(before)
        if after is before:
            return before
        more = await also(before, after) if also is not None else ()
        try:
            revision = await store.commit(Put(after), *more)
        except Conflict:
            continue
        return after.stamped(version=revision)
    raise Conflict(f"{key} keeps changing", hint="try again", key=key)


async def deletion(store: Store, key: Key) -> Write:
    """Return the write that deletes an object; if there is none, a check that none is created meanwhile."""
    found = await store.get(key)
    return Check(key, 0) if found is None else Delete(key, found.meta.version)
