"""Limits and intervals for processing VM requests."""

from dataclasses import dataclass, field

from mandor.lib.delay import Delay


@dataclass(frozen=True, slots=True)
class VmRequestSettings:
    attempts: int = 4
    """Attempts before a request fails."""
    pause: Delay = field(default_factory=lambda: Delay(first_seconds=1.0, most_seconds=60.0))
    """Pause between two attempts."""
    jitter: float = 0.3
    """Share by which a pause is randomly longer or shorter."""
    verdict_seconds: float = 30.0
    """Seconds to wait for the scheduler's decision before an attempt fails."""
    stuck_seconds: float = 60.0
    """Seconds without progress after which a request is queued again."""
    workers: int = 256
    """Requests that are processed at the same time."""
    kept_seconds: float = 86_400.0
    kept_most: int = 20_000
    """Age in seconds, and number, of ended requests that are kept."""
    spares_kept_seconds: float = 7 * 86_400.0
    spares_kept_most: int = 1_000
    """Age in seconds, and number, of ended spares that are kept."""
    sweep_seconds: float = 1.0
