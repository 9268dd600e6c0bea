"""The order of things in the verbs of an engine that runs containers; how each step is done, a subclass knows.

A unit gets one order at a time. What can never start is remembered in a file, because no container tells of it.
"""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from mandor.engines.base import Engine, Execution, Launch, Observed, Unit, UnitPhase
from mandor.engines.containers.failures import Failures
from mandor.engines.containers.labels import owner_of
from mandor.engines.containers.refused import Refused
from mandor.engines.containers.tracked import Tracked
from mandor.engines.containers.trouble import taken_port
from mandor.errors import EngineDown, Invalid, MandorError, NotFound, PortTaken, Unavailable

AT_ONCE = min(64, 4 * (os.cpu_count() or 1))
"""Starts at the same time: most of one is work for the processor, and more would only wait for each other."""
KILL_SECONDS = 30.0
"""Longer than the kernel ever takes to end what was killed."""


class ContainerEngine(Engine):
    def __init__(self, directory: Path) -> None:
        self._directory = Path(directory).absolute()
        self._failures = Failures(self._directory / "failures")
        self._tracked: dict[Unit, Tracked] = {}
        self._owner = ""
        self._moment = count(1).__next__
        """Orders and looks, one after the other."""

    @property
    def title(self) -> str:
        """What people call it, in the middle of a sentence."""
        return self.name

    @property
    def owner(self) -> str:
        if not self._owner:
            try:
                self._owner = owner_of(self._directory)
            except OSError as error:
                raise self._unusable(error) from error
        return self._owner

    # How each step is done. What is found of a unit is whatever the engine tells of its container.

    @abstractmethod
    async def _list(self) -> Sequence[tuple[Unit, Awaitable[Observed | None]]]:
        """This agent's units that have a container, each with a closer look at it.

        None: somebody is at it, or it is gone. What was made and nobody begins any more is taken away (`_abandon`).
        """

    @abstractmethod
    async def _find(self, unit: Unit, *, foreign: bool = False) -> Any | None:
        """`foreign`: somebody else's under the same name is a conflict, and not nothing."""

    @abstractmethod
    def _phase(self, unit: Unit, found: Any) -> UnitPhase:
        """Starting: it was made and not begun; unless somebody is at it, whoever made it was interrupted."""

    @abstractmethod
    async def _begin(self, unit: Unit, launch: Launch, tracked: Tracked, found: Any | None) -> None:
        """`found`: what is left of an earlier try. `Invalid`, `NotFound`: it never will start as it was asked for."""

    @abstractmethod
    async def _end(self, unit: Unit, found: Any, tracked: Tracked, grace_seconds: float) -> None:
        """Over when this returns."""

    @abstractmethod
    async def _discard(self, unit: Unit) -> None:
        """Gone when this returns, with everything kept for it; killed first if it runs."""

    def _check_there(self) -> None:
        """`NotFound` where the machine has no such engine; one that is away is not absent."""

    async def _execute(
        self, unit: Unit, found: Any, command: Sequence[str], *, terminal: bool, rows: int, columns: int
    ) -> Execution:
        """In a unit that runs."""
        return await super().exec(unit, command, terminal=terminal, rows=rows, columns=columns)

    async def _send_signal(self, unit: Unit, found: Any, name: str) -> None:
        """Send a signal to the first process of a running unit."""
        await super().signal(unit, name)

    async def _tidy(self, wanted: set[str]) -> None:
        """Take away what belongs to instances of which nothing is left, as after a crash between two steps."""

    async def _leave(self, uid: str) -> None:
        """A task of that instance is gone: take away what they shared, if it was the last one."""

    def _refusal(self, error: Refused, launch: Launch) -> MandorError:
        """Why it can never start, in words."""
        return Invalid(error.message)

    # The verbs.

    async def list(self) -> Sequence[Observed]:
        self._check_there()
        begun = self._moment()
        with self._told("asked what runs"):
            listed = await self._list()
            seen = await asyncio.gather(*(look for _, look in listed))
            shown = {each.unit: each for each in (*self._failures.list(), *seen) if each is not None}
            for unit, tracked in self._tracked.items():
                if tracked.starting and unit not in shown:
                    shown[unit] = Observed(unit=unit, phase=UnitPhase.STARTING, message=tracked.progress)
            known = (*shown, *self._busy(since=begun), *(unit for unit, _ in listed))
            await self._tidy({unit.uid for unit in known})
        return [shown[unit] for unit in sorted(shown)]

    async def start(self, unit: Unit, launch: Launch) -> None:
        tracked = self._tracked.setdefault(unit, Tracked())
        async with tracked.busy:
            self._tracked[unit] = tracked
            if self._failures.knows(unit):
                return
            with self._told(f"told to start {unit}"):
                found = await self._find(unit, foreign=True)
                if found is not None and self._phase(unit, found) is not UnitPhase.STARTING:
                    return
                tracked.starting, tracked.progress = True, ""
                try:
                    await self._try(unit, launch, tracked, found)
                finally:
                    tracked.starting, tracked.tried = False, self._moment()

    async def _try(self, unit: Unit, launch: Launch, tracked: Tracked, found: Any | None) -> None:
        try:
            await self._begin(unit, launch, tracked, found)
        except asyncio.CancelledError:
            # What was asked for last may still be on its way: it must find nothing that it could begin.
            with suppress(Refused, EngineDown):
                await self._discard(unit)
            raise
        except (Invalid, NotFound, Refused) as error:
            await self._discard(unit)
            taken = taken_port(error.message, launch.host_ports.values()) if isinstance(error, Refused) else None
            if taken is not None:
                raise PortTaken(f"port {taken} of this node is taken: {error.message}", port=taken) from error
            if isinstance(error, Refused) and error.passing:
                raise Unavailable(f"{self.title} cannot start it now: {error.message}") from error
            why = self._refusal(error, launch) if isinstance(error, Refused) else error
            self._failures.write(unit, f"{why.message}; {why.hint}" if why.hint else why.message)

    async def stop(self, unit: Unit, *, grace_seconds: float) -> None:
        tracked = self._tracked.setdefault(unit, Tracked())
        async with tracked.busy:
            pass  # What is being started can be stopped only afterwards.
        with self._told(f"told to stop {unit}"):
            found = await self._find(unit)
            if found is not None and self._phase(unit, found) is UnitPhase.STARTING:
                await self._abandon(unit)
                found = await self._find(unit)
            if found is None:
                self._tracked.pop(unit, None)
            elif self._phase(unit, found) is UnitPhase.RUNNING:
                await self._end(unit, found, tracked, grace_seconds)

    async def remove(self, unit: Unit) -> None:
        tracked = self._tracked.setdefault(unit, Tracked())
        async with tracked.busy:
            with self._told(f"told to remove {unit}"):
                await self._discard(unit)
                self._failures.forget(unit)
            self._tracked.pop(unit, None)
        if not any(each.uid == unit.uid for each in self._busy()):
            with self._told(f"told to remove what the tasks of {unit.uid} shared"):
                await self._leave(unit.uid)

    async def exec(
        self, unit: Unit, command: Sequence[str], *, terminal: bool = False, rows: int = 24, columns: int = 80
    ) -> Execution:
        if not command:
            raise Invalid("there is no command to run")
        with self._told(f"told to run a command in {unit}"):
            found = await self._find(unit)
            if found is None or self._phase(unit, found) is not UnitPhase.RUNNING:
                raise not_running(unit)
            return await self._execute(unit, found, command, terminal=terminal, rows=rows, columns=columns)

    async def signal(self, unit: Unit, name: str) -> None:
        with self._told(f"told to signal {unit}"):
            found = await self._find(unit)
            if found is None or self._phase(unit, found) is not UnitPhase.RUNNING:
                raise not_running(unit, "a signal")
            await self._send_signal(unit, found, name)

    # What the steps share.

    async def _find_for_logs(self, unit: Unit) -> Any | None:
        """None: it never started, so there are none."""
        with self._told(f"asked for the logs of {unit}"):
            found = await self._find(unit)
        if found is None and not self._failures.knows(unit):
            raise NotFound(f"there is no unit {unit} here")
        return found

    def _is_busy(self, unit: Unit) -> bool:
        """Somebody is about to start or remove it."""
        tracked = self._tracked.get(unit)
        return tracked is not None and tracked.busy.locked()

    def _busy(self, *, since: int | None = None) -> Iterator[Unit]:
        """`since`: or was busy at that moment or later, and is done."""
        return (
            unit
            for unit, tracked in self._tracked.items()
            if tracked.busy.locked() or (since is not None and tracked.tried > since)
        )

    async def _abandon(self, unit: Unit) -> Observed | None:
        """Take away what was made and is begun by nobody any more: whoever made it was interrupted, and an order to
        begin it, if one is still on its way, finds nothing.

        It may have begun since it was listed, so it is looked at again while nobody can be at it. None: it is gone, or
        somebody is at it. What can neither be taken away now nor is seen to run may run yet, and is shown as that.
        """
        tracked = self._tracked.setdefault(unit, Tracked())
        if tracked.busy.locked():
            return None
        async with tracked.busy:
            found = await self._find(unit)
            if found is not None and self._phase(unit, found) is UnitPhase.STARTING:
                with suppress(Refused):
                    await self._discard(unit)
                    found = None
            self._tracked.pop(unit, None)
        return None if found is None else Observed(unit=unit, phase=UnitPhase.STARTING)

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except Refused as error:
            raise Unavailable(f"{self.title}, {what}: {error.message}") from error
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> EngineDown:
        return EngineDown(f"the {self.name} engine cannot use {self._directory}: {error}")


def not_running(unit: Unit, wanted: str = "exec") -> NotFound:
    return NotFound(f"{unit} is not running", hint=f"{wanted} needs a task that runs")


def taken_away(unit: Unit) -> Unavailable:
    """Whoever ended it meanwhile knows why: that it does not begin says nothing about the unit."""
    return Unavailable(f"{unit} was taken away while it was being started")
