"""Stops what may not run without a control plane when no agent does; all it knows is in the agent's journal."""

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
"""The agent's own time to see to it, if it lives; a stop still ends when its grace does, counted from the deadline."""
AGAIN_SECONDS = 2.0
"""So often what was stopped is stopped again: a start that was on its way may have arrived."""
ENOUGH_SECONDS = 600.0
"""For so long; no start takes longer."""


class GuardControl(Protocol):
    """The agent's end of a guard that outlives it."""

    async def start(self) -> None:
        """There is a guard when this returns. `Unavailable`: there can be none."""

    async def stop(self) -> None:
        """Nothing is left to be guarded."""


@dataclass(frozen=True, slots=True)
class GuardedInstance:
    """An instance that is guarded, as far as it was begun."""

    uid: str
    engine: str
    stop_after: SecondsOrNever
    units: Sequence[tuple[Unit, float]]
    """Each with its grace."""


def guarded(order: Order, memory: Memory) -> bool:
    """Whether it may not run alone, and may run."""
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
    """Looks again and again: at when the control plane was last heard, and at who may not run without it."""

    def __init__(self, journal: Journal, engine: Callable[[str], Engine], clock: Clock, boot: str) -> None:
        self._journal, self._engine, self._clock, self._boot = journal, engine, clock, boot
        self._heard = clock.monotonic()
        self._stamps: Mapping[str, object] = {}
        self._charges: dict[str, GuardedInstance] = {}
        self._stopping: dict[str, asyncio.Task[None]] = {}
        self._stopped: dict[str, tuple[float, float]] = {}
        """When it was first stopped, and when last."""
        self._heard_of()
        self._read()

    @property
    def idle(self) -> bool:
        """Nobody is left who could run alone."""
        now = self._clock.monotonic()
        return not self._stopping and all(
            uid in self._stopped and now - self._stopped[uid][0] > ENOUGH_SECONDS for uid in self._charges
        )

    def look(self) -> None:
        """Begin to stop whoever has run alone for too long."""
        self._heard_of()
        self._read()
        now = self._clock.monotonic()
        for uid, charge in self._charges.items():
            due = self._heard + charge.stop_after
            if now < due:
                self._stopped.pop(uid, None)
            elif now >= due + LATE_SECONDS and uid not in self._stopping and self._wanted(uid, now):
                task = self._stopping[uid] = asyncio.ensure_future(self._stop(charge, due))
                task.add_done_callback(partial(self._leave, uid))

    def _leave(self, uid: str, _: asyncio.Task[None]) -> None:
        del self._stopping[uid]

    def _wanted(self, uid: str, now: float) -> bool:
        first, last = self._stopped.get(uid, (now, -AGAIN_SECONDS))
        return now - last >= AGAIN_SECONDS and now - first <= ENOUGH_SECONDS

    def _heard_of(self) -> None:
        contact = self._journal.contact
        if contact is not None and contact.boot == self._boot and contact.monotonic <= self._clock.monotonic():
            self._heard = contact.monotonic

    def _read(self) -> None:
        """Only what was written since."""
        try:
            stamps = self._journal.stamps()
        except OSError as error:
            log.warning("orders cannot be read: %s", error)
            return
        for uid in self._charges.keys() - stamps.keys():
            del self._charges[uid]
            self._stopped.pop(uid, None)
        for uid, stamp in stamps.items():
            if stamp == self._stamps.get(uid):
                continue
            entry = self._journal.peek(uid)
            charge = guarded_instance(entry) if entry is not None else self._charges.get(uid)
            if charge is not None:
                self._charges[uid] = charge
            else:
                self._charges.pop(uid, None)
        self._stamps = stamps

    async def _stop(self, charge: GuardedInstance, due: float) -> None:
        try:
            self._write_down(charge)
            engine = self._engine(charge.engine)
            left = due - self._clock.monotonic()
            stops = (engine.stop(unit, grace_seconds=max(0.0, left + grace)) for unit, grace in charge.units)
            await asyncio.gather(*stops)
        except Exception as error:  # An engine from elsewhere may raise anything: the others are stopped nevertheless.
            log.warning("%s cannot be stopped: %s; it is tried again", charge.uid, error)
            return
        now = self._clock.monotonic()
        self._stopped[charge.uid] = self._stopped.get(charge.uid, (now, now))[0], now

    def _write_down(self, charge: GuardedInstance) -> None:
        """So that the next agent takes it for what it is, and not for a task that failed."""
        entry = self._journal.peek(charge.uid)
        if entry is None or entry.memory.ending is not None:
            return
        log.warning(
            "%s is stopped: no control plane for %s, and no agent that sees to it", charge.uid, charge.stop_after
        )
        memory = msgspec.structs.replace(entry.memory, ending=cut_off(charge.stop_after))
        try:
            self._journal.write(msgspec.structs.replace(entry, memory=memory))
        except OSError as error:
            log.warning("%s: that it is stopped cannot be written down: %s", charge.uid, error)
