"""The process engine: each unit has its own folder and supervisor; this is the agent's side."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from mandor import __version__
from mandor.engines.base import Engine, Execution, Launch, LogLine, Observed, Unit, Usage
from mandor.engines.change_notifier import ChangeNotifier
from mandor.engines.process.confinement import Confinement, find_confinement
from mandor.engines.process.execution import ProcessExecution
from mandor.engines.process.folder import Exit, Running, StopOrder
from mandor.engines.process.hierarchy import Hierarchies
from mandor.engines.process.launch import SUPERVISORS, NodeFeatures, make_record, stop_signal, with_level
from mandor.engines.process.logs import read_logs
from mandor.engines.process.memory import find_memory
from mandor.engines.process.network import TaskNetwork, can_have_networks, read_range
from mandor.engines.process.options import ProcessOptions
from mandor.engines.process.orphans import kill_orphans
from mandor.engines.process.spawn import mounts_possible, spawn_supervisor, view_possible
from mandor.engines.process.tracked import Tracked
from mandor.engines.process.trash import discard, empty
from mandor.engines.process.usage import measure, measure_disk
from mandor.engines.process.watch import ProcessWatch, send_signal
from mandor.engines.shim import groups
from mandor.errors import EngineDown, Invalid, NotFound
from mandor.model.network import OVERLAY
from mandor.model.node import Capabilities

START_SECONDS_MAX = 60.0
SUPERVISOR_SECONDS_MAX = 10.0
"""Seconds after the grace after which a supervisor that has not ended its task is killed."""
STARTS_AT_ONCE = 16


class ProcessEngine(Engine):
    """Runs programs of the node. `directory` belongs to one engine at a time."""

    name: ClassVar[str] = "process"
    options = ProcessOptions

    def __init__(
        self, directory: Path, *, limits: bool = True, mounts: bool = True, visible: str = "", network: str = "auto"
    ) -> None:
        """`limits=False`: do not use cgroups; `mounts=False`: make links instead of mounts; `visible`: further folders
        of the node that confined tasks see, read-only, separated by colons; `network`: `auto`: confined tasks have
        their own network if the node supports it; `node`: they use the network of the node; or the range of their
        addresses."""
        self._directory = Path(directory).absolute()
        self._units_folder = self._directory / "units"
        self._trash_folder = self._directory / "trash"
        self._limits = limits
        self._mounts = mounts
        self._visible = tuple(filter(None, visible.split(":")))
        self._range = read_range(network)
        self._network: TaskNetwork | None = None
        self._confinement = Confinement()
        self._trees = Hierarchies([], self._directory)
        self._units: dict[Unit, Tracked] = {}
        self._boot = ""
        self._memory: Path | None = None
        self._ready = False
        self._notifier = ChangeNotifier()
        self._starts = asyncio.Semaphore(STARTS_AT_ONCE)
        self._sandboxes: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Locks of instances whose tasks share a network, by uid."""
        self._cleaning: asyncio.Future[None] | None = None

    # Required verbs.

    async def probe(self) -> Capabilities:
        self._open()
        extras = {"logs", "exec", "signal", "stats", "events", "links"} | ({"user"} if os.geteuid() == 0 else set())
        extras |= {"mounts", "tmpfs"} if self._mounts or self._confinement.view else set()
        extras |= {"confined", "resolver"} if self._confinement.view else set()
        extras |= {"network", "sandbox", OVERLAY} if self._network is not None else set()
        return Capabilities(version=__version__, limits=self._trees.limits, extras=frozenset(extras))

    async def list(self) -> Sequence[Observed]:
        self._open()
        try:
            found = self._list()
        except OSError as error:
            raise EngineDown(f"the process engine cannot read {self._directory}: {error}") from error
        await self._free_networks()
        return found

    def _list(self) -> Sequence[Observed]:
        seen = set()
        for name in os.listdir(self._units_folder):
            unit = parse_unit(name)
            if unit is not None:
                seen.add(unit)
                self._track(unit)
        for unit in self._units.keys() - seen:
            if not self._units[unit].busy.locked():
                self._forget(unit)
        found = [observed for unit in sorted(seen) if (observed := self._look(unit)) is not None]
        if any(observed.phase == "starting" for observed in found):
            self._notifier.notify_later(0.2)
        return found

    async def start(self, unit: Unit, launch: Launch) -> None:
        self._open()
        check_unit(unit)
        tracked = self._track(unit)
        async with tracked.busy:
            self._units[unit] = tracked
            if self._look(unit) is not None:
                return
            try:
                async with self._sharing(unit, launch):
                    if await self._write_launch(tracked, launch):
                        async with self._starts:
                            await self._begin(tracked)
            except asyncio.CancelledError:
                tracked.folder.call_off()
                raise
            except OSError as error:
                raise EngineDown(
                    f"cannot start {unit}: {error}", hint="the unit's folder is below the agent's data directory"
                ) from error
            finally:
                self._refresh(tracked)
                self._notifier.notify()

    async def stop(self, unit: Unit, *, grace_seconds: float) -> None:
        self._find_place()  # Not `_open`, which deletes folders that another engine object is just creating.
        tracked = self._known(unit)
        if tracked is None:
            return
        if tracked.busy.locked():
            self._order_stop(tracked, grace_seconds)  # It is being started: the supervisor will find the stop order.
        async with tracked.busy:
            if self._look(unit) is None:
                tracked.folder.call_off()
            if self._look(unit) is not None and tracked.watch is not None:
                self._order_stop(tracked, grace_seconds)
        await self._wait_over(tracked, grace_seconds + SUPERVISOR_SECONDS_MAX)

    async def remove(self, unit: Unit) -> None:
        self._open()
        tracked = self._known(unit)
        if tracked is None:
            return
        await self.stop(unit, grace_seconds=0.0)
        async with tracked.busy:
            trash = self._trash_folder / f"{unit}.{time.monotonic_ns()}"
            if not tracked.folder.take_away(trash):
                raise EngineDown(f"a supervisor of {unit} started while the unit was being removed")
            self._forget(unit)
            paths = self._trees.paths(str(unit))
            await asyncio.to_thread(discard, trash, paths)
        await self._free_networks()
        if self._idle():
            await asyncio.to_thread(self._leave_groups, 1.0)

    # Optional verbs.

    def logs(
        self, unit: Unit, *, follow: bool = False, tail: int | None = None, since: float | None = None
    ) -> AsyncIterator[LogLine]:
        self._open()
        tracked = self._known(unit)
        if tracked is None:
            raise NotFound(f"there is no unit {unit} here")

        def over() -> bool:
            observed = self._look(unit)
            return observed is None or observed.phase == "exited"

        return read_logs(tracked.folder.log, over if follow else None, tail=tail, since=since)

    async def exec(
        self, unit: Unit, command: Sequence[str], *, terminal: bool = False, rows: int = 24, columns: int = 80
    ) -> Execution:
        self._open()
        tracked, watch, _ = self._find_running(unit, "exec")
        if not command:
            raise Invalid("there is no command to run")
        execution = ProcessExecution(
            tracked.folder.path, watch.pid, command, terminal=terminal, rows=rows, columns=columns
        )
        tracked.executions.add(execution)
        execution.closed = lambda: tracked.executions.discard(execution)
        return execution

    async def signal(self, unit: Unit, name: str) -> None:
        self._open()
        _, watch, running = self._find_running(unit, "a signal")
        if not send_signal(running.pid, stop_signal(name), parent=watch.pid):
            raise NotFound(f"{unit} is not running", hint="a signal needs a task that runs")

    def _find_running(self, unit: Unit, wanted: str) -> tuple[Tracked, ProcessWatch, Running]:
        """Return a unit whose task runs; its supervisor may live a moment longer than the task."""
        tracked = self._known(unit)
        watch = tracked.watch if tracked is not None else None
        running = tracked.folder.read_running() if tracked is not None else None
        if tracked is None or watch is None or running is None or tracked.folder.read_exit() is not None:
            raise NotFound(f"{unit} is not running", hint=f"{wanted} needs a task that runs")
        return tracked, watch, running

    async def usage(self) -> Mapping[Unit, Usage]:
        self._open()
        running = {unit: tracked.watch.pid for unit, tracked in self._units.items() if tracked.watch is not None}
        return await asyncio.to_thread(measure, running, self._trees)

    async def disk(self) -> Mapping[Unit, int]:
        self._open()
        folders = {unit: self._units_folder / str(unit) for unit in self._units}
        return await asyncio.to_thread(measure_disk, folders)

    def events(self) -> AsyncIterator[None]:
        self._open()
        return self._notifier.stream()

    async def close(self) -> None:
        for execution in [each for tracked in self._units.values() for each in tracked.executions]:
            await execution.close()
        for unit in list(self._units):
            self._forget(unit)
        if self._cleaning is not None:
            await self._cleaning
        self._notifier.close()
        self._ready = False

    def _idle(self) -> bool:
        return not any(tracked.in_use for tracked in self._units.values())

    def _leave_groups(self, seconds: float) -> None:
        """Remove the cgroups of an engine without units; a unit that starts meanwhile creates them again."""
        groups.remove(self._trees.paths(SUPERVISORS), seconds=seconds)
        self._trees.remove_empty()

    # State of units.

    def _open(self) -> None:
        """Detect the features of the node and delete leftovers of a crash; once."""
        if self._ready:
            return
        self._find_place()
        try:
            self._confinement = find_confinement(view=self._mounts and view_possible(), visible=self._visible)
            self._mounts = self._mounts and mounts_possible()
            if self._confinement.view and self._range is not None and can_have_networks():
                self._network = TaskNetwork(self._directory, self._range)
            self._tidy()
        except OSError as error:
            raise self._unusable(error) from error
        self._ready = True

    def _find_place(self) -> None:
        if self._boot:
            return
        if not hasattr(os, "pidfd_open"):
            raise EngineDown("the process engine needs Linux 5.3 or later")
        try:
            self._directory.mkdir(mode=0o711, parents=True, exist_ok=True)
            self._units_folder.mkdir(mode=0o711, exist_ok=True)
            self._trash_folder.mkdir(mode=0o700, exist_ok=True)
            self._memory = find_memory(self._directory)
            if self._limits:
                self._trees = Hierarchies.detect(self._directory)
            self._boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> EngineDown:
        return EngineDown(f"the process engine cannot use {self._directory}: {error.strerror}")

    def _tidy(self) -> None:
        names = set(os.listdir(self._units_folder))
        for unit in filter(None, map(parse_unit, names)):
            tracked = self._track(unit)
            if self._look(unit) is None:
                tracked.folder.take_away(self._trash_folder / f"{unit}.{time.monotonic_ns()}")
                self._forget(unit)
        made = (
            self._trees.made()
        )  # Read before the folders are listed: the folder of a unit is created before its groups.
        for name in made.keys() - {*os.listdir(self._units_folder), SUPERVISORS}:
            groups.kill(made[name])
            groups.remove(made[name], seconds=1.0)
        if self._memory is not None:
            for left in {*os.listdir(self._memory)} - {*os.listdir(self._units_folder)}:
                shutil.rmtree(self._memory / left, ignore_errors=True)
        if self._idle():
            self._leave_groups(0.0)
        if any(self._trash_folder.iterdir()):
            self._cleaning = asyncio.get_running_loop().run_in_executor(None, empty, self._trash_folder)

    def _track(self, unit: Unit) -> Tracked:
        tracked = self._units.get(unit)
        if tracked is None:
            tracked = self._units[unit] = Tracked(unit, self._units_folder / str(unit), self._memory)
            self._refresh(tracked)
        return tracked

    def _known(self, unit: Unit) -> Tracked | None:
        tracked = self._units.get(unit)
        if tracked is None and parse_unit(str(unit)) == unit and (self._units_folder / str(unit)).is_dir():
            tracked = self._track(unit)
        return tracked

    def _look(self, unit: Unit) -> Observed | None:
        """Return the state of a unit; None: it was never started."""
        tracked = self._units.get(unit)
        if tracked is None:
            return None
        if tracked.observed is None or tracked.observed.phase == "starting":
            self._refresh(tracked)
        return tracked.observed

    def _refresh(self, tracked: Tracked) -> None:
        if tracked.refresh(self._ended):
            self._record_vanished(tracked)

    def _ended(self, tracked: Tracked) -> None:
        """Handle the end of a supervisor: kill commands that run beside its task, and read the record."""
        for execution in tracked.executions:
            execution.kill()
        if tracked.folder.exists:
            self._refresh(tracked)
        self._notifier.notify()

    def _record_vanished(self, tracked: Tracked) -> None:
        """Kill what is left of a unit whose supervisor ended without a record, and write the record."""
        running = tracked.folder.read_running()
        if running is None:
            return
        if running.boot == self._boot:
            message = "its supervisor was killed, and the task with it"
            kill_orphans(tracked.unit, self._trees.paths(str(tracked.unit)))
        else:
            message = "the machine was restarted"
        record = Exit(
            code=None, reason="Vanished", message=message, started_at=running.started_at, finished_at=time.time()
        )
        with suppress(OSError):  # The disk may be full; it is tried again at the next look.
            tracked.folder.write_exit(record)
        tracked.observed = record.observed(tracked.unit)

    def _forget(self, unit: Unit) -> None:
        tracked = self._units.pop(unit, None)
        if tracked is not None:
            tracked.close()

    # Supervisors.

    def _sharing(self, unit: Unit, launch: Launch) -> AbstractAsyncContextManager[object]:
        """Return a lock for starts of tasks that share a network: the first makes it, the others join it."""
        if self._network is None or not launch.sandbox:
            return nullcontext()
        return self._sandboxes.setdefault(unit.uid, asyncio.Lock())

    async def _join_network(self, unit: Unit, launch: Launch) -> dict[str, Any] | None:
        """Return the network of a confined task, which it shares with the other tasks of its instance."""
        if self._network is None or (launch.level == "privileged" and launch.attachment is None):
            return None
        watches = {other: tracked.watch for other, tracked in self._units.items() if tracked.watch is not None}
        found = await self._network.attach(unit.uid, launch, {each.uid for each in watches})
        for other, watch in watches.items():
            running = self._units[other].folder.read_running() if other.uid == unit.uid else None
            if running is not None and running.init and running.address:
                return found | {"join": running.init, "supervisor": watch.pid}
        return found

    async def _free_networks(self) -> None:
        """Free addresses and ports of instances that have no unit any more."""
        if self._network is not None:
            await self._network.keep_only(
                frozenset(unit.uid for unit, tracked in self._units.items() if tracked.in_use)
            )

    async def _write_launch(self, tracked: Tracked, launch: Launch) -> bool:
        """Write the launch and return whether the unit can start; if not, the exit record has the reason."""
        folder, features = tracked.folder, NodeFeatures(self._trees, self._confinement, self._boot, self._mounts)
        folder.make(open_to_pass=False)
        try:
            launch = with_level(launch)
            folder.make(open_to_pass=launch.level == "privileged" or not self._confinement.view)
            network = await self._join_network(tracked.unit, launch)
            folder.write_launch(make_record(tracked.unit, launch, folder, features, network))
        except (Invalid, UnicodeError) as error:
            tracked.folder.write_exit(
                Exit(code=None, reason="StartFailed", message=str(error), finished_at=time.time())
            )
            return False
        return True

    async def _begin(self, tracked: Tracked) -> None:
        pid, ready = spawn_supervisor(tracked.folder)
        tracked.attach(pid, self._ended)
        if not await ready.wait(START_SECONDS_MAX):
            return  # It is slow: `list` shows it as starting.
        self._refresh(tracked)
        if tracked.observed is None:
            raise EngineDown(f"the supervisor of {tracked.unit} did not start: {tracked.folder.read_supervisor_log()}")

    def _order_stop(self, tracked: Tracked, grace_seconds: float) -> None:
        number = tracked.folder.read_stop_signal()
        if number is None:
            return
        until = time.monotonic() + grace_seconds
        if tracked.stop_by is None or until < tracked.stop_by:
            tracked.stop_by = until
            tracked.folder.write_stop(StopOrder(number, grace_seconds))
        if tracked.watch is not None:
            tracked.watch.signal(signal.SIGTERM)

    async def _wait_over(self, tracked: Tracked, seconds: float) -> None:
        watch = tracked.watch
        if watch is None:
            return
        for patience, last in ((seconds, False), (SUPERVISOR_SECONDS_MAX, True)):
            try:
                async with asyncio.timeout(patience):
                    await watch.over.wait()
                return
            except TimeoutError:
                if last:
                    break
                # The supervisor hangs or is stopped. The kernel kills its task with it.
                watch.signal(signal.SIGKILL)
        raise EngineDown(f"{tracked.unit} does not end after SIGKILL")


def parse_unit(name: str) -> Unit | None:
    """Return the unit of a folder name; None: it is another name."""
    uid, _, rest = name.partition(".")
    task, _, attempt = rest.rpartition(".")
    if not uid or not task or not attempt.isdecimal() or str(unit := Unit(uid, task, int(attempt))) != name:
        return None
    return unit


def check_unit(unit: Unit) -> None:
    if "/" in str(unit) or "\0" in str(unit) or str(unit).startswith(".") or parse_unit(str(unit)) != unit:
        raise Invalid(f"{unit} is not a valid name of a unit")
