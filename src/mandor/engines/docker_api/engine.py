"""An engine over Docker's API: containers are found by their labels, and each verb can be given again."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import time
from typing import Any, ClassVar

from mandor.engines.base import Engine, Execution, Launch, LogLine, Observed, Unit, UnitPhase, Usage
from mandor.engines.docker_api import labels as marks
from mandor.engines.docker_api.body import make_body
from mandor.engines.docker_api.client import START_SECONDS, ApiClient, Refused, filters
from mandor.engines.docker_api.execution import ContainerExecution
from mandor.engines.docker_api.failures import Failures
from mandor.engines.docker_api.files import make_archive, read_archived, who
from mandor.engines.docker_api.frames import read_lines
from mandor.engines.docker_api.idle import can_idle
from mandor.engines.docker_api.images import Images
from mandor.engines.docker_api.observe import RUNNING, observe
from mandor.engines.docker_api.options import read_options
from mandor.engines.docker_api.sandbox import Sandboxes
from mandor.engines.docker_api.tracked import Tracked
from mandor.engines.docker_api.trouble import passing
from mandor.engines.docker_api.usage import usage_of
from mandor.errors import Conflict, EngineDown, Invalid, NotFound, Unavailable
from mandor.model.node import Capabilities

KILL_SECONDS = 30.0
"""Longer than the kernel ever takes to end what was killed."""
AT_ONCE = 16
GONE, NOT_NOW = 404, 409
EXTRAS = frozenset({"logs", "exec", "stats", "events", "pull", "user", "sandbox", "mounts", "tmpfs"})


class ContainerEngine(Engine):
    """What docker and podman have in common; a subclass says where the socket is and what is peculiar."""

    def __init__(
        self, directory: Path, *, socket: Path, credentials: Sequence[Path] | None = None, answer_seconds: float = 60.0
    ) -> None:
        self._directory = Path(directory)
        self._api = ApiClient(self.name, socket, answer_seconds=answer_seconds)
        self._images = Images(self._api, credentials=credentials)
        self._failures = Failures(self._directory / "failures")
        self._sandboxes = Sandboxes(self._api)
        self._tracked: dict[Unit, Tracked] = {}
        self._seen: dict[str, tuple[str, Observed]] = {}
        """What an inspection said, by container: it holds while the state is the same."""
        self._owner = ""
        self._places = asyncio.Semaphore(AT_ONCE)

    @property
    def owner(self) -> str:
        if not self._owner:
            try:
                self._owner = marks.owner_of(self._directory)
            except OSError as error:
                raise EngineDown(f"the {self.name} engine cannot use {self._directory}: {error}") from error
        return self._owner

    # What is peculiar to one of them.

    program: ClassVar[str]
    """Where neither it nor the socket is on the machine, there is no such engine here."""

    @property
    def extras(self) -> frozenset[str]:
        return EXTRAS if can_idle() else EXTRAS - {"sandbox"}

    async def limits(self) -> frozenset[str]:
        """Which limits are enforced on this machine."""
        info = await self._api.get("/info")
        known = {"cpu": "CpuCfsQuota", "memory": "MemoryLimit", "processes": "PidsLimit"}
        return frozenset(limit for limit, key in known.items() if info.get(key))

    def judge(self, observed: Observed, inspected: Mapping[str, Any], *, asked: bool) -> Observed:
        """Correct what the engine is known to tell wrong; `asked`: mandor told it to stop."""
        return observed

    # The five verbs.

    async def probe(self) -> Capabilities:
        self._check_there()
        with self._told("asked what it is"):
            version, limits = await asyncio.gather(self._api.get("/version"), self.limits())
        return Capabilities(version=str(version.get("Version", "")), images=True, limits=limits, extras=self.extras)

    async def list(self) -> Sequence[Observed]:
        self._check_there()
        with self._told("asked what runs"):
            found = await self._api.get("/containers/json", all=True, filters=self._mine())
            self._sandboxes.saw(found)
            units = [(unit, each) for each in found if (unit := marks.unit_of(each["Labels"], self.owner)) is not None]
            seen = await asyncio.gather(*(self._look(unit, each) for unit, each in units))
        self._seen = {each["Id"]: kept for _, each in units if (kept := self._seen.get(each["Id"])) is not None}
        shown = {each.unit: each for each in (*self._failures.list(), *seen) if each is not None}
        for unit, tracked in self._tracked.items():
            if tracked.starting and unit not in shown:
                shown[unit] = Observed(unit=unit, phase=UnitPhase.STARTING, message=tracked.progress)
        await self._sandboxes.tidy({unit.uid for unit in shown} | {unit.uid for unit in self._busy()})
        return [shown[unit] for unit in sorted(shown)]

    async def start(self, unit: Unit, launch: Launch) -> None:
        tracked = self._tracked.setdefault(unit, Tracked())
        async with tracked.busy:
            self._tracked[unit] = tracked
            if self._failures.knows(unit):
                return
            with self._told(f"told to start {unit}"):
                found = await self._find(unit, foreign=True)
                if found is not None and observe(unit, found) is not None:
                    return
                tracked.starting, tracked.progress = True, ""
                try:
                    if found is not None:  # Made, and never begun: whoever made it was interrupted.
                        await self._discard(found["Id"])
                    await self._begin(unit, launch, tracked)
                except (Invalid, NotFound) as error:
                    self._failures.write(unit, f"{error.message}; {error.hint}" if error.hint else error.message)
                finally:
                    tracked.starting = False

    async def stop(self, unit: Unit, *, grace_seconds: float) -> None:
        tracked = self._tracked.setdefault(unit, Tracked())
        async with tracked.busy:
            pass  # What is being started can be stopped only afterwards.
        with self._told(f"told to stop {unit}"):
            found = await self._find(unit)
            if found is None or found["State"]["Status"] not in RUNNING:
                return
            if found["State"].get("Paused"):
                await self._quietly("POST", f"/containers/{found['Id']}/unpause")
            if not tracked.asked:
                tracked.asked = True
                await self._signal(found["Id"], found["Config"].get("StopSignal") or "SIGTERM")
            if await self._over(found["Id"], grace_seconds):
                return
            await self._signal(found["Id"], "SIGKILL")
            if not await self._over(found["Id"], KILL_SECONDS):
                raise EngineDown(f"{unit} does not end, not even when it is killed")

    async def remove(self, unit: Unit) -> None:
        tracked = self._tracked.setdefault(unit, Tracked())
        async with tracked.busy:
            with self._told(f"told to remove {unit}"):
                found = await self._find(unit)
                if found is not None:
                    await self._discard(found["Id"])
                    self._seen.pop(found["Id"], None)
                self._failures.forget(unit)
            self._tracked.pop(unit, None)
        if not any(each.uid == unit.uid for each in self._busy()):
            with self._told(f"told to remove the network of {unit.uid}"):
                await self._leave_sandbox(unit.uid)

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
            query: dict[str, Any] = {"stdout": True, "stderr": True, "timestamps": True, "follow": follow}
            query["tail"] = "all" if tail is None else tail
            if since is not None:  # A moment earlier, because a float is not as fine as the engine's clock.
                query["since"] = f"{max(0.0, since - 0.001):.6f}"
            async with self._api.stream("GET", f"/containers/{found['Id']}/logs", query=query) as stream:

                async def read(count: int) -> bytes:
                    try:
                        return await stream.readexactly(count)
                    except asyncio.IncompleteReadError as error:
                        return error.partial

                async for line in read_lines(read):
                    if since is None or line.at >= since:
                        yield line

    async def exec(
        self, unit: Unit, command: Sequence[str], *, terminal: bool = False, rows: int = 24, columns: int = 80
    ) -> Execution:
        if not command:
            raise Invalid("there is no command to run")
        with self._told(f"told to run a command in {unit}"):
            found = await self._find(unit)
            if found is None or found["State"]["Status"] != "running":
                raise NotFound(f"{unit} is not running", hint="exec needs a task that runs")
            wish: dict[str, Any] = {"AttachStdin": True, "AttachStdout": True, "AttachStderr": True}
            wish |= {"Cmd": list(command), "Tty": terminal}
            begin: dict[str, Any] = {"Detach": False, "Tty": terminal}
            if terminal:
                wish["ConsoleSize"] = begin["ConsoleSize"] = [rows, columns]
            try:
                made = await self._api.post(f"/containers/{found['Id']}/exec", wish)
                connection = await self._api.hijack(f"/exec/{made['Id']}/start", begin)
            except Refused as error:
                if error.status in {GONE, NOT_NOW}:
                    raise NotFound(f"{unit} is not running", hint="exec needs a task that runs") from error
                raise

            async def init() -> int:
                return int((await self._api.get(f"/containers/{found['Id']}/json"))["State"]["Pid"])

            execution = ContainerExecution(self._api, made["Id"], connection, init, terminal=terminal)
            await execution.resize(rows, columns)  # Engines before API 1.42 do not take it at the beginning.
            return execution

    async def usage(self) -> Mapping[Unit, Usage]:
        with self._told("asked what its units use"):
            running = await self._api.get("/containers/json", filters=self._mine())
            ids = {each["Id"]: unit for each in running if (unit := marks.unit_of(each["Labels"], self.owner))}
            return await self._usage(ids)

    async def _usage(self, ids: Mapping[str, Unit]) -> Mapping[Unit, Usage]:
        found = await asyncio.gather(*(self._measure(each) for each in ids))
        return {ids[key]: usage for key, usage in zip(ids, found, strict=True) if usage is not None}

    async def _measure(self, identity: str) -> Usage | None:
        async with self._places:
            query = {"stream": "false", "one-shot": "true"}
            try:
                found = await self._api.call("GET", f"/containers/{identity}/stats", query=query)
            except Refused:
                return None  # It ended meanwhile.
        return usage_of(found) if found.get("cpu_stats") else None

    async def images(self) -> Mapping[str, int]:
        with self._told("asked for its images"):
            return await self._images.sizes()

    async def events(self) -> AsyncIterator[None]:
        wanted = {"filters": filters(type=["container"], label=[f"{marks.OWNER}={self.owner}"])}
        with self._told("asked for its events"):
            # From a moment ago: what happens while the connection is made is not missed.
            async with self._api.stream("GET", "/events", query={**wanted, "since": int(time()) - 1}) as stream:
                self._seen.clear()
                yield  # Nobody listened until now.
                while line := await stream.readline():
                    self._forget_seen(line)
                    yield
        raise EngineDown(f"the events of {self.name} broke off")

    def _forget_seen(self, line: bytes) -> None:
        for identity in [each for each in self._seen if each.encode() in line]:
            del self._seen[identity]

    async def close(self) -> None:
        await self._api.close()

    def _check_there(self) -> None:
        if not self._api.socket.exists() and shutil.which(self.program) is None:
            raise NotFound(f"there is no {self.name} on this machine", hint=f"its socket would be {self._api.socket}")

    # Containers.

    def _mine(self) -> str:
        return filters(label=[f"{marks.OWNER}={self.owner}"])

    def _busy(self) -> Iterator[Unit]:
        return (unit for unit, tracked in self._tracked.items() if tracked.busy.locked())

    async def _find(self, unit: Unit, *, foreign: bool = False) -> dict[str, Any] | None:
        """Its container, inspected; `foreign`: somebody else's of the same name is an error, and not nothing."""
        name = marks.container_name(unit)
        found = await self._inspect(name)
        if found is None:
            return None
        if marks.unit_of(found["Config"]["Labels"] or {}, self.owner) == unit:
            return found
        if foreign:
            raise Conflict(
                f"{self.name} has a container called {name} that is not this agent's", hint="remove or rename it"
            )
        return None

    async def _inspect(self, identity: str) -> dict[str, Any] | None:
        """None: there is no such container."""
        for last in (False, False, True):
            try:
                found: dict[str, Any] = await self._api.get(f"/containers/{identity}/json")
                return found
            except Refused as error:
                if error.status == GONE:
                    return None
                if last or "no such process" not in error.message:
                    raise
            await asyncio.sleep(0.1)  # Podman looked at a process that ended at that moment.
        return None

    async def _look(self, unit: Unit, listed: Mapping[str, Any]) -> Observed | None:
        identity, state = listed["Id"], listed["State"]
        kept = self._seen.get(identity)
        if kept is not None and kept[0] == state:
            return kept[1]
        tracked = self._tracked.get(unit)
        if state in {"created", "configured", "initialized"}:
            if (tracked is None or not tracked.busy.locked()) and time() - float(listed.get("Created", 0)) > 0:
                with suppress(Refused):  # Nobody begins it any more: whoever made it was interrupted.
                    await self._discard(identity)
            return None
        async with self._places:
            inspected = await self._inspect(identity)
        observed = None if inspected is None else observe(unit, inspected)
        if inspected is None or observed is None:
            return None
        observed = self._sandboxes.located(observed)
        observed = self.judge(observed, inspected, asked=tracked is not None and tracked.asked)
        if inspected["State"]["Status"] == state:
            self._seen[identity] = (state, observed)
        return observed

    async def _begin(self, unit: Unit, launch: Launch, tracked: Tracked) -> None:
        def progress(words: str) -> None:
            tracked.progress = words

        options = read_options(self.name, launch)
        body = make_body(launch, options, marks.labels_of(self.owner, unit, launch))
        await self._images.ensure(str(launch.image), options.pull, progress)
        progress("")
        async with self._places:
            try:
                if launch.sandbox:
                    network = await self._sandboxes.ensure(unit.uid, launch, options, self.owner)
                    body = make_body(launch, options, body["Labels"], network_of=network)
                made = await self._api.post(
                    "/containers/create", body, seconds=START_SECONDS, name=marks.container_name(unit)
                )
                await self._put_files(made["Id"], launch)
                await self._api.post(f"/containers/{made['Id']}/start", seconds=START_SECONDS)
            except Refused as error:
                await self._give_up(unit)
                if passing(error.message) or error.status == NOT_NOW:
                    raise Unavailable(f"{self.name} cannot start it now: {error.message}") from error
                raise Invalid(error.message) from error

    async def _give_up(self, unit: Unit) -> None:
        with suppress(Refused):
            found = await self._find(unit)
            if found is not None:
                await self._discard(found["Id"])

    async def _put_files(self, identity: str, launch: Launch) -> None:
        if not launch.files:
            return
        config = (await self._api.get(f"/containers/{identity}/json"))["Config"]
        user = config.get("User") or "0"
        uid, gid = who(user, await self._read(identity, "/etc/passwd"))
        archive = make_archive(launch.files, config.get("WorkingDir") or "/", uid=uid, gid=gid)
        await self._api.call(
            "PUT",
            f"/containers/{identity}/archive",
            query={"path": "/"},
            data=archive,
            headers={"Content-Type": "application/x-tar"},
        )

    async def _read(self, identity: str, path: str) -> str:
        try:
            return read_archived(await self._api.call("GET", f"/containers/{identity}/archive", query={"path": path}))
        except Refused:
            return ""

    async def _signal(self, identity: str, name: str) -> None:
        await self._quietly("POST", f"/containers/{identity}/kill", signal=name)

    async def _over(self, identity: str, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._api.post(f"/containers/{identity}/wait", seconds=seconds + KILL_SECONDS)
        except TimeoutError:
            return False
        except Refused as error:
            if error.status != GONE:
                raise
        return True

    async def _discard(self, identity: str) -> None:
        """Gone afterwards, whoever else removes it at the same time."""
        for _ in range(int(KILL_SECONDS * 10)):
            try:
                await self._api.call("DELETE", f"/containers/{identity}", query={"force": "true", "v": "true"})
            except Refused as error:
                if error.status == GONE:
                    return
                if error.status != NOT_NOW:
                    raise
            try:
                await self._api.get(f"/containers/{identity}/json")
            except Refused as error:
                if error.status == GONE:
                    return
                raise
            await asyncio.sleep(0.1)
        raise EngineDown(f"{self.name} does not remove the container {identity[:12]}")

    async def _leave_sandbox(self, uid: str) -> None:
        if await self._sandboxes.known(uid):
            others = await self._api.get("/containers/json", all=True, filters=filters(label=[f"{marks.UID}={uid}"]))
            if all(marks.unit_of(each["Labels"], self.owner) is None for each in others):
                await self._sandboxes.remove(uid)

    async def _quietly(self, method: str, path: str, **query: Any) -> None:
        """What is no longer there, or no longer runs, needs it no more."""
        try:
            await self._api.call(method, path, query=query)
        except Refused as error:
            if error.status not in {GONE, NOT_NOW} and "container state improper" not in error.message:
                raise

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except Refused as error:
            raise Unavailable(f"{self.name}, {what}: {error.message}") from error
        except OSError as error:
            raise EngineDown(f"the {self.name} engine cannot use {self._directory}: {error}") from error
