"""An engine over Incus: each unit an instance of its own, a system container or a virtual machine.

A task without a command is the machine itself: it runs while the machine does. A task with one runs it inside a
container that has booted; a few lines of shell in there (`runner.py`) keep what it prints and how it ends in a folder
of the node, so that neither the agent nor Incus has to be up for that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from mandor.engines.base import Engine, Execution, Launch, LogLine, Observed, Unit, UnitPhase, Usage
from mandor.engines.docker_api.failures import Failures
from mandor.engines.docker_api.labels import owner_of
from mandor.engines.docker_api.observe import reason_of
from mandor.engines.docker_api.tracked import Tracked
from mandor.engines.docker_api.trouble import passing
from mandor.engines.incus import marks
from mandor.engines.incus.body import make_body
from mandor.engines.incus.cgroups import killed_for_memory
from mandor.engines.incus.client import TAKEN, IncusClient, Refused, Server, path_of
from mandor.engines.incus.collector import Collector
from mandor.engines.incus.execution import begin
from mandor.engines.incus.files import put_files
from mandor.engines.incus.folder import UnitFolder
from mandor.engines.incus.options import read_options
from mandor.engines.incus.runner import command_line
from mandor.engines.stamped import read_logs
from mandor.engines.ticks import Ticks
from mandor.errors import Conflict, EngineDown, Invalid, NotFound, Unavailable
from mandor.model.node import Capabilities

SOCKETS = (Path("/var/lib/incus/unix.socket"), Path("/run/incus/unix.socket"))
KILL_SECONDS = 30.0
LOOK_SECONDS = 0.05
ADDRESS_SECONDS = 2.0
"""So often a machine without an address is looked at again."""
AT_ONCE = 8
NANO = 1e9
EXTRAS = frozenset({"logs", "exec", "stats", "events", "pull", "user", "mounts", "ports"})
LIMITS = frozenset({"cpu", "memory", "processes"})


class IncusEngine(Engine):
    name: ClassVar[str] = "incus"

    def __init__(
        self,
        directory: Path,
        *,
        url: str | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
        server_certificate: Path | None = None,
        project: str = "default",
        answer_seconds: float = 60.0,
    ) -> None:
        """`url` None: the socket of this machine's incus."""
        server = Server(url or find_url(), certificate, key, server_certificate, project)
        self._directory = Path(directory).absolute()
        self._api = IncusClient(server, answer_seconds=answer_seconds)
        self._failures = Failures(self._directory / "failures")
        self._ticks = Ticks()
        self._collector = Collector(self._ticks)
        self._tracked: dict[Unit, Tracked] = {}
        self._addresses: dict[str, tuple[str, float]] = {}
        self._over: dict[str, Observed] = {}
        """Machines that have stopped, since they were first seen so."""
        self._owner = ""
        self._places = asyncio.Semaphore(AT_ONCE)
        self._listening: asyncio.Task[None] | None = None

    @property
    def owner(self) -> str:
        if not self._owner:
            try:
                self._owner = owner_of(self._directory)
            except OSError as error:
                raise EngineDown(f"the incus engine cannot use {self._directory}: {error}") from error
        return self._owner

    # The five verbs.

    async def probe(self) -> Capabilities:
        self._check_there()
        with self._told("asked what it is"):
            found = await self._api.get("/1.0")
        if found.get("auth") != "trusted":
            raise EngineDown(
                f"incus at {self._api.server.url} does not trust this agent",
                hint="add its certificate: `incus config trust add-certificate`",
            )
        extras = EXTRAS | ({"machines"} if "qemu" in str(found["environment"].get("driver", "")) else frozenset())
        version = str(found["environment"].get("server_version", ""))
        return Capabilities(version=version, images=True, limits=LIMITS, extras=extras)

    async def list(self) -> Sequence[Observed]:
        self._check_there()
        with self._told("asked what runs"):
            found = await self._instances()
            seen = await asyncio.gather(*(self._look(unit, each) for unit, each in found))
        shown = {each.unit: each for each in (*self._failures.list(), *seen) if each is not None}
        for unit, tracked in self._tracked.items():
            if tracked.starting and unit not in shown:
                shown[unit] = Observed(unit=unit, phase=UnitPhase.STARTING, message=tracked.progress)
        return [shown[unit] for unit in sorted(shown)]

    async def start(self, unit: Unit, launch: Launch) -> None:
        tracked = self._tracked.setdefault(unit, Tracked())
        async with tracked.busy:
            self._tracked[unit] = tracked
            if self._failures.knows(unit):
                return
            with self._told(f"told to start {unit}"):
                found = await self._find(unit, foreign=True)
                if found is not None and found["config"].get(marks.STARTED) and not self._half_begun(unit, found):
                    return
                tracked.starting, tracked.progress = True, ""
                try:
                    await self._begin(unit, launch, tracked, found)
                except (Invalid, NotFound) as error:
                    await self._discard(unit)
                    self._failures.write(unit, f"{error.message}; {error.hint}" if error.hint else error.message)
                finally:
                    tracked.starting = False

    async def stop(self, unit: Unit, *, grace_seconds: float) -> None:
        tracked = self._tracked.setdefault(unit, Tracked())
        async with tracked.busy:
            pass  # What is being started can be stopped only afterwards.
        with self._told(f"told to stop {unit}"):
            found = await self._find(unit)
            if found is None or found["status"] not in {"Running", "Frozen"}:
                return
            if found["config"].get(marks.COMMAND):
                await self._stop_command(unit, found, tracked, grace_seconds)
            else:
                await self._stop_machine(unit, grace_seconds)

    async def remove(self, unit: Unit) -> None:
        tracked = self._tracked.setdefault(unit, Tracked())
        async with tracked.busy:
            with self._told(f"told to remove {unit}"):
                await self._discard(unit)
                self._failures.forget(unit)
            self._tracked.pop(unit, None)

    # The others.

    async def logs(
        self, unit: Unit, *, follow: bool = False, tail: int | None = None, since: float | None = None
    ) -> AsyncIterator[LogLine]:
        with self._told(f"asked for the logs of {unit}"):
            found = await self._find(unit)
            if found is None:
                if self._failures.knows(unit):
                    return
                raise NotFound(f"there is no unit {unit} here")
            if not found["config"].get(marks.COMMAND):
                for line in await self._console(unit, found, tail):
                    yield line
                return

        async def over() -> bool:
            self._collector.collect(unit)
            return self._folder(unit).ending() is not None or unit not in self._collector

        self._collector.watch(unit, self._folder(unit), found["config"].get(marks.LOG, ""))
        self._collector.collect(unit)
        async for line in read_logs(self._folder(unit).log, follow=follow, tail=tail, since=since, over=over):
            yield line

    async def exec(
        self, unit: Unit, command: Sequence[str], *, terminal: bool = False, rows: int = 24, columns: int = 80
    ) -> Execution:
        if not command:
            raise Invalid("there is no command to run")
        with self._told(f"told to run a command in {unit}"):
            found = await self._find(unit)
            ended = self._folder(unit).ending() is not None
            if found is None or ended or found["status"] != "Running":
                raise NotFound(f"{unit} is not running", hint="exec needs a task that runs")
            wish: dict[str, Any] = {"command": list(command), "wait-for-websocket": True, "interactive": terminal}
            wish |= {"width": columns, "height": rows} if terminal else {}
            operation = await self._api.call("POST", path_of(found["name"], "exec"), wish)
            return await begin(self._api, operation, terminal=terminal)

    async def usage(self) -> Mapping[Unit, Usage]:
        with self._told("asked what its units use"):
            found = await self._instances(recursion=2)
        running = [(unit, each) for unit, each in found if each["status"] == "Running" and each.get("state")]
        return {unit: _usage(each["state"]) for unit, each in running if self._folder(unit).ending() is None}

    async def images(self) -> Mapping[str, int]:
        with self._told("asked for its images"):
            found = await self._api.get("/1.0/images", recursion=1)
        return {alias["name"]: int(each["size"]) for each in found for alias in each.get("aliases") or ()}

    async def events(self) -> AsyncIterator[None]:
        news = self._ticks.stream()
        listening = asyncio.create_task(self._listen())
        try:
            yield  # Nobody listened until now.
            async for _ in news:
                if listening.done():
                    break
                yield
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
        raise EngineDown("the events of incus broke off")

    async def close(self) -> None:
        await self._collector.close()
        self._ticks.close()
        await self._api.close()

    # Instances.

    def _check_there(self) -> None:
        socket = self._api.server.socket
        if socket and not Path(socket).exists() and not (self._directory / "owner").exists():
            raise NotFound("there is no incus on this machine", hint=f"its socket would be {socket}")

    async def _instances(self, recursion: int = 1) -> Sequence[tuple[Unit, Any]]:
        found = await self._api.get("/1.0/instances", recursion=recursion)
        return [(unit, each) for each in found if (unit := marks.unit_of(each["config"], self.owner)) is not None]

    async def _find(self, unit: Unit, *, foreign: bool = False) -> Any | None:
        name = marks.instance_name(unit)
        try:
            found = await self._api.get(path_of(name))
        except Refused as error:
            if error.unknown:
                return None
            raise
        if marks.unit_of(found["config"], self.owner) == unit:
            return found
        if foreign:
            raise Conflict(f"incus has an instance called {name} that is not this agent's", hint="remove or rename it")
        return None

    async def _look(self, unit: Unit, found: Any) -> Observed | None:
        started = float(found["config"].get(marks.STARTED) or 0)
        if not started or self._half_begun(unit, found):
            tracked = self._tracked.get(unit)
            if tracked is None or not tracked.busy.locked():
                with suppress(Refused):  # Nobody begins it any more: whoever made it was interrupted.
                    await self._discard(unit)
            return None
        running = found["status"] in {"Running", "Frozen"}
        if found["config"].get(marks.COMMAND):
            return await self._look_at_command(unit, found, started, running=running)
        if running:
            self._over.pop(found["name"], None)
            address = await self._address(found)
            return Observed(unit=unit, phase=UnitPhase.RUNNING, started_at=started, address=address)
        ended = Observed(
            unit=unit,
            phase=UnitPhase.EXITED,
            exit_code=0,
            reason="Completed",
            message="the machine has stopped",
            started_at=started,
            finished_at=time.time(),
        )
        return self._over.setdefault(found["name"], ended)

    async def _look_at_command(self, unit: Unit, found: Any, started: float, *, running: bool) -> Observed | None:
        folder = self._folder(unit)
        self._collector.watch(unit, folder, found["config"].get(marks.LOG, ""))
        ending = folder.ending()
        begun = folder.begun_at()
        if ending is None and running:
            if begun is None:
                return None
            address = await self._address(found)
            return Observed(unit=unit, phase=UnitPhase.RUNNING, started_at=begun, address=address)
        over = Observed(unit=unit, phase=UnitPhase.EXITED, started_at=begun or started)
        if ending is None:
            words = "its container stopped under it"
            over = self._over.setdefault(
                found["name"], replace(over, reason="Vanished", message=words, finished_at=time.time())
            )
        elif ending.code is None:
            over = replace(over, reason="StartFailed", message=ending.message, finished_at=ending.at)
        else:
            known = self._over.get(found["name"])
            killed = known.reason == "OOMKilled" if known else killed_for_memory(found["name"])
            reason = reason_of(ending.code, out_of_memory=killed)
            over = replace(over, exit_code=ending.code, reason=reason, finished_at=ending.at)
            self._over[found["name"]] = over
        if running:
            await self._quietly("PUT", path_of(found["name"], "state"), {"action": "stop", "force": True})
        return over

    async def _address(self, found: Any) -> str:
        """The first it has; asked for again as long as it has none."""
        name = found["name"]
        known, at = self._addresses.get(name, ("", 0.0))
        if known or time.monotonic() - at < ADDRESS_SECONDS:
            return known
        with suppress(Refused):
            known = _address((await self._api.get(path_of(name, "state"))) or {})
        self._addresses[name] = known, time.monotonic()
        return known

    def _half_begun(self, unit: Unit, found: Any) -> bool:
        """Its container was told to start, and its command was not: whoever did it was interrupted."""
        folder = self._folder(unit)
        command = bool(found["config"].get(marks.COMMAND))
        return command and folder.begun_at() is None and folder.ending() is None

    async def _begin(self, unit: Unit, launch: Launch, tracked: Tracked, found: Any | None) -> None:
        options = read_options(launch)
        command = [*launch.command, *launch.args]
        if command and (options.type != "container" or not self._api.server.local):
            raise Invalid(
                "incus runs commands only in containers of this machine; a virtual machine, or an instance of another"
                " machine, runs what its image starts",
                hint="leave `command` out; `options.incus.user_data` tells cloud-init what to run",
            )
        if launch.working_dir and not launch.working_dir.startswith("/"):
            raise Invalid(f"the working directory {launch.working_dir} is not absolute")
        name, folder = marks.instance_name(unit), self._folder(unit)
        folder.make()
        log = f"{int(options.log_size)}.{options.log_files}"
        body = make_body(
            name, launch, options, marks.marks_of(self.owner, unit, launch, log), str(folder.io) if command else None
        )
        async with self._places:
            try:
                if found is None:
                    tracked.progress = f"making it from {launch.image}"
                    await self._create(name, body)
                tracked.progress = ""
                complete = found is not None and bool(found["config"].get(marks.STARTED))
                await self._patiently(name, lambda: self._complete(name, launch, complete=complete))
                if command:
                    await self._run(name, folder, launch, command)
                    self._collector.watch(unit, folder, log)
            except Refused as error:
                if passing(error.message):
                    raise Unavailable(f"incus cannot start it now: {error.message}") from error
                if "Image not provided" in error.message:
                    raise NotFound(
                        f"incus has no image {launch.image}", hint="`incus image list` shows those of the node"
                    ) from error
                raise Invalid(error.message) from error

    async def _complete(self, name: str, launch: Launch, *, complete: bool) -> None:
        """With its files, and started."""
        if not complete:
            await put_files(self._api, name, launch)
            started = {"config": {marks.STARTED: f"{time.time():.3f}"}}
            await self._api.run("PATCH", path_of(name), started)
        if (await self._api.get(path_of(name)))["status"] != "Running":
            await self._api.run("PUT", path_of(name, "state"), {"action": "start", "timeout": 60})

    async def _patiently(self, name: str, step: Callable[[], Awaitable[None]]) -> None:
        """Again while Incus is busy with it: somebody began something, and was interrupted."""
        deadline = asyncio.get_running_loop().time() + KILL_SECONDS
        while True:
            await self._settle(name)
            try:
                return await step()
            except Refused as error:
                if "is busy" not in error.message or asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(LOOK_SECONDS)

    async def _create(self, name: str, body: dict[str, Any]) -> None:
        deadline = asyncio.get_running_loop().time() + KILL_SECONDS
        while True:
            try:
                await self._api.run("POST", "/1.0/instances", body)
            except Refused as error:
                # Somebody began to make it, and was interrupted.
                taken = error.status == TAKEN or "already" in error.message or "is busy" in error.message
                if not taken or asyncio.get_running_loop().time() > deadline:
                    raise
                await self._settle(name)
                with suppress(Refused):
                    await self._api.get(path_of(name))
                    return
                await asyncio.sleep(LOOK_SECONDS)
            else:
                return

    async def _settle(self, name: str) -> None:
        """Somebody began something with it, and was interrupted; Incus goes on by itself, to its end."""
        for path in (await self._api.get("/1.0/operations") or {}).get("running", ()):
            with suppress(Refused):  # It is over, one way or the other.
                operation = await self._api.get(path)
                if any(each.endswith(f"/{name}") for each in (operation.get("resources") or {}).get("instances", ())):
                    await self._api.finish({"operation": path})

    async def _run(self, name: str, folder: UnitFolder, launch: Launch, command: Sequence[str]) -> None:
        wish: dict[str, Any] = {"command": command_line(launch.working_dir or "/", [*command])}
        wish |= {"wait-for-websocket": False, "interactive": False, "record-output": False}
        if launch.user is not None:
            user, _, group = str(launch.user).partition(":")
            if not user.isdecimal() or (group and not group.isdecimal()):
                raise Invalid(f"the user {launch.user} must be a number here, as must the group")
            wish |= {"user": int(user), "group": int(group or user)}
        await self._api.call("POST", path_of(name, "exec"), wish)
        deadline = asyncio.get_running_loop().time() + KILL_SECONDS
        while folder.begun_at() is None and folder.ending() is None:
            if asyncio.get_running_loop().time() > deadline:
                raise Unavailable("its container has no shell that answers", hint="the image needs /bin/sh")
            await asyncio.sleep(LOOK_SECONDS)

    async def _stop_command(self, unit: Unit, found: Any, tracked: Tracked, grace_seconds: float) -> None:
        folder = self._folder(unit)
        signal = str(found["config"].get(marks.SIGNAL) or "SIGTERM").removeprefix("SIG")
        if folder.ending() is None and not tracked.asked:
            tracked.asked = True
            await self._signal(found["name"], folder, signal)
        if not await self._ended(folder, grace_seconds):
            await self._signal(found["name"], folder, "KILL")
            if not await self._ended(folder, KILL_SECONDS):
                await self._quietly("PUT", path_of(found["name"], "state"), {"action": "stop", "force": True})
        self._ticks.tick()

    async def _stop_machine(self, unit: Unit, grace_seconds: float) -> None:
        path = path_of(marks.instance_name(unit), "state")
        if grace_seconds >= 1:
            with suppress(Refused):
                await self._api.run("PUT", path, {"action": "stop", "timeout": int(grace_seconds)})
        found = await self._find(unit)
        if found is not None and found["status"] != "Stopped":
            await self._quietly("PUT", path, {"action": "stop", "force": True})

    async def _signal(self, name: str, folder: UnitFolder, signal: str) -> None:
        process = folder.process()
        if process is None:
            return
        wish = {"command": ["kill", f"-{signal}", str(process)], "wait-for-websocket": False, "interactive": False}
        with suppress(Refused):
            await self._api.run("POST", path_of(name, "exec"), wish)

    async def _ended(self, folder: UnitFolder, seconds: float) -> bool:
        deadline = asyncio.get_running_loop().time() + seconds
        while folder.ending() is None:
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(LOOK_SECONDS)
        return True

    async def _discard(self, unit: Unit) -> None:
        name = marks.instance_name(unit)
        self._collector.forget(unit)
        deadline = asyncio.get_running_loop().time() + KILL_SECONDS
        while (found := await self._find(unit)) is not None:
            try:
                if found["status"] != "Stopped":
                    await self._quietly("PUT", path_of(name, "state"), {"action": "stop", "force": True})
                await self._quietly("DELETE", path_of(name))
            except Refused:  # It is still on its way somewhere.
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(LOOK_SECONDS)
        self._folder(unit).remove()
        self._addresses.pop(name, None)
        self._over.pop(name, None)

    async def _console(self, unit: Unit, found: Any, tail: int | None) -> Sequence[LogLine]:
        """What a machine printed on its console since it started; Incus keeps no times with it."""
        try:
            content = await self._api.fetch("GET", path_of(found["name"], "console"))
        except Refused:
            return []
        at = float(found["config"].get(marks.STARTED) or 0)
        lines = [LogLine(at, "stdout", line.rstrip(b"\r")) for line in content.splitlines()]
        return lines if tail is None else lines[max(0, len(lines) - tail) :]

    async def _quietly(self, method: str, path: str, body: Any = None) -> None:
        """What is no longer there, or no longer runs, needs it no more."""
        try:
            await self._api.run(method, path, body)
        except Refused as error:
            if not error.unknown and "already stopped" not in error.message and "not running" not in error.message:
                raise

    async def _listen(self) -> None:
        try:
            socket = await self._api.connect("/1.0/events", type="lifecycle,operation")
            async for _ in socket:
                self._collector.hurry()
                self._ticks.tick()
        finally:
            self._ticks.tick()

    def _folder(self, unit: Unit) -> UnitFolder:
        return UnitFolder(self._directory / "units" / marks.instance_name(unit))

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except Refused as error:
            raise Unavailable(f"incus, {what}: {error.message}") from error
        except OSError as error:
            raise EngineDown(f"the incus engine cannot use {self._directory}: {error}") from error


def find_url() -> str:
    return f"unix://{next((path for path in SOCKETS if path.exists()), SOCKETS[0])}"


def _address(state: Mapping[str, Any]) -> str:
    for name, interface in sorted((state.get("network") or {}).items()):
        for each in interface.get("addresses") or () if name != "lo" else ():
            if each.get("scope") == "global":
                return str(each["address"])
    return ""


def _usage(state: Mapping[str, Any]) -> Usage:
    networks = [each.get("counters") or {} for name, each in (state.get("network") or {}).items() if name != "lo"]
    return Usage(
        cpu_seconds=int((state.get("cpu") or {}).get("usage", 0)) / NANO,
        memory_bytes=int((state.get("memory") or {}).get("usage", 0)),
        network_in_bytes=sum(int(each.get("bytes_received", 0)) for each in networks),
        network_out_bytes=sum(int(each.get("bytes_sent", 0)) for each in networks),
    )
