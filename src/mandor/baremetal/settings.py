"""How tasks are worked on: tries, pauses, patience."""

from dataclasses import dataclass, field

from mandor.lib.backoff import Backoff


@dataclass(frozen=True, slots=True)
class TaskSettings:
    attempts: int = 4
    """So many tries, and then it has failed."""
    pause: Backoff = field(default_factory=lambda: Backoff(first_seconds=1.0, most_seconds=60.0, jitter=0.3))
    """Between two of them."""
    verdict_seconds: float = 30.0
    """The scheduler answers within this time, or the try has failed."""
    stuck_seconds: float = 60.0
    """A task that nobody has touched for so long is handed out again."""
    workers: int = 256
    """So many tasks are worked on at the same time."""
    kept_seconds: float = 86_400.0
    kept_most: int = 20_000
    """Tasks that ended are kept so long, and so many of them."""
    spares_kept_seconds: float = 7 * 86_400.0
    spares_kept_most: int = 1_000
    """So are spares."""
    sweep_seconds: float = 1.0
