"""Stops instances with `stop_after` when the agent does not run; reads only the agent's journal."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec

from mandor.agent.journal import Journal
from mandor.agent.order import Entry, Memory, Order
from mandor.agent.status import cut_off
from mandor.agent.sync import grace_of
from mandor.engines.base import Engine, Unit
from mandor.lib.clock import Clock
from mandor.lib.quantity import NEVER, SecondsOrNever

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
LATE_SECONDS = 2.0
"""Seconds after the deadline that are left to the agent; the grace period still counts from the deadline."""
REPEAT_SECONDS = 2.0
"""Interval between repeated stops: a start that was under way may have completed."""
GIVE_UP_SECONDS = 600.0
"""Seconds after which stops are no longer repeated; no start takes longer."""


class GuardControl(Protocol):
    """Starts and stops the guard process, which outlives the agent."""

    async def start(self) -> None:
        """Start the guard unless it runs; raise `Unavailable` if it cannot start."""

    async def stop(self) -> None:
        """Stop the guard."""


@dataclass(frozen=True, slots=True)
class GuardedInstance:
    """An instance with `stop_after`, and its units that were started."""

    uid: str
    engine: str
    stop_after: SecondsOrNever
    units: Sequence[tuple[Unit, float]]
    """Units, each with its grace period in seconds."""


def guarded(order: Order, memory: Memory) -> bool:
    """Return whether the instance must be stopped when the control plane is silent for too long."""
    return order.supervision.stop_after != NEVER and not memory.over and not memory.held


def guarded_instance(entry: Entry) -> GuardedInstance | None:
    order, memory = entry.order, entry.memory
    if not guarded(order, memory):
        return None
    units = tuple(
        (Unit(order.uid, task, known.attempt), grace_of(order, task))
        for task, known in memory.tasks.items()
        if known.attempt and not known.completed
    )
    return GuardedInstance(order.uid, memory.engine, order.supervision.stop_after, units)


class Guard:
    """Compares the time of the last contact with the `stop_after` of each instance, and stops those that are due."""

    def __init__(self, journal: Journal, engine: Callable[[str], Engine], clock: Clock, boot: str) -> None:
        self._journal, self._engine, self._clock, self._boot = journal, engine, clock, boot
        self._last_contact = clock.monotonic()
        self._stamps: Mapping[str, object] = {}
        self._instances: dict[str, GuardedInstance] = {}
        self._stopping: dict[str, asyncio.Task[None]] = {}
        self._stopped: dict[str, tuple[float, float]] = {}
        """Time of the first and the last stop, by uid."""
        self._read_contact()
        self._read()

    @property
    def idle(self) -> bool:
        """Whether no instance is left that may have to be stopped."""
        now = self._clock.monotonic()
        return not self._stopping and all(
            uid in self._stopped and now - self._stopped[uid][0] > GIVE_UP_SECONDS for uid in self._instances
        )

    def look(self) -> None:
        """Start to stop the instances whose `stop_after` is exceeded."""
        self._read_contact()
        self._read()
        now = self._clock.monotonic()
        for uid, instance in self._instances.items():
            due = self._last_contact + instance.stop_after
            if now < due:
                self._stopped.pop(uid, None)
            elif now >= due + LATE_SECONDS and uid not in self._stopping and self._stop_due(uid, now):
                task = self._stopping[uid] = asyncio.ensure_future(self._stop(instance, due))
                task.add_done_callback(partial(self._stop_ended, uid))

    def _stop_ended(self, uid: str, _: asyncio.Task[None]) -> None:
        del self._stopping[uid]

    def _stop_due(self, uid: str, now: float) -> bool:
        first, last = self._stopped.get(uid, (now, -REPEAT_SECONDS))
        return now - last >= REPEAT_SECONDS and now - first <= GIVE_UP_SECONDS

    def _read_contact(self) -> None:
        contact = self._journal.contact
        if contact is not None and contact.boot == self._boot and contact.monotonic <= self._clock.monotonic():
            self._last_contact = contact.monotonic

    def _read(self) -> None:
        """Read the journal entries that changed."""
        try:
            stamps = self._journal.stamps()
        except OSError as error:
            log.warning("cannot read the journal: %s", error)
            return
        for uid in self._instances.keys() - stamps.keys():
            del self._instances[uid]
            self._stopped.pop(uid, None)
        for uid, stamp in stamps.items():
            if stamp == self._stamps.get(uid):
                continue
            entry = self._journal.peek(uid)
            instance = guarded_instance(entry) if entry is not None else self._instances.get(uid)
            if instance is not None:
                self._instances[uid] = instance
            else:
                self._instances.pop(uid, None)
        self._stamps = stamps

    async def _stop(self, instance: GuardedInstance, due: float) -> None:
        try:
            self._record_stop(instance)
            engine = self._engine(instance.engine)
            left = due - self._clock.monotonic()
            stops = (engine.stop(unit, grace_seconds=max(0.0, left + grace)) for unit, grace in instance.units)
            await asyncio.gather(*stops)
        except Exception as error:  # A third-party engine may raise anything; others must still be stopped.
            log.warning("cannot stop instance %s: %s; retrying", instance.uid, error)
            return
        now = self._clock.monotonic()
        self._stopped[instance.uid] = self._stopped.get(instance.uid, (now, now))[0], now

    def _record_stop(self, instance: GuardedInstance) -> None:
        """Record the end in the journal, so that the next agent does not take it for a failed task."""
        entry = self._journal.peek(instance.uid)
        if entry is None or entry.memory.ending is not None:
            return
        log.warning(
            "stopping instance %s: no contact with the control plane for %s, and no agent runs",
            instance.uid,
            instance.stop_after,
        )
        memory = msgspec.structs.replace(entry.memory, ending=cut_off(instance.stop_after))
        try:
            self._journal.write(msgspec.structs.replace(entry, memory=memory))
        except OSError as error:
            log.warning("instance %s: cannot record its stop in the journal: %s", instance.uid, error)
