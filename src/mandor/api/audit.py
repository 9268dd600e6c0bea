"""Audit records of commits: one record in the same commit as the change, with every key, old value and new value."""

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from mandor.api.caller import Caller
from mandor.api.changes import HIDDEN, FieldChange, differences
from mandor.lib.clock import Clock
from mandor.model.audit import CHAIN, Audit, AuditChange, AuditEntry, AuditSpec
from mandor.model.features import FEATURES, without
from mandor.model.meta import Meta, Object
from mandor.store.base import Delete, Put, Write

PATHS_MOST = 50
VALUE_MOST = 256  # characters of one value
VALUES_BYTES = 128 * 1024  # paths and values of one record
COMMAND_MOST = 4096  # characters of a command that exec ran
_ENTRY_LEAST = 256
_CHANGES_MOST = 10_000  # compared fields of one object
_SECRETIVE = frozenset({"env", "hash", "sealed", "password", "secret_value", "data", "content"})
"""Names of fields whose values may be secrets: environment variables, texts of files, hashes."""

SERVER = Caller("component:server", "component")
"""The identity in records of what a server does by itself."""
Changes = Sequence[tuple[Write, Object | None]]
"""Writes of a commit, each with the stored object that it replaces."""


@dataclass(frozen=True, slots=True)
class Auditor:
    """Makes the records of one server."""

    clock: Clock
    everywhere: Callable[[], frozenset[str]] = lambda: frozenset(FEATURES)
    """The features that all servers know: records use no other fields."""

    def record(self, caller: Caller, verb: str, about: str, address: str, changes: Iterable[FieldChange] = ()) -> Put:
        """Return a record of an action that is not a write of an object, such as an exec, a join or a backup."""
        return self._made(caller, verb, address, [_entry(about, verb, list(changes), VALUES_BYTES)])

    def of_commit(self, caller: Caller, verb: str, address: str, changes: Changes) -> list[Put]:
        """Return the record of a commit; empty if the commit writes nothing."""
        made = [(write, before) for write, before in changes if isinstance(write, Put | Delete)]
        if not made:
            return []
        budget = max(VALUES_BYTES // len(made), _ENTRY_LEAST)
        status = not caller.user
        entries = [
            _entry(str(write.key), verb_of(verb, write, before), changes_of(write, before, status=status), budget)
            for write, before in made
        ]
        return [self._made(caller, verb, address, entries)]

    def _made(self, caller: Caller, verb: str, address: str, entries: Sequence[AuditEntry]) -> Put:
        now, first, known = self.clock.now(), entries[0], self.everywhere()
        alone = len(entries) == 1
        if alone:
            changed = tuple(each.path for each in first.changes[:PATHS_MOST])
        else:
            changed = () if CHAIN in known else tuple(each.about for each in entries[:PATHS_MOST])
        verbs = {each.verb for each in entries}
        spec = AuditSpec(
            at=now,
            identity=caller.identity,
            verb=verb or (first.verb if len(verbs) == 1 else "commit"),
            about=first.about if alone else f"{len(entries)} objects",
            address=address,
            changed=changed,
            token=caller.token,
            entries=tuple(entries),
        )
        # Names sort by time.
        name = f"{int(now * 1000):014d}-{secrets.token_hex(4)}"
        return Put(Audit(meta=Meta(name=name), spec=spec if CHAIN in known else without(spec, known)))


def verb_of(verb: str, write: Write, before: Object | None) -> str:
    if verb:
        return verb
    if isinstance(write, Delete):
        return "delete"
    return "create" if before is None else "change"


def changes_of(write: Write, before: Object | None, *, status: bool = False) -> list[FieldChange]:
    """Return the changed fields of labels and spec; `status`: also those of the status."""
    after = write.value if isinstance(write, Put) else None
    return differences(before, after, status=status, most=_CHANGES_MOST)


def _entry(about: str, verb: str, changes: Sequence[FieldChange], budget: int) -> AuditEntry:
    """Return an entry whose paths and values have about `budget` bytes at most."""
    kept: list[AuditChange] = []
    for each in changes:
        change = AuditChange(
            path=each.path[:VALUE_MOST], before=_shown(each.path, each.before), after=_shown(each.path, each.after)
        )
        budget -= len(change.path) + len(change.before or "") + len(change.after or "") + 40
        if budget < 0:
            break
        kept.append(change)
    return AuditEntry(about=about, verb=verb, changes=tuple(kept), omitted=len(changes) - len(kept))


def _shown(path: str, value: Any) -> str | None:
    """Return a value as text of limited length; None: no value."""
    if value is None:
        return None
    if not _SECRETIVE.isdisjoint(path.split(".")):
        return HIDDEN
    text = value if isinstance(value, str) else msgspec.json.encode(_bare(value)).decode()
    most = COMMAND_MOST if path == "command" else VALUE_MOST
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def _bare(value: Any) -> Any:
    """Return the value with all fields hidden that may be secret, at any depth."""
    if isinstance(value, dict):
        return {key: HIDDEN if key in _SECRETIVE else _bare(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_bare(part) for part in value]
    return value
