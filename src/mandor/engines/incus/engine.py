"""An engine over Incus: each unit is an instance, a system container or a virtual machine.

A task without a command is the machine itself, and runs while the machine runs. A command runs inside a booted
container; a shell script (`runner.py`) writes its output and exit code to a folder of the node, so that neither the
agent nor Incus has to run meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from socket import SOCK_STREAM
from typing import Any, ClassVar
from urllib.parse import urlsplit

from mandor.engines.base import Execution, Launch, LogLine, Observed, Unit, UnitPhase, Usage
from mandor.engines.change_notifier import ChangeNotifier
from mandor.engines.containers import refused as containers
from mandor.engines.containers.engine import KILL_SECONDS, ContainerEngine, not_running, taken_away
from mandor.engines.containers.launches import check_working_dir, with_mapped_user
from mandor.engines.containers.tracked import Tracked
from mandor.engines.incus import marks
from mandor.engines.incus.body import make_body
from mandor.engines.incus.cgroups import killed_for_memory
from mandor.engines.incus.client import IncusClient, Refused, Server
from mandor.engines.incus.collector import Collector
from mandor.engines.incus.execution import begin
from mandor.engines.incus.folder import UnitFolder
from mandor.engines.incus.instances import LOOK_SECONDS, Instances
from mandor.engines.incus.loading import load, spare_images
from mandor.engines.incus.observe import address_of, command_ended, console_lines, machine_stopped, usage_of, vanished
from mandor.engines.incus.options import IncusOptions
from mandor.engines.incus.runner import command_line
from mandor.engines.options import read_options
from mandor.engines.stamped import read_logs
from mandor.errors import EngineDown, Invalid, MandorError, NotFound, Unavailable
from mandor.model.image import ImageFile
from mandor.model.node import MAPPED_USERS, NO_COMMANDS, Capabilities

SOCKETS = (Path("/var/lib/incus/unix.socket"), Path("/run/incus/unix.socket"))
NEVER = "1970-01-01"
"""Prefix of the time that Incus reports for an instance that never ran."""
ADDRESS_SECONDS = 2.0
"""Seconds between reads of a machine without an address."""
AT_ONCE = 8
EXTRAS = frozenset(
    {"logs", "exec", "signal", "stats", "events", "pull", "user", "mounts", "ports", "clean", MAPPED_USERS}
)
LOCAL_ONLY = frozenset({"mounts"})
"""Extras that need the folders of this machine."""
LIMITS = frozenset({"cpu", "memory", "processes"})
ON = frozenset({"Running", "Frozen"})


class IncusEngine(ContainerEngine):
    name: ClassVar[str] = "incus"
    options = IncusOptions

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
        """`url`: None: the socket of Incus on this machine."""
        super().__init__(directory)
        server = Server(url or find_url(), certificate, key, server_certificate, project)
        self._api = IncusClient(server, answer_seconds=answer_seconds)
        self._instances = Instances(self._api, lambda: self.owner)
        self._notifier = ChangeNotifier()
        self._collector = Collector(self._notifier)
        self._addresses: dict[str, tuple[str, float]] = {}
        self._over: dict[str, Observed] = {}
        """Stopped machines, with the time when the stop was first observed."""
        self._places = asyncio.Semaphore(AT_ONCE)

    # Reading.

    async def probe(self) -> Capabilities:
        self._check_there()
        with self._engine_errors("report its version"):
            found = await self._api.get("/1.0")
        if found.get("auth") != "trusted":
            raise EngineDown(
                f"incus at {self._api.server.url} does not trust this agent",
                hint="add its certificate: `incus config trust add-certificate`",
            )
        extras = EXTRAS | ({"machines"} if "qemu" in str(found["environment"].get("driver", "")) else frozenset())
        if self._api.server.local:
            extras |= {"hosts"}
        else:
            extras = (extras - LOCAL_ONLY) | {NO_COMMANDS}
            self.published_at = await self._address_of_server()
        version = str(found["environment"].get("server_version", ""))
        return Capabilities(version=version, images=True, limits=LIMITS, extras=extras, loads=frozenset({"incus"}))

    async def _address_of_server(self) -> str:
        """Return the address of the machine on which Incus publishes ports."""
        url = urlsplit(self._api.server.url)
        try:
            found = await asyncio.get_running_loop().getaddrinfo(url.hostname, url.port or 443, type=SOCK_STREAM)
        except OSError as error:
            raise EngineDown(f"cannot resolve {url.hostname}, where incus runs: {error.strerror}") from error
        return str(found[0][4][0])

    async def logs(
        self, unit: Unit, *, follow: bool = False, tail: int | None = None, since: float | None = None
    ) -> AsyncIterator[LogLine]:
        found = await self._find_for_logs(unit)
        if found is None:
            return
        if not found["config"].get(marks.COMMAND):
            content = await self._instances.console(found["name"])
            for line in console_lines(content, _started(found), tail):
                yield line
            return

        async def over() -> bool:
            self._collector.collect(unit)
            return self._folder(unit).ending() is not None or unit not in self._collector

        self._collector.watch(unit, self._folder(unit), found["config"].get(marks.LOG, ""))
        self._collector.collect(unit)
        async for line in read_logs(self._folder(unit).log, follow=follow, tail=tail, since=since, over=over):
            yield line

    async def usage(self) -> Mapping[Unit, Usage]:
        with self._engine_errors("measure its units"):
            found = await self._instances.list(recursion=2)
        running = [(unit, each) for unit, each in found if each["status"] == "Running" and each.get("state")]
        return {unit: usage_of(each["state"]) for unit, each in running if self._folder(unit).ending() is None}

    async def images(self) -> Mapping[str, int]:
        with self._engine_errors("list its images"):
            found = await self._api.get("/1.0/images", recursion=1)
        return {alias["name"]: int(each["size"]) for each in found for alias in each.get("aliases") or ()}

    async def clean_image(self, keep: Collection[str]) -> str:
        """Incus itself records which images it pulled; an instance does not need its image."""
        with self._engine_errors("remove an image"):
            for each in spare_images(await self._api.get("/1.0/images", recursion=1), keep):
                await self._api.run("DELETE", f"/1.0/images/{each['fingerprint']}")
                return str(each["update_source"].get("alias") or each["fingerprint"][:12])
        return ""

    async def load_image(self, image: ImageFile, content: AsyncIterator[bytes]) -> bool:
        if image.kind != "incus":
            return await super().load_image(image, content)
        return await load(self._api, image, content)

    async def events(self) -> AsyncIterator[None]:
        news = self._notifier.stream()
        listening = asyncio.create_task(self._listen())
        try:
            yield  # Changes before this subscription were not sent.
            async for _ in news:
                if listening.done():
                    break
                yield
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
        raise EngineDown("the event stream of incus ended")

    async def _listen(self) -> None:
        try:
            socket = await self._api.connect("/1.0/events", type="lifecycle,operation")
            async for _ in socket:
                self._collector.hurry()
                self._notifier.notify()
        finally:
            self._notifier.notify()

    async def close(self) -> None:
        await self._collector.close()
        self._notifier.close()
        await self._api.close()

    # The steps of the verbs.

    def _check_there(self) -> None:
        socket = self._api.server.socket
        if socket and not Path(socket).exists() and not (self._directory / "owner").exists():
            raise NotFound("incus is not installed on this machine", hint=f"there is no socket {socket}")

    async def _list(self) -> Sequence[tuple[Unit, Awaitable[Observed | None]]]:
        return [(unit, self._look(unit, each)) for unit, each in await self._instances.list()]

    async def _find(self, unit: Unit, *, foreign: bool = False) -> Any | None:
        return await self._instances.find(unit, foreign=foreign)

    def _phase(self, unit: Unit, found: Any) -> UnitPhase:
        """Return the phase: a unit has started when its machine has, and its command, if there is one."""
        folder = self._folder(unit)
        commanded = not found["config"].get(marks.COMMAND) or folder.begun_at() is not None or folder.ending()
        if not (_started(found) and _ever_ran(found) and commanded):
            return UnitPhase.STARTING
        return UnitPhase.RUNNING if found["status"] in ON else UnitPhase.EXITED

    async def _look(self, unit: Unit, listed: Any) -> Observed | None:
        phase = self._phase(unit, listed)
        if phase is UnitPhase.STARTING:
            return await self._abandon(unit)
        if listed["config"].get(marks.COMMAND):
            return await self._look_at_command(unit, listed, on=phase is UnitPhase.RUNNING)
        name, started = listed["name"], _started(listed)
        if phase is UnitPhase.EXITED:
            return self._over.setdefault(name, machine_stopped(unit, started))
        self._over.pop(name, None)
        return await self._running(unit, listed, started)

    async def _running(self, unit: Unit, found: Any, started: float) -> Observed:
        return Observed(
            unit=unit,
            phase=UnitPhase.RUNNING,
            started_at=started,
            address=await self._address(found["name"]),
            digest=marks.digest_of(found["config"]),
        )

    async def _look_at_command(self, unit: Unit, found: Any, *, on: bool) -> Observed | None:
        name, folder = found["name"], self._folder(unit)
        self._collector.watch(unit, folder, found["config"].get(marks.LOG, ""))
        ending, begun = folder.ending(), folder.begun_at()
        if ending is None and begun is not None and on:
            return await self._running(unit, found, begun)
        started = begun or _started(found)
        if ending is None:
            return self._over.setdefault(name, vanished(unit, started))
        known = self._over.get(name)
        killed = known.reason == "OOMKilled" if known else killed_for_memory(name)
        over = self._over[name] = command_ended(unit, started, ending, out_of_memory=killed)
        if on:
            await self._instances.switch_off(name)
        return over

    async def _address(self, name: str) -> str:
        """Return the first address; it is read again while there is none."""
        known, at = self._addresses.get(name, ("", 0.0))
        if not known and time.monotonic() - at >= ADDRESS_SECONDS:
            known = address_of(await self._instances.state(name))
            self._addresses[name] = known, time.monotonic()
        return known

    async def _begin(self, unit: Unit, launch: Launch, tracked: Tracked, found: Any | None) -> None:
        options = read_options(self.name, launch.options, IncusOptions)
        command = [*launch.command, *launch.args]
        if command and (options.type != "container" or not self._api.server.local):
            raise Invalid(
                "incus runs commands only in containers of this machine; a virtual machine, or an instance of another"
                " machine, runs the programs of its image",
                hint="remove `command`; cloud-init runs commands of `options.incus.user_data`",
            )
        if launch.mounts and not self._api.server.local:
            raise Invalid(
                f"the mount {launch.mounts[0].path} is a folder of the agent's machine, and incus runs on another one",
                hint="use a volume of incus with `options.incus.devices`, or run the agent on the machine of incus",
            )
        check_working_dir(launch)
        name, folder = marks.instance_name(unit), self._folder(unit)
        folder.make()
        log = f"{int(options.log_size)}.{options.log_files}"
        marked = marks.marks_of(self.owner, unit, launch, log)
        body = make_body(name, launch, options, marked, str(folder.io) if command else None)
        async with self._places:
            if found is None:
                tracked.progress = f"creating it from {launch.image}"
                await self._instances.create(name, body)
            tracked.progress = ""
            try:
                await self._instances.complete(name, launch, known=found is not None and bool(_started(found)))
                if command:
                    await self._run(name, folder, launch, command)
            except Refused as error:
                if error.unknown and await self._find(unit) is None:
                    raise taken_away(unit) from error
                raise
            if command:
                self._collector.watch(unit, folder, log)

    def _refusal(self, error: containers.Refused, launch: Launch) -> MandorError:
        if "Image not provided" in error.message:
            return NotFound(f"incus has no image {launch.image}", hint="`incus image list` shows those of the node")
        return Invalid(error.message)

    async def _run(self, name: str, folder: UnitFolder, launch: Launch, command: Sequence[str]) -> None:
        request: dict[str, Any] = {"record-output": False}
        if launch.user is not None:
            user, _, group = str(with_mapped_user(launch).user).partition(":")
            if not user.isdecimal() or (group and not group.isdecimal()):
                raise Invalid(f"the user {launch.user} and its group must be numbers for the engine incus")
            request |= {"user": int(user), "group": int(group or user)}
        await self._instances.command(name, command_line(launch.working_dir or "/", [*command]), **request)
        deadline = asyncio.get_running_loop().time() + KILL_SECONDS
        while folder.begun_at() is None and folder.ending() is None:
            if asyncio.get_running_loop().time() > deadline:
                raise Unavailable(
                    "the command did not start: the shell of the container does not run", hint="the image needs /bin/sh"
                )
            await asyncio.sleep(LOOK_SECONDS)

    async def _end(self, unit: Unit, found: Any, tracked: Tracked, grace_seconds: float) -> None:
        name = found["name"]
        if found["config"].get(marks.COMMAND):
            await self._end_command(unit, found, tracked, grace_seconds)
            return
        if grace_seconds >= 1:
            await self._instances.shut_down(name, grace_seconds)
        left = await self._find(unit)
        if left is not None and left["status"] != "Stopped":
            await self._instances.switch_off(name)

    async def _end_command(self, unit: Unit, found: Any, tracked: Tracked, grace_seconds: float) -> None:
        folder = self._folder(unit)
        signal = str(found["config"].get(marks.SIGNAL) or "SIGTERM").removeprefix("SIG")
        if folder.ending() is None and not tracked.asked:
            tracked.asked = True
            await self._signal(found["name"], folder, signal)
        if not await self._ended(folder, grace_seconds):
            await self._signal(found["name"], folder, "KILL")
            if not await self._ended(folder, KILL_SECONDS):
                await self._instances.switch_off(found["name"])
        self._notifier.notify()

    async def _send_signal(self, unit: Unit, found: Any, name: str) -> None:
        """Send the signal to the command, or to the init process of a machine without one."""
        folder = self._folder(unit)
        commanded = bool(found["config"].get(marks.COMMAND))
        process = folder.process() if commanded else 1
        if process is None or (commanded and folder.ending() is not None):
            raise not_running(unit, "a signal")
        command = ["kill", f"-{name.removeprefix('SIG')}", str(process)]
        ended = await self._api.finish(await self._instances.command(found["name"], command))
        if ended.get("return"):
            raise not_running(unit, "a signal")

    async def _signal(self, name: str, folder: UnitFolder, signal: str) -> None:
        process = folder.process()
        if process is not None:
            with suppress(Refused):
                await self._api.finish(await self._instances.command(name, ["kill", f"-{signal}", str(process)]))

    async def _ended(self, folder: UnitFolder, seconds: float) -> bool:
        deadline = asyncio.get_running_loop().time() + seconds
        while folder.ending() is None:
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(LOOK_SECONDS)
        return True

    async def _discard(self, unit: Unit) -> None:
        self._collector.forget(unit)
        await self._instances.discard(unit)
        self._folder(unit).remove()
        name = marks.instance_name(unit)
        self._addresses.pop(name, None)
        self._over.pop(name, None)

    async def _execute(
        self, unit: Unit, found: Any, command: Sequence[str], *, terminal: bool, rows: int, columns: int
    ) -> Execution:
        if found["status"] != "Running" or self._folder(unit).ending() is not None:
            raise not_running(unit)
        request: dict[str, Any] = {"wait-for-websocket": True, "interactive": terminal}
        request |= {"width": columns, "height": rows} if terminal else {}
        operation = await self._instances.command(found["name"], command, **request)
        return await begin(self._api, operation, terminal=terminal)

    def _folder(self, unit: Unit) -> UnitFolder:
        return UnitFolder(self._directory / "units" / marks.instance_name(unit))


def find_url() -> str:
    return f"unix://{next((path for path in SOCKETS if path.exists()), SOCKETS[0])}"


def _ever_ran(found: Any) -> bool:
    """Return whether an instance ever ran: a start request may have been interrupted before Incus got it."""
    return not str(found.get("last_used_at") or NEVER).startswith(NEVER)


def _started(found: Any) -> float:
    """Return the time of its start request; 0: it is not complete yet."""
    return float(found["config"].get(marks.STARTED) or 0)
