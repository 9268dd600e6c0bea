"""What nodes need besides their orders: it goes along with them, so that thousands of nodes do not come to ask."""

from collections.abc import Sequence
from typing import NamedTuple

from mandor.model.codec import encode
from mandor.model.instance import Instance
from mandor.model.meta import Key, Object
from mandor.model.record import Namespace
from mandor.model.workload import Release
from mandor.store.base import Change, Store

KNOWN_MOST = 4_096
"""So many are kept encoded, for all streams together."""
SENT_MOST = 1_024
"""So many of them a stream remembers that it has sent; others it sends again."""


class Supply(NamedTuple):
    value: Object
    since: int
    """The version in which it got the form it has: a status that changes changes nothing for a node."""
    line: bytes


class Supplies:
    """Of all streams: encoded once for all of them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[Key, Supply] = {}

    async def get(self, key: Key) -> Supply | None:
        """As it is now; None: there is none."""
        value, known = await self._store.get(key), self._known.pop(key, None)
        if value is None:
            return None
        if known is None or not _same(known.value, value):
            known = Supply(value, value.meta.version, b'{"supply":%b}\n' % encode(value))
        elif known.value is not value:
            known = known._replace(value=value)
        if len(self._known) >= KNOWN_MOST:
            del self._known[next(iter(self._known))]
        self._known[key] = known
        return known


class Supplier:
    """Of one stream: sends each once, and again when it is another."""

    def __init__(self, supplies: Supplies) -> None:
        self._supplies = supplies
        self._sent: dict[Key, int] = {}

    async def lines(self, changes: Sequence[Change]) -> list[bytes]:
        """What the instances among them need and was not sent yet."""
        found = []
        for key in {key for each in changes if isinstance(each.after, Instance) for key in each.after.start_keys}:
            supply = await self._supplies.get(key)
            if supply is not None and self._sent.get(key) != supply.since:
                if len(self._sent) >= SENT_MOST:
                    self._sent.clear()
                self._sent[key] = supply.since
                found.append(supply.line)
        return found


def _same(before: Object, after: Object) -> bool:
    """For whoever has to begin an instance."""
    if before is after:
        return True
    if isinstance(after, Namespace | Release) and before.status != after.status:
        return False
    same = before.meta.uid == after.meta.uid and before.labels == after.labels
    return same and (before.spec is after.spec or before.spec == after.spec)
