"""Writes of API callers: each write is checked against its caller, admitted, audited and committed, exactly once.

`commit_as` does all of it for writes whose versions the caller knows. An apply does the same in two steps: it checks
each object with a `WriteChecker` to plan and report the changes, and commits the checked writes with `commit_checked`.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mandor import __version__
from mandor.api.access import read_scope
from mandor.api.admission import Reference, admit, check_deletable, completed, known_engines
from mandor.api.allowance import check_neighbour_namespaces
from mandor.api.caller import Caller
from mandor.api.counts import check_counts
from mandor.api.grants import check_grants
from mandor.api.networks import check_network_change
from mandor.api.outward import check_outward
from mandor.api.parts import ApiParts
from mandor.api.pending_objects import PendingObjects
from mandor.api.pools import check_pool
from mandor.api.user_range import with_users
from mandor.api.versions import check_known
from mandor.api.writers import check_reach, check_write
from mandor.errors import Conflict, Forbidden, Invalid
from mandor.model.instance import Instance
from mandor.model.manifest import DEFAULT_NAMESPACE
from mandor.model.meta import Key, Object
from mandor.model.record import Event
from mandor.model.unknown_fields import keep_unknown_fields, unknown_fields_of
from mandor.store.base import OPERATIONS_MOST, Check, Delete, Filter, Put, Write, check_writes

CHUNK = 10
"""Writes that are checked before other tasks of the event loop run."""


@dataclass(frozen=True, slots=True)
class Author:
    """The caller of a write, its address, and the verb of the audit record."""

    caller: Caller
    address: str = ""
    verb: str = ""
    """Empty: create, change or delete, depending on the write."""


@dataclass(frozen=True, slots=True)
class CheckedWrite:
    """A write that a `WriteChecker` has completed and admitted; only these are committed."""

    write: Write
    before: Object | None
    """The stored object that the write replaces."""
    references: tuple[Reference, ...] = ()
    """Objects that must not change before the commit, such as the namespace of a workload."""


class WriteChecker:
    """Checks the writes of one request: rights, ownership of fields and admission."""

    def __init__(
        self, parts: ApiParts, caller: Caller, pending: PendingObjects, *, complete: bool, forecast: bool = False
    ) -> None:
        """`complete`: add the defaults of the namespace, and seal secrets.

        `forecast`: nothing will be committed, so the caller needs no rights to write; the writes are admitted all the
        same.
        """
        self._parts, self._caller, self._pending = parts, caller, pending
        self._complete, self._forecast = complete, forecast
        self._engines: frozenset[str] | None = None
        self._checked = 0

    async def check(self, write: Write, before: Object | None) -> CheckedWrite:
        """Return the write as it may be committed; raise if the caller may not make it or it is not admitted."""
        self._checked += 1
        if self._checked % CHUNK == 0:
            await asyncio.sleep(0)
        if isinstance(write, Check):
            return CheckedWrite(write, before)
        if isinstance(write, Delete):
            check_write(self._caller, before, None)
            if self._caller.user and before is not None:
                await check_deletable(self._parts.store, before)
            return CheckedWrite(write, before)
        return await self._check_put(_with_unknown_fields(self._parts, write.value, before), before)

    async def _check_put(self, value: Object, before: Object | None) -> CheckedWrite:
        parts, caller = self._parts, self._caller
        if self._complete:
            value = await completed(parts, before, value, self._pending)
        if not self._forecast:
            check_write(caller, before, value)
            if isinstance(value, Event) and caller.role == "node":
                await _check_event(parts, caller, value)
        if not caller.user:
            return CheckedWrite(Put(value), before)
        check_neighbour_namespaces(caller, before, value)
        check_counts(before, value)
        check_pool(before, value)
        check_network_change(before, value)
        if not self._forecast:
            await check_grants(parts.store, caller, value, self._pending.values())
        if self._engines is None:
            self._engines = await known_engines(parts.store, parts.settings.engines)
        references = await admit(value, self._engines, self._pending)
        check_outward(parts, value)
        return CheckedWrite(Put(value), before, tuple(references))


async def commit_as(parts: ApiParts, author: Author, writes: Sequence[Write], *, along: Sequence[Write] = ()) -> int:
    """Check and commit the writes of a caller; return the revision. `along`: writes that the server itself adds."""
    check_writes(writes)
    caller = author.caller
    stored = [await _before(parts, caller, write) for write in writes]
    pending = PendingObjects(parts.store, (write.value for write in writes if isinstance(write, Put)))
    checker = WriteChecker(parts, caller, pending, complete=caller.user)
    checked = [await checker.check(write, before) for write, before in zip(writes, stored, strict=True)]
    return await commit_checked(parts, author, checked, along=along)


async def commit_checked(
    parts: ApiParts,
    author: Author,
    checked: Sequence[CheckedWrite],
    *,
    along: Sequence[Write] = (),
    earlier: Mapping[Key, int] | None = None,
) -> int:
    """Commit writes that were checked; return the revision.

    `earlier`: objects that the same request committed before, with the revision of that commit.
    """
    caller = author.caller
    writes: Sequence[Write] = [each.write for each in checked]
    check_writes(writes)
    checks = _checks(checked, earlier or {})
    _spend(parts, caller, writes)
    if "namespace-levels" in parts.everywhere():
        writes, cluster = await with_users(parts.store, writes)
        along = (*along, *cluster)
    # Status and events of nodes are not audited: thousands per minute, and no decision of a person.
    changes = [(each.write, each.before) for each in checked]
    audits = [] if caller.role == "node" else parts.auditor.of_commit(caller, author.verb, author.address, changes)
    room = OPERATIONS_MOST - len(writes) - len(along) - len(audits)
    return await parts.store.commit(*writes, *along, *audits, *checks[:room])


def _checks(checked: Iterable[CheckedWrite], earlier: Mapping[Key, int]) -> list[Check]:
    """Return a check of every referenced object that this commit does not write itself."""
    checked = list(checked)
    written = {each.write.key for each in checked}
    versions = {reference.key: reference.version for each in checked for reference in each.references}
    return [Check(key, earlier.get(key, version)) for key, version in versions.items() if key not in written]


def _with_unknown_fields(parts: ApiParts, value: Object, before: Object | None) -> Object:
    """Return the object with the stored fields that this server does not know; raise if the caller sends such ones."""
    unknown = unknown_fields_of(value.meta)
    if unknown is not None and (before is None or unknown_fields_of(before.meta) != unknown):
        raise Invalid(
            f"this server, version {__version__}, does not know {unknown}",
            hint="a newer client may only use what all servers know: upgrade the servers first",
            key=value.key,
        )
    check_known(value, parts.everywhere)
    return keep_unknown_fields(before, value)


async def _before(parts: ApiParts, caller: Caller, write: Write) -> Object | None:
    """Return the stored object; raise `Conflict` if the write is for another version.

    Rights are checked first, and an object that the caller may not read is treated as one that does not exist.
    """
    if isinstance(write, Check):
        seen = await read_scope(parts.store, caller, write.key.kind, _narrow(caller, write.key))
        before = await parts.store.get(write.key)
        if before is not None and not (seen.where.matches(before) and (seen.shows is None or seen.shows(before))):
            before = None
    else:
        check_reach(caller, write.key)
        if isinstance(write, Put) and caller.role == "node" and write.value.node != caller.node:
            raise Forbidden(f"{write.key} does not belong to {caller.identity}", key=write.key)
        before = await parts.store.get(write.key)
        if before is not None and caller.role == "node" and before.node != caller.node:
            before = None
    version = before.meta.version if before is not None else 0
    wanted = write.value.meta.version if isinstance(write, Put) else write.version
    if wanted != version or (isinstance(write, Delete) and not version):
        raise moved(write.key, wanted, version)
    return before


def moved(key: Key, wanted: int, version: int) -> Conflict:
    """Return the error for an object that another writer has changed, created or deleted."""
    if not version:
        message = f"{key} does not exist (any more)"
    else:
        message = f"{key} has version {version} by now, not {wanted}" if wanted else f"{key} exists already"
    return Conflict(message, hint="read it again, then retry", key=key, version=version)


def _narrow(caller: Caller, key: Key) -> Filter:
    return Filter(namespace=key.namespace or None, node=caller.node or None)


async def _check_event(parts: ApiParts, caller: Caller, event: Event) -> None:
    """Raise `Forbidden` unless a node's event is about itself, or about an instance of a namespace where it has
    instances; the instance itself may be gone."""
    kind, _, rest = event.spec.about.partition(" ")
    namespace, _, name = rest.rpartition("/")
    if kind not in {"instance", "node"}:
        raise Forbidden(f"{caller.identity} may write events only about itself and its instances")
    foreign = Forbidden(f"{caller.identity} may not write an event about {event.spec.about}")
    if event.meta.namespace != (namespace if kind == "instance" else DEFAULT_NAMESPACE):
        raise foreign
    if kind == "instance":
        found = await parts.store.get(Key("instance", namespace, name))
        own = isinstance(found, Instance) and found.node == caller.node
        if not own and (found is not None or not (await _instances_of(parts, caller.node, namespace))):
            raise foreign


async def _instances_of(parts: ApiParts, node: str, namespace: str) -> Sequence[Object]:
    return (await parts.store.list("instance", Filter(namespace, node))).items


def _spend(parts: ApiParts, caller: Caller, writes: Sequence[Write]) -> None:
    """Count writes of users and events of nodes against their rate limit: both take space in the store."""
    if caller.user:
        parts.write_rates.spend(caller.identity, len(writes))
    elif caller.role == "node":
        events = sum(isinstance(write, Put) and isinstance(write.value, Event) for write in writes)
        if events:
            parts.write_rates.spend(caller.identity, events)
