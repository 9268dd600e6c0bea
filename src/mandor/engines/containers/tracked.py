"""State of a unit that is only in the memory of the agent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tracked:
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the unit is being started or removed."""
    starting: bool = False
    progress: str = ""
    """Progress of its start, for users."""
    tried: int = 0
    """Value of the engine's counter when its last start ended."""
    asked: bool = False
    """The stop signal was sent; it is sent once, because some programs end at once on a second one."""
