"""What the engine object remembers of a unit besides what the engine itself knows."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tracked:
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while it is being started or removed."""
    starting: bool = False
    progress: str = ""
    """What its start waits for, in words."""
    tried: int = 0
    """The moment at which the latest try to start it was over."""
    asked: bool = False
    """It got its stop signal: programs may take a second one for impatience."""
