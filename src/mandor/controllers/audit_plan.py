"""Plan for audit records: seals for new records, and seals that are old enough to be deleted."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mandor.model.audit import SEALED_MOST, Audit, Seal, extended, following

_DAY = 86_400.0
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class KeepAudits:
    """Retention of audit records, by age and size."""

    seconds: float = 90 * _DAY
    most_bytes: int = 128 * _MIB


def in_order(records: Iterable[Audit]) -> list[Audit]:
    """Return the records in the order of their commits, without seals."""
    return sorted(
        (each for each in records if each.spec.seal is None), key=lambda each: (each.meta.version, each.meta.name)
    )


def next_seals(head: Seal | None, records: Sequence[Audit]) -> list[Seal]:
    """Return the last seal extended by as many records as fit, and further seals for the others."""
    seals: list[Seal] = []
    seal = head if head is not None else following(None)
    left = list(records)
    while left:
        if len(seal.records) >= SEALED_MOST:
            seal = following(seal)
        room = SEALED_MOST - len(seal.records)
        seal = extended(seal, left[:room])
        seals.append(seal)
        left = left[room:]
    return seals


def old_seals(seals: Sequence[Seal], keep: KeepAudits, now: float) -> list[Seal]:
    """Return the full seals, oldest first, whose records are all too old or exceed the size; the last seal is kept."""
    size = sum(each.size_bytes for each in seals)
    found = []
    for seal in seals[:-1]:
        if seal.newest_at >= now - keep.seconds and size <= keep.most_bytes:
            break
        found.append(seal)
        size -= seal.size_bytes
    return found
