"""The verbs of a container engine as a sequence of steps; a subclass implements the steps.

Starts and removals of one unit run one at a time. A unit that can never start is recorded in a file, because it has no
container."""

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
from mandor.engines.containers.error_messages import taken_port
from mandor.engines.containers.failures import Failures
from mandor.engines.containers.labels import owner_of
from mandor.engines.containers.refused import Refused
from mandor.engines.containers.tracked import Tracked
from mandor.errors import EngineDown, Invalid, MandorError, NotFound, PortTaken, Unavailable

AT_ONCE = min(64, 4 * (os.cpu_count() or 1))
"""Limit of concurrent starts: a start is mostly CPU work, and more of them would only wait for each other."""
KILL_SECONDS = 30.0
"""Seconds to wait for the end of a killed container; the kernel takes less."""


class ContainerEngine(Engine):
    def __init__(self, directory: Path) -> None:
        self._directory = Path(directory).absolute()
        self._failures = Failures(self._directory / "failures")
        self._tracked: dict[Unit, Tracked] = {}
        self._owner = ""
        self._moment = count(1).__next__
        """Counter that orders starts and listings in time."""

    @property
    def title(self) -> str:
        """The name of the engine in messages."""
        return self.name

    @property
    def owner(self) -> str:
        if not self._owner:
            try:
                self._owner = owner_of(self._directory)
            except OSError as error:
                raise self._unusable(error) from error
        return self._owner

    # Steps of a subclass. `found` is the description of a container in the format of its engine.

    @abstractmethod
    async def _list(self) -> Sequence[tuple[Unit, Awaitable[Observed | None]]]:
        """Return this agent's units that have a container, each with an awaitable that inspects it.

        The awaitable returns None if the unit is being started or removed, or is gone. A container that was created and
        not started is removed (`_abandon`).
        """

    @abstractmethod
    async def _find(self, unit: Unit, *, foreign: bool = False) -> Any | None:
        """Return the container of a unit; None: there is none. `foreign`: raise `Conflict` for a container of the same
        name that belongs to another agent or program."""

    @abstractmethod
    def _phase(self, unit: Unit, found: Any) -> UnitPhase:
        """Return the phase of a container; STARTING: it was created and not started. If no start is in progress, the
        start was interrupted."""

    @abstractmethod
    async def _begin(self, unit: Unit, launch: Launch, tracked: Tracked, found: Any | None) -> None:
        """Create and start a container. `found`: the container of an earlier attempt. `Invalid`, `NotFound`: it can
        never start with this launch."""

    @abstractmethod
    async def _end(self, unit: Unit, found: Any, tracked: Tracked, grace_seconds: float) -> None:
        """Stop a running container and return when it has ended."""

    @abstractmethod
    async def _discard(self, unit: Unit) -> None:
        """Remove the container and everything kept for it; a running one is killed first."""

    def _check_there(self) -> None:
        """Raise `NotFound` if the engine is not installed on this machine; an engine that is down is installed."""

    async def _execute(
        self, unit: Unit, found: Any, command: Sequence[str], *, terminal: bool, rows: int, columns: int
    ) -> Execution:
        """Run a command in a running container."""
        return await super().exec(unit, command, terminal=terminal, rows=rows, columns=columns)

    async def _send_signal(self, unit: Unit, found: Any, name: str) -> None:
        """Send a signal to the first process of a running unit."""
        await super().signal(unit, name)

    async def _tidy(self, wanted: set[str]) -> None:
        """Remove what belongs to instances without units, such as sandboxes left by a crash."""

    async def _leave(self, uid: str) -> None:
        """Remove what the tasks of an instance shared, if none of them is left."""

    def _refusal(self, error: Refused, launch: Launch) -> MandorError:
        """Return the reason why the unit can never start, as an error for users."""
        return Invalid(error.message)

    # The verbs.

    async def list(self) -> Sequence[Observed]:
        self._check_there()
        begun = self._moment()
        with self._engine_errors("list its units"):
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
            with self._engine_errors(f"start {unit}"):
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
            # The request that was cancelled may still arrive: it must find no container to start.
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
            pass  # A unit that is being started is stopped after its start.
        with self._engine_errors(f"stop {unit}"):
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
            with self._engine_errors(f"remove {unit}"):
                await self._discard(unit)
                self._failures.forget(unit)
            self._tracked.pop(unit, None)
        if not any(each.uid == unit.uid for each in self._busy()):
            with self._engine_errors(f"remove the sandbox of {unit.uid}"):
                await self._leave(unit.uid)

    async def exec(
        self, unit: Unit, command: Sequence[str], *, terminal: bool = False, rows: int = 24, columns: int = 80
    ) -> Execution:
        if not command:
            raise Invalid("there is no command to run")
        with self._engine_errors(f"run a command in {unit}"):
            found = await self._find(unit)
            if found is None or self._phase(unit, found) is not UnitPhase.RUNNING:
                raise not_running(unit)
            return await self._execute(unit, found, command, terminal=terminal, rows=rows, columns=columns)

    async def signal(self, unit: Unit, name: str) -> None:
        with self._engine_errors(f"send a signal to {unit}"):
            found = await self._find(unit)
            if found is None or self._phase(unit, found) is not UnitPhase.RUNNING:
                raise not_running(unit, "a signal")
            await self._send_signal(unit, found, name)

    # Helpers of the verbs and steps.

    async def _find_for_logs(self, unit: Unit) -> Any | None:
        """Return the container of a unit for its logs; None: it never started and has no logs."""
        with self._engine_errors(f"read the logs of {unit}"):
            found = await self._find(unit)
        if found is None and not self._failures.knows(unit):
            raise NotFound(f"there is no unit {unit} here")
        return found

    def _is_busy(self, unit: Unit) -> bool:
        """Return whether the unit is being started or removed."""
        tracked = self._tracked.get(unit)
        return tracked is not None and tracked.busy.locked()

    def _busy(self, *, since: int | None = None) -> Iterator[Unit]:
        """Yield the units that are being started or removed; `since`: also those whose start ended after that
        moment."""
        return (
            unit
            for unit, tracked in self._tracked.items()
            if tracked.busy.locked() or (since is not None and tracked.tried > since)
        )

    async def _abandon(self, unit: Unit) -> Observed | None:
        """Remove a container whose start was interrupted; a start request that still arrives then finds nothing.

        The container may have started since it was listed, so it is inspected again under the lock. Return None if it
        is gone or being started; a container that can neither be removed nor is running is reported as starting,
        because it may still start."""
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
    def _engine_errors(self, action: str) -> Iterator[None]:
        """Turn errors of the engine into errors of the interface; `action` continues "ENGINE cannot"."""
        try:
            yield
        except Refused as error:
            raise Unavailable(f"{self.title} cannot {action}: {error.message}") from error
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> EngineDown:
        return EngineDown(f"the {self.name} engine cannot use {self._directory}: {error}")


def not_running(unit: Unit, wanted: str = "exec") -> NotFound:
    return NotFound(f"{unit} is not running", hint=f"{wanted} needs a task that runs")


def taken_away(unit: Unit) -> Unavailable:
    """Return the error for a container that was removed during its start, by a stop or by another program."""
    return Unavailable(f"the container of {unit} was removed while it was being started")
