"""Who changed what: a record in the same commit as the change, so that neither exists without the other."""

import secrets
from collections.abc import Sequence

from mandor.api.caller import Caller
from mandor.api.changes import differences
from mandor.lib.clock import Clock
from mandor.model.meta import Meta, Object
from mandor.model.record import Audit, AuditSpec
from mandor.store.base import WRITES_MOST, Delete, Put, Write

PATHS_MOST = 50


def audit(clock: Clock, caller: Caller, verb: str, about: str, changed: Sequence[str], address: str) -> Put:
    """One record; its name sorts by time."""
    now = clock.now()
    return Put(
        Audit(
            meta=Meta(name=f"{int(now * 1000):014d}-{secrets.token_hex(4)}"),
            spec=AuditSpec(
                at=now,
                identity=caller.identity,
                verb=verb,
                about=about,
                address=address,
                changed=tuple(changed[:PATHS_MOST]),
            ),
        )
    )


def audits_of(
    clock: Clock, caller: Caller, verb: str, address: str, changes: Sequence[tuple[Write, Object | None]]
) -> list[Put]:
    """A record for each changed object; one for all of them where the commit has no room for more."""
    made = [(write, before) for write, before in changes if isinstance(write, Put | Delete)]
    if not made:
        return []
    if 2 * len(made) > WRITES_MOST:
        keys = [str(write.key) for write, _ in made]
        return [audit(clock, caller, verb, f"{len(keys)} objects", keys, address)]
    return [
        audit(clock, caller, verb_of(verb, write, before), str(write.key), paths_of(write, before), address)
        for write, before in made
    ]


def verb_of(verb: str, write: Write, before: Object | None) -> str:
    if verb:
        return verb
    if isinstance(write, Delete):
        return "delete"
    return "create" if before is None else "change"


def paths_of(write: Write, before: Object | None) -> list[str]:
    """Paths only: a value may be a secret."""
    return [each.path for each in differences(before, write.value)] if isinstance(write, Put) else []
