"""History of a cluster under faults: calls of clients, changes in the store, lifetimes of units.

All times are seconds of the machine's own monotonic clock, which everything in one history shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Outcome = Literal["acknowledged", "refused", "unknown"]


@dataclass(frozen=True)
class Call:
    """One write that a client asked for: `apply`, `scale`, `delete` of a workload, or a change of a node."""

    verb: str
    name: str
    server: int
    begun: float
    ended: float
    outcome: Outcome
    mark: str = ""
    """A label that only this call writes."""
    count: int | None = None
    """The replicas it asks for."""
    revision: int = 0
    """Revision of the write, or the deleted version."""
    why: str = ""
    """Error code of the answer; empty: the call succeeded."""


@dataclass(frozen=True)
class Read:
    """One listing that a client got."""

    server: int
    begun: float
    ended: float
    revision: int


@dataclass(frozen=True)
class Stored:
    """One change of one object, as a watcher of the store saw it."""

    revision: int
    at: float
    kind: str
    name: str
    before: int
    """The version it had; 0: it is new."""
    gone: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Fields that rules use, such as uid, phase and node of an instance, or holder of a lease."""


@dataclass(frozen=True)
class Life:
    """One unit, from its start to the last moment at which it surely ran; None: it runs still."""

    node: str
    uid: str
    task: str
    attempt: int
    name: str
    begun: float
    ended: float | None

    def overlaps(self, other: Life) -> bool:
        return self.begun < _end(other) and other.begun < _end(self)


def _end(life: Life) -> float:
    return float("inf") if life.ended is None else life.ended


@dataclass(frozen=True)
class Final:
    """The cluster when it had its time to come to rest."""

    listings: Sequence[Mapping[str, int]]
    """Workloads and their replicas, by server."""
    versions: Mapping[str, int]
    """Of everything in the store, asked by a way of its own: `kind/name` and the version."""
    instances: Sequence[Mapping[str, str]]
    """Name, uid, workload, node and phase of each."""


@dataclass(frozen=True)
class History:
    calls: Sequence[Call]
    reads: Sequence[Read]
    stored: Sequence[Stored]
    lives: Sequence[Life]
    final: Final
    single: frozenset[str] = frozenset()
    """Workloads with `disconnect.stop_after`: no instance of theirs ever runs twice."""


def story(history: History, word: str) -> list[str]:
    """Return all records about an instance in order of time, by name or uid, to find the cause of a violation."""
    found = [
        (each.at, f"{each.name} at revision {each.revision}: {'gone' if each.gone else each.facts}")
        for each in history.stored
        if word in {each.name, each.facts.get("uid")}
    ]
    for life in history.lives:
        if word in {life.name, life.uid}:
            unit = f"{life.name} ({life.uid}, {life.task}, attempt {life.attempt}) on {life.node}"
            found.append((life.begun, f"{unit} begins"))
            found += [(life.ended, f"{unit} ends")] if life.ended is not None else []
    return [f"{at:.2f} {what}" for at, what in sorted(found)]
