"""The phases of an instance and the allowed transitions between them."""

from enum import StrEnum


class Phase(StrEnum):
    PENDING = "Pending"
    RESERVED = "Reserved"
    STARTING = "Starting"
    RUNNING = "Running"
    STOPPING = "Stopping"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    STOPPED = "Stopped"
    LOST = "Lost"

    __hash__ = str.__hash__  # the hash of an enum is computed in Python, which is slow for a frequent dict key

    @property
    def over(self) -> bool:
        """Whether the instance has ended: it holds no resources and never runs again."""
        return self in OVER

    @property
    def placed(self) -> bool:
        """Whether the instance holds resources on a node."""
        return self in {Phase.RESERVED, Phase.STARTING, Phase.RUNNING, Phase.STOPPING}


OVER = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED})

MOVES: dict[Phase, frozenset[Phase]] = {
    # Pending → Stopped: stopped before it was placed.
    Phase.PENDING: frozenset({Phase.RESERVED, Phase.STOPPED}),
    # Reserved, Starting → Failed: it cannot be started (program or image not found).
    # Reserved → Running: it started before Starting was reported.
    Phase.RESERVED: frozenset({Phase.STARTING, Phase.RUNNING, Phase.STOPPING, Phase.STOPPED, Phase.FAILED, Phase.LOST}),
    Phase.STARTING: frozenset(
        {Phase.RUNNING, Phase.STOPPING, Phase.STOPPED, Phase.SUCCEEDED, Phase.FAILED, Phase.LOST}
    ),
    # Running → Starting: restarted in place.
    Phase.RUNNING: frozenset(
        {Phase.STARTING, Phase.STOPPING, Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED, Phase.LOST}
    ),
    Phase.STOPPING: frozenset({Phase.STOPPED, Phase.SUCCEEDED, Phase.FAILED, Phase.LOST}),
    # Lost → back: the node returned before the instance was replaced.
    Phase.LOST: frozenset(
        {Phase.STARTING, Phase.RUNNING, Phase.STOPPING, Phase.STOPPED, Phase.SUCCEEDED, Phase.FAILED}
    ),
    Phase.SUCCEEDED: frozenset(),
    Phase.FAILED: frozenset(),
    Phase.STOPPED: frozenset(),
}


def may_move(before: Phase, after: Phase) -> bool:
    return before == after or after in MOVES[before]
