"""Changes a VM request, and releases its claim and records its event in the same commit."""

from collections.abc import Awaitable, Callable, Sequence

from mandor.model.meta import Key
from mandor.model.record import Event
from mandor.model.vm_request import VmRequest
from mandor.store.base import Put, Store, Write
from mandor.store.update import deletion, read, update


def request_key(name: str, namespace: str = "default") -> Key:
    return Key(VmRequest.kind, namespace, name)


async def read_request(store: Store, key: Key) -> VmRequest:
    return await read(store, VmRequest, key)


async def change_request(
    store: Store,
    key: Key,
    change: Callable[[VmRequest], VmRequest],
    *,
    free: bool = False,
    first: VmRequest | None = None,
    event: Callable[[VmRequest], Awaitable[Event | None]] | None = None,
) -> VmRequest:
    """Commit the result of `change`. With `free` the claim is deleted; `event` returns an event about the result."""

    async def also(before: VmRequest, after: VmRequest) -> Sequence[Write]:
        writes = [await deletion(store, before.claim_key)] if free else []
        found = await event(after) if event is not None else None
        return [*writes, Put(found)] if found is not None else writes

    return await update(store, VmRequest, key, change, first=first, also=also)
