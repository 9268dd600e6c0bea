"""The only way into the store: every write is checked against its writer, admitted, audited, committed."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from mandor import __version__
from mandor.api.access import sight
from mandor.api.admission import admit, check_deletable, completed, known_engines
from mandor.api.beside import Beside
from mandor.api.caller import Caller
from mandor.api.counts import check_counts
from mandor.api.grants import check_grants
from mandor.api.outward import check_outward
from mandor.api.parts import ApiParts
from mandor.api.pools import check_pool
from mandor.api.user_range import with_users
from mandor.api.versions import check_known
from mandor.api.writers import check_reach, check_write
from mandor.errors import Conflict, Forbidden, Invalid
from mandor.model.beyond import beyond_of, carried
from mandor.model.instance import Instance
from mandor.model.manifest import DEFAULT_NAMESPACE
from mandor.model.meta import Key, Object
from mandor.model.record import Event
from mandor.store.base import OPERATIONS_MOST, Check, Delete, Filter, Put, Write, check_writes

CHUNK = 10
"""After so many objects others get their turn."""

_Paired = Sequence[tuple[Write, Object | None]]
"""What is to be written, and what is stored in its place."""


@dataclass(frozen=True, slots=True)
class Author:
    """Who writes, from where, and what they called it."""

    caller: Caller
    address: str = ""
    verb: str = ""
    """For the audit; empty: create, change or delete, as it is."""


async def commit_as(parts: ApiParts, author: Author, writes: Sequence[Write], *, along: Sequence[Write] = ()) -> int:
    """Commit the writes if this caller may make them; return the revision. `along`: what the server itself adds."""
    check_writes(writes)
    caller = author.caller
    paired: _Paired = [_kept(parts, write, await _before(parts, caller, write)) for write in writes]
    if caller.user:
        paired = await _completed(parts, paired)
    writes = [write for write, _ in paired]
    for write, before in paired:
        await _check(parts, caller, write, before)
    if caller.user:
        await check_grants(parts.store, caller, [write.value for write in writes if isinstance(write, Put)])
    checks = await _admit(parts, paired) if caller.user else []
    _spend(parts, caller, writes)
    if "namespace-levels" in parts.everywhere():
        writes, cluster = await with_users(parts.store, writes)
        along = (*along, *cluster)
    # A node writes its own status and events, thousands of times a minute: that is no decision of anybody.
    audits = [] if caller.role == "node" else parts.auditor.of_commit(caller, author.verb, author.address, paired)
    room = OPERATIONS_MOST - len(writes) - len(along) - len(audits)
    return await parts.store.commit(*writes, *along, *audits, *checks[:room])


def _kept(parts: ApiParts, write: Write, before: Object | None) -> tuple[Write, Object | None]:
    """Nobody erases what this server does not know, and nobody writes such a thing through it."""
    if not isinstance(write, Put):
        return write, before
    beyond = beyond_of(write.value.meta)
    if beyond is not None and (before is None or beyond_of(before.meta) != beyond):
        raise Invalid(
            f"this server, version {__version__}, does not know {beyond}",
            hint="a newer client may only use what all servers know: upgrade the servers first",
            key=write.key,
        )
    check_known(write.value, parts.everywhere)
    value = carried(before, write.value)
    return (write if value is write.value else Put(value)), before


async def _completed(parts: ApiParts, paired: _Paired) -> _Paired:
    beside = Beside(parts.store, (write.value for write, _ in paired if isinstance(write, Put)))
    return [
        (Put(await completed(parts, before, write.value, beside)) if isinstance(write, Put) else write, before)
        for write, before in paired
    ]


async def _before(parts: ApiParts, caller: Caller, write: Write) -> Object | None:
    """What is stored; `Conflict` at once if the write was made for another version. Rights come first, and an object
    that the caller may not see is treated as one that does not exist."""
    if isinstance(write, Check):
        seen = await sight(parts.store, caller, write.key.kind, _narrow(caller, write.key))
        before = await parts.store.get(write.key)
        if before is not None and not (seen.where.matches(before) and (seen.shows is None or seen.shows(before))):
            before = None
    else:
        check_reach(caller, write.key)
        if isinstance(write, Put) and caller.role == "node" and write.value.node != caller.node:
            raise Forbidden(f"{write.key} is no business of {caller.identity}", key=write.key)
        before = await parts.store.get(write.key)
        if before is not None and caller.role == "node" and before.node != caller.node:
            before = None
    version = before.meta.version if before is not None else 0
    wanted = write.value.meta.version if isinstance(write, Put) else write.version
    if wanted != version or (isinstance(write, Delete) and not version):
        raise moved(write.key, wanted, version)
    return before


def moved(key: Key, wanted: int, version: int) -> Conflict:
    """Somebody wrote first."""
    if not version:
        story = f"{key} does not exist (any more)"
    else:
        story = f"{key} has version {version} by now, not {wanted}" if wanted else f"{key} exists already"
    return Conflict(story, hint="read it again, then retry", key=key, version=version)


async def _check(parts: ApiParts, caller: Caller, write: Write, before: Object | None) -> None:
    if isinstance(write, Check):
        return
    check_write(caller, before, write.value if isinstance(write, Put) else None)
    if isinstance(write, Put) and isinstance(write.value, Event) and caller.role == "node":
        await _check_event(parts, caller, write.value)
    if isinstance(write, Put) and caller.user:
        check_counts(before, write.value)
        check_pool(before, write.value)
    if isinstance(write, Delete) and caller.user and before is not None:
        await check_deletable(parts.store, before)


def _narrow(caller: Caller, key: Key) -> Filter:
    return Filter(namespace=key.namespace or None, node=caller.node or None)


async def _check_event(parts: ApiParts, caller: Caller, event: Event) -> None:
    """A node records events about itself and about instances of namespaces where it has instances; the instance itself
    may be gone."""
    kind, _, rest = event.spec.about.partition(" ")
    namespace, _, name = rest.rpartition("/")
    if kind not in {"instance", "node"}:
        raise Forbidden(f"{caller.identity} may tell only of itself and of its instances")
    foreign = Forbidden(f"an event about {event.spec.about} is no business of {caller.identity}")
    if event.meta.namespace != (namespace if kind == "instance" else DEFAULT_NAMESPACE):
        raise foreign
    if kind == "instance":
        found = await parts.store.get(Key("instance", namespace, name))
        own = isinstance(found, Instance) and found.node == caller.node
        if not own and (found is not None or not (await _instances_of(parts, caller.node, namespace))):
            raise foreign


async def _instances_of(parts: ApiParts, node: str, namespace: str) -> Sequence[Object]:
    return (await parts.store.list("instance", Filter(namespace, node))).items


async def _admit(parts: ApiParts, paired: _Paired) -> list[Check]:
    values = [write.value for write, _ in paired if isinstance(write, Put)]
    if not values:
        return []
    engines = await known_engines(parts.store, parts.settings.engines)
    written = {write.key for write, _ in paired}
    checks: dict[Key, Check] = {}
    beside = Beside(parts.store, values)
    for number, value in enumerate(values, 1):
        if number % CHUNK == 0:
            await asyncio.sleep(0)
        check_outward(parts, value)
        for check in await admit(value, engines, beside):
            if check.key not in written:
                checks[check.key] = check
    return list(checks.values())


def _spend(parts: ApiParts, caller: Caller, writes: Sequence[Write]) -> None:
    """Audits and events take room in the store, so nobody may write them without bound."""
    if caller.user:
        parts.write_rates.spend(caller.identity, len(writes))
    elif caller.role == "node":
        events = sum(isinstance(write, Put) and isinstance(write.value, Event) for write in writes)
        if events:
            parts.write_rates.spend(caller.identity, events)
