"""AuditKeeper: extends the hash chain over new audit records, and deletes old ones after recording that."""

import logging
import secrets
from collections.abc import Callable, Sequence

from mandor.controllers.audit_plan import KeepAudits, in_order, next_seals, old_seals
from mandor.errors import Conflict, MandorError
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.model.audit import CHAIN, EXPIRE, SEALED_MOST, Audit, AuditEntry, AuditSpec, Seal, seal_name
from mandor.model.features import FEATURES
from mandor.model.meta import Key, Meta
from mandor.store.base import WRITES_MOST, Change, Delete, Put, Store, Write
from mandor.store.mirror import Mirror

log = logging.getLogger(__name__)

IDENTITY = "component:controllers"
SEAL_SECONDS = 1.0
"""Seconds between two seals."""
EXPIRE_SECONDS = 60.0
"""Seconds between two searches for old records."""
BACKOFF = Backoff(first_seconds=1.0, most_seconds=30.0, jitter=0.3)


class AuditKeeper:
    """Runs in the server that leads the controllers; versions of seals keep a former leader from forking the chain."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        keep: KeepAudits | None = None,
        everywhere: Callable[[], frozenset[str]] = lambda: frozenset(FEATURES),
    ) -> None:
        self._store, self._clock, self._everywhere = store, clock, everywhere
        self._keep = keep or KeepAudits()
        self._mirror = Mirror(store, Audit.kind)
        self._mirror.listen(self._observe)
        self._new: dict[str, Audit] = {}
        self._sealed: set[str] = set()
        """Names of records that are listed in a seal."""
        self._seals: dict[int, Audit] = {}
        self._anchors: set[str] = set()
        self._expired_at = float("-inf")

    async def run(self) -> None:
        """Seal and expire records until cancelled."""
        failures = 0
        async with self._mirror:
            await self._mirror.synced()
            while True:
                pause = SEAL_SECONDS
                try:
                    await self._turn()
                    failures = 0
                except MandorError as error:
                    # After a conflict the seal that another leader wrote is in the mirror soon.
                    failures += 1
                    pause = BACKOFF.pause(failures)
                    if failures > 2 or not isinstance(error, Conflict):
                        log.warning("cannot seal audit records: %s", error)
                await self._clock.sleep(pause)

    def after(self, cursor: int, most: int) -> list[tuple[int, Audit]]:
        """Return up to `most` sealed records after position `cursor` of the chain, each with the position after it."""
        found: list[tuple[int, Audit]] = []
        for number in sorted(self._seals):
            seal = _of(self._seals[number])
            if seal.end <= cursor:
                continue
            for place, (name, _) in enumerate(seal.records, seal.first + 1):
                record = self._mirror.get(Key(Audit.kind, "", name))
                if place > cursor and isinstance(record, Audit):
                    found.append((place, record))
                if len(found) >= most:
                    return found
        return found

    # Observed changes.

    def _observe(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change.after, Audit):
                self._add(change.after)
            elif isinstance(change.before, Audit):
                self._remove(change.before)

    def _add(self, record: Audit) -> None:
        seal = record.spec.seal
        if seal is not None:
            self._seals[seal.number] = record
            for name, _ in seal.records:
                self._sealed.add(name)
                self._new.pop(name, None)
        elif record.meta.name not in self._sealed:
            self._new[record.meta.name] = record
        if record.spec.verb == EXPIRE:
            self._anchors.add(record.spec.anchor)

    def _remove(self, record: Audit) -> None:
        seal = record.spec.seal
        self._new.pop(record.meta.name, None)
        self._anchors.discard(record.spec.anchor)
        if seal is not None:
            if seal.digest not in self._anchors:
                log.error("seal %d of the audit chain was deleted outside of its retention", seal.number)
            self._seals.pop(seal.number, None)
            self._sealed.difference_update(name for name, _ in seal.records)

    # Writes.

    async def _turn(self) -> None:
        if CHAIN not in self._everywhere():
            return
        if self._new:
            await self._seal()
        if self._clock.monotonic() - self._expired_at >= EXPIRE_SECONDS:
            self._expired_at = self._clock.monotonic()
            await self._expire()

    async def _seal(self) -> None:
        head = self._seals[max(self._seals)] if self._seals else None
        for seal in next_seals(_of(head) if head is not None else None, in_order(self._new.values())):
            name = seal_name(seal.number)
            spec = AuditSpec(
                at=self._clock.now(), identity=IDENTITY, verb="seal", about=f"{len(seal.records)} records", seal=seal
            )
            if head is not None and head.meta.name == name:
                made = head.changed(spec=spec)
            else:
                made = Audit(meta=Meta(name=name), spec=spec)
            await self._mirror.reached(await self._store.commit(Put(made)))
            if len(seal.records) == SEALED_MOST:
                log.info("audit chain: seal %d:%d:%s is full", seal.number, len(seal.records), seal.digest)

    async def _expire(self) -> None:
        seals = [_of(self._seals[number]) for number in sorted(self._seals)]
        for seal in old_seals(seals, self._keep, self._clock.now()):
            # The record comes first: a deletion that is interrupted is resumed later.
            if seal.digest not in self._anchors:
                await self._mirror.reached(await self._store.commit(Put(self._announced(seal))))
            names = [*(name for name, _ in seal.records), seal_name(seal.number)]
            for start in range(0, len(names), WRITES_MOST):
                await self._delete(names[start : start + WRITES_MOST])
            log.info("deleted %d audit records of seal %d: too old, or too many bytes", len(names) - 1, seal.number)

    async def _delete(self, names: Sequence[str]) -> None:
        found = await self._store.get_all([Key(Audit.kind, "", name) for name in names])
        writes: list[Write] = [Delete(each.key, each.meta.version) for each in found if each is not None]
        if writes:
            await self._mirror.reached(await self._store.commit(*writes))

    def _announced(self, seal: Seal) -> Audit:
        now = self._clock.now()
        return Audit(
            meta=Meta(name=f"{int(now * 1000):014d}-{secrets.token_hex(4)}"),
            spec=AuditSpec(
                at=now,
                identity=IDENTITY,
                verb=EXPIRE,
                about=f"{len(seal.records)} audit records",
                anchor=seal.digest,
                entries=(AuditEntry(about=f"audit {seal_name(seal.number)}", verb="delete"),),
            ),
        )


def _of(record: Audit) -> Seal:
    assert record.spec.seal is not None
    return record.spec.seal
