"""Plan for audit records: which seal lists them, and which seals are old enough to go."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mandor.model.audit import SEALED_MOST, Audit, Seal, extended, following

_DAY = 86_400.0
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class KeepAudits:
    """How long audit records are kept, and how many bytes of them."""

    seconds: float = 90 * _DAY
    most_bytes: int = 128 * _MIB


def in_order(records: Iterable[Audit]) -> list[Audit]:
    """Records in the order of their commits, seals left out."""
    return sorted(
        (each for each in records if each.spec.seal is None), key=lambda each: (each.meta.version, each.meta.name)
    )


def next_seals(head: Seal | None, records: Sequence[Audit]) -> list[Seal]:
    """The last seal with as many of these records as it has room for, and further seals for the others."""
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
    """Full seals, the oldest first, whose records are all too old, or are too much; the last seal stays."""
    size = sum(each.size_bytes for each in seals)
    found = []
    for seal in seals[:-1]:
        if seal.newest_at >= now - keep.seconds and size <= keep.most_bytes:
            break
        found.append(seal)
        size -= seal.size_bytes
    return found
