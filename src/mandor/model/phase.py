"""The phases of an instance, and the only moves between them."""

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

    __hash__ = str.__hash__  # an enum's own is written in Python, and phases are looked up a lot

    @property
    def over(self) -> bool:
        """It holds no resources any more and never runs again."""
        return self in OVER

    @property
    def placed(self) -> bool:
        """It holds room on a node."""
        return self in {Phase.RESERVED, Phase.STARTING, Phase.RUNNING, Phase.STOPPING}


OVER = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED})

MOVES: dict[Phase, frozenset[Phase]] = {
    # Pending → Stopped: told to stop before it had a node.
    Phase.PENDING: frozenset({Phase.RESERVED, Phase.STOPPED}),
    # Reserved, Starting → Failed: it cannot be started (no such program, no such image).
    # Reserved → Running: it began so soon that nobody was told of it before.
    Phase.RESERVED: frozenset({Phase.STARTING, Phase.RUNNING, Phase.STOPPING, Phase.STOPPED, Phase.FAILED, Phase.LOST}),
    Phase.STARTING: frozenset(
        {Phase.RUNNING, Phase.STOPPING, Phase.STOPPED, Phase.SUCCEEDED, Phase.FAILED, Phase.LOST}
    ),
    # Running → Starting: restarted in place.
    Phase.RUNNING: frozenset(
        {Phase.STARTING, Phase.STOPPING, Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED, Phase.LOST}
    ),
    Phase.STOPPING: frozenset({Phase.STOPPED, Phase.SUCCEEDED, Phase.FAILED, Phase.LOST}),
    # Lost → back, when the node returns before it was replaced.
    Phase.LOST: frozenset(
        {Phase.STARTING, Phase.RUNNING, Phase.STOPPING, Phase.STOPPED, Phase.SUCCEEDED, Phase.FAILED}
    ),
    Phase.SUCCEEDED: frozenset(),
    Phase.FAILED: frozenset(),
    Phase.STOPPED: frozenset(),
}


def may_move(before: Phase, after: Phase) -> bool:
    return before == after or after in MOVES[before]
