"""Work that the scheduling loop starts at the end of a turn."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from mandor.placement.framework.profile import Profile
from mandor.scheduler.attempt import Attempt
from mandor.scheduler.permits import PermitSlot
from mandor.scheduler.preempting import Preemption


@dataclass(slots=True)
class PendingWork:
    """The parts of the scheduler add to these lists; the loop empties them and starts the tasks."""

    binds: list[Attempt] = field(default_factory=list)
    """Attempts to write, in commits shared with others."""
    gang_binds: list[Sequence[Attempt]] = field(default_factory=list)
    """Bind batches to write, each in as few commits as possible."""
    binding_cycles: list[tuple[Attempt, PermitSlot | None]] = field(default_factory=list)
    """Attempts whose plugins take part in the bind; with a slot: waiting for permits first."""
    consultations: list[tuple[Attempt, Profile]] = field(default_factory=list)
    """Attempts about which plugins need answers from outside."""
    preemptions: list[Preemption] = field(default_factory=list)
    """Preemptions to write."""
    running: int = 0
    """Binding cycles and consultations that are started or about to be."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to start the next turn of the loop."""
