"""An engine over Docker's API: containers are found by their labels, and each verb can be repeated."""

from __future__ import annotations

import asyncio
import shutil
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping, Sequence
from pathlib import Path
from time import time
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from mandor.engines.base import Execution, Launch, LogLine, Mount, Observed, Unit, UnitPhase, Usage
from mandor.engines.containers import labels as marks
from mandor.engines.containers.engine import AT_ONCE, KILL_SECONDS, ContainerEngine, not_running, taken_away
from mandor.engines.containers.files import write_files
from mandor.engines.containers.launches import with_mapped_user, with_writable_tmp
from mandor.engines.containers.pulled_images import PulledImages
from mandor.engines.containers.tracked import Tracked
from mandor.engines.docker_api.body import make_body
from mandor.engines.docker_api.client import GONE, NOT_NOW, START_SECONDS, ApiClient, Refused, filters
from mandor.engines.docker_api.containers import Containers
from mandor.engines.docker_api.execution import ContainerExecution
from mandor.engines.docker_api.frames import read_lines
from mandor.engines.docker_api.idle import can_idle
from mandor.engines.docker_api.images import ApiImages
from mandor.engines.docker_api.networks import EngineNetworks
from mandor.engines.docker_api.observe import observe
from mandor.engines.docker_api.options import ContainerOptions
from mandor.engines.docker_api.sandbox import Sandboxes
from mandor.engines.docker_api.seeding import Seeding
from mandor.engines.docker_api.usage import usage_of
from mandor.engines.options import read_options
from mandor.errors import EngineDown, NotFound
from mandor.model.image import ImageFile
from mandor.model.node import Capabilities

EXTRAS = frozenset(
    (
        *("logs", "exec", "signal", "stats", "events", "pull", "user", "security"),
        *("sandbox", "mounts", "tmpfs", "ports", "hosts", "clean", "seed", "resolver"),
    )
)


class DockerApiEngine(ContainerEngine):
    """Base of the docker and podman engines; a subclass has the socket and the differences."""

    def __init__(
        self,
        directory: Path,
        *,
        socket: Path | None = None,
        credentials: Sequence[Path] | None = None,
        answer_seconds: float = 60.0,
    ) -> None:
        super().__init__(directory)
        self._api = ApiClient(self.name, socket or self.default_socket(), cure=self.cure, answer_seconds=answer_seconds)
        self._containers = Containers(self._api, lambda: self.owner, waits=self.waits, kill=self.kill)
        self._images = ApiImages(self._api, PulledImages(self._directory / "images.json"), credentials=credentials)
        self._sandboxes = Sandboxes(self._api)
        self._networks = EngineNetworks(self._api, lambda: self.owner)
        self._seeding = Seeding(self._api, self._containers, initialize=self.initialize)
        self._seen: dict[str, tuple[str, Observed]] = {}
        """State and result of the last inspection by container id; valid while the state is the same."""
        self._starts = asyncio.Semaphore(AT_ONCE)
        self._questions = asyncio.Semaphore(AT_ONCE)
        """Limit of concurrent reads, separate from the starts: a read does not wait for a start."""

    options = ContainerOptions

    # Differences between the engines.

    _maps_users: bool | None = None
    _rootless = False

    program: ClassVar[str]
    """Name of the engine's program: the engine is installed if the program or the socket exists."""
    cure: ClassVar[str]
    """Command that starts the engine, for messages."""
    waits: ClassVar[bool] = True
    """The engine's call that waits for the end of a container does not poll."""
    kill: ClassVar[str] = "/containers/{}/kill"
    initialize: ClassVar[str] = ""
    """Path of the call after which a named volume has the content of its image; empty: it has it from the start."""

    @abstractmethod
    def default_socket(self) -> Path:
        """Return the socket that the engine's own command uses."""

    @property
    def extras(self) -> frozenset[str]:
        return EXTRAS if can_idle() else EXTRAS - {"sandbox"}

    async def limits(self) -> frozenset[str]:
        """Return the limits that are enforced on this machine."""
        info = await self._api.get("/info")
        known = {"cpu": "CpuCfsQuota", "memory": "MemoryLimit", "processes": "PidsLimit"}
        return frozenset(limit for limit, key in known.items() if info.get(key))

    async def maps_users(self) -> bool:
        """Return whether users of containers are mapped to a range of users of the node, as in rootless mode. Read
        once."""
        if self._maps_users is None:
            options = (await self._api.get("/info")).get("SecurityOptions") or ()
            self._maps_users = any(str(each).startswith(("name=rootless", "name=userns")) for each in options)
            self._rootless = any(str(each).startswith("name=rootless") for each in options)
        return self._maps_users

    async def _unreachable(self) -> frozenset[str]:
        """Return what a rootless engine lacks: its containers do not reach addresses of the node."""
        return frozenset({"resolver"}) if await self.rootless() else frozenset()

    async def rootless(self) -> bool:
        """Return whether the engine runs as a user, in a network of its own."""
        await self.maps_users()
        return self._rootless

    def correct(self, observed: Observed, inspected: Mapping[str, Any], *, asked: bool) -> Observed:
        """Correct known errors in the report of the engine; `asked`: the agent sent the stop signal."""
        return observed

    # Reading.

    async def probe(self) -> Capabilities:
        self._check_there()
        with self._engine_errors("report its version"):
            version, limits = await asyncio.gather(self._api.get("/version"), self.limits())
        return Capabilities(
            version=str(version.get("Version", "")),
            images=True,
            limits=limits,
            extras=self.extras - (await self._unreachable()),
            loads=frozenset({"archive"}),
        )

    async def logs(
        self, unit: Unit, *, follow: bool = False, tail: int | None = None, since: float | None = None
    ) -> AsyncIterator[LogLine]:
        found = await self._find_for_logs(unit)
        if found is None:
            return
        query: dict[str, Any] = {"stdout": True, "stderr": True, "timestamps": True, "follow": follow}
        query["tail"] = "all" if tail is None else tail
        if since is not None:  # A millisecond earlier, because a float is less precise than the engine's clock.
            query["since"] = f"{max(0.0, since - 0.001):.6f}"
        with self._engine_errors(f"read the logs of {unit}"):
            async with self._api.stream("GET", f"/containers/{found['Id']}/logs", query=query) as stream:

                async def read(count: int) -> bytes:
                    try:
                        return await stream.readexactly(count)
                    except asyncio.IncompleteReadError as error:
                        return error.partial

                async for line in read_lines(read):
                    if since is None or line.at >= since:
                        yield line

    async def usage(self) -> Mapping[Unit, Usage]:
        with self._engine_errors("measure its units"):
            running = await self._api.get("/containers/json", filters=self._mine())
            ids = {each["Id"]: unit for each in running if (unit := marks.unit_of(each["Labels"], self.owner))}
            return await self._usage(ids)

    async def disk(self) -> Mapping[Unit, int]:
        with self._engine_errors("measure the disks of its units"):
            found = await self._api.get("/containers/json", filters=self._mine(), all="true", size="true")
        return {
            unit: int(each.get("SizeRw") or 0)
            for each in found
            if (unit := marks.unit_of(each["Labels"], self.owner)) is not None
        }

    async def _usage(self, ids: Mapping[str, Unit]) -> Mapping[Unit, Usage]:
        found = await asyncio.gather(*(self._measure(each) for each in ids))
        return {ids[key]: usage for key, usage in zip(ids, found, strict=True) if usage is not None}

    async def _measure(self, identity: str) -> Usage | None:
        async with self._questions:
            query = {"stream": "false", "one-shot": "true"}
            try:
                found = await self._api.call("GET", f"/containers/{identity}/stats", query=query)
            except Refused:
                return None  # It ended meanwhile.
        return usage_of(found) if found.get("cpu_stats") else None

    async def images(self) -> Mapping[str, int]:
        with self._engine_errors("list its images"):
            return await self._images.sizes()

    async def clean_image(self, keep: Collection[str]) -> str:
        with self._engine_errors("remove an image"):
            return await self._images.clean(keep)

    async def storage(self) -> str:
        with self._engine_errors("report its storage folder"):
            return str((await self._api.get("/info")).get("DockerRootDir") or "")

    async def load_image(self, image: ImageFile, content: AsyncIterator[bytes]) -> bool:
        if image.kind != "archive":
            return await super().load_image(image, content)
        with self._engine_errors("load an image"):
            return await self._images.load(image, content)

    async def events(self) -> AsyncIterator[None]:
        wanted = {"filters": filters(type=["container"], label=[f"{marks.OWNER}={self.owner}"])}
        with self._engine_errors("send events"):
            # Since a second ago: events during the connection are not missed.
            async with self._api.stream("GET", "/events", query={**wanted, "since": int(time()) - 1}) as stream:
                self._seen.clear()
                yield  # Changes before this subscription were not sent.
                while line := await stream.readline():
                    if self._changes_list(line):
                        yield
        raise EngineDown(f"the event stream of {self.name} ended")

    def _changes_list(self, line: bytes) -> bool:
        """Return whether an event can change the result of `list`: commands inside a container, such as probes, and
        containers that are only created do not."""
        try:
            event = msgspec.json.decode(line)
        except msgspec.DecodeError:
            return True
        if str(event.get("Action", "")).startswith(("create", "exec", "top", "attach", "resize")):
            return False
        self._seen.pop((event.get("Actor") or {}).get("ID", ""), None)
        return True

    async def close(self) -> None:
        await self._api.close()

    # The steps of the verbs.

    def _check_there(self) -> None:
        if not self._api.answered and not self._api.socket.exists() and shutil.which(self.program) is None:
            raise NotFound(
                f"{self.name} is not installed on this machine", hint=f"there is no socket {self._api.socket}"
            )

    def _mine(self) -> str:
        return filters(label=[f"{marks.OWNER}={self.owner}"])

    async def _list(self) -> Sequence[tuple[Unit, Awaitable[Observed | None]]]:
        found = await self._api.get("/containers/json", all=True, filters=self._mine())
        self._sandboxes.saw(found)
        self._seen = {each["Id"]: kept for each in found if (kept := self._seen.get(each["Id"])) is not None}
        units = [(unit, each) for each in found if (unit := marks.unit_of(each["Labels"], self.owner)) is not None]
        return [(unit, self._look(unit, each)) for unit, each in units]

    async def _look(self, unit: Unit, listed: Any) -> Observed | None:
        identity, state = listed["Id"], listed["State"]
        kept = self._seen.get(identity)
        if kept is not None and kept[0] == state:
            return kept[1]
        if state in {"created", "configured", "initialized"}:
            return await self._abandon(unit)
        async with self._questions:
            inspected = await self._containers.inspect(identity)
        observed = None if inspected is None else observe(unit, inspected)
        if inspected is None or observed is None:
            return None
        observed = self._sandboxes.located(observed)
        tracked = self._tracked.get(unit)
        observed = self.correct(observed, inspected, asked=tracked is not None and tracked.asked)
        if inspected["State"]["Status"] == state:
            self._seen[identity] = (state, observed)
        return observed

    async def _find(self, unit: Unit, *, foreign: bool = False) -> Any | None:
        return await self._containers.find(unit, foreign=foreign)

    def _phase(self, unit: Unit, found: Any) -> UnitPhase:
        observed = observe(unit, found)
        return UnitPhase.STARTING if observed is None else observed.phase

    async def _begin(self, unit: Unit, launch: Launch, tracked: Tracked, found: Any | None) -> None:
        def progress(words: str) -> None:
            tracked.progress = words

        if found is not None:
            await self._containers.discard(found["Id"])
        options = read_options(self.name, launch.options, ContainerOptions)
        launch = with_writable_tmp(launch)
        if await self.maps_users():
            launch = with_mapped_user(launch)
        body = make_body(launch, options, marks.labels_of(self.owner, unit, launch))
        image = await self._images.ensure(str(launch.image), options.pull, progress, launch.login)
        if digest := self._images.digest_of(str(launch.image), image):
            body["Labels"][marks.DIGEST] = digest
        async with self._starts:
            await self._make(unit, launch, options, body)

    async def _make(self, unit: Unit, launch: Launch, options: ContainerOptions, body: dict[str, Any]) -> None:
        if launch.files and (launch.security.read_only_root or options.read_only):
            launch = await self._with_mounted_files(unit, launch)
            body = make_body(launch, options, body["Labels"])
        if launch.sandbox:
            if launch.attachment is not None:
                await self._networks.ensure(launch.attachment)
            network = await self._sandboxes.ensure(unit.uid, launch, options, self.owner)
            body = make_body(launch, options, body["Labels"], network_of=network)
        await self._seeding.fill(unit, launch)
        if launch.attachment is not None and not launch.sandbox:
            await self._networks.ensure(launch.attachment)
        made = await self._containers.create(unit, body)
        await self._containers.put_files(made, launch)
        try:
            await self._api.post(f"/containers/{made}/start", seconds=START_SECONDS)
        except Refused as error:
            if error.unknown:
                raise taken_away(unit) from error
            raise

    async def _with_mounted_files(self, unit: Unit, launch: Launch) -> Launch:
        """Write the files to the node and mount them: the engine cannot copy files to a read-only root file system."""
        config = (await self._api.get(f"/images/{launch.image}/json"))["Config"] or {}
        written = await asyncio.to_thread(
            write_files, launch, self._files(unit), config.get("WorkingDir") or "/", config.get("User") or ""
        )
        mounts = (Mount(path=path, source=source, read_only=True) for path, source in written.items())
        return replace(launch, files=(), mounts=(*launch.mounts, *mounts))

    def _files(self, unit: Unit) -> Path:
        return self._directory / "files" / str(unit)

    async def _end(self, unit: Unit, found: Any, tracked: Tracked, grace_seconds: float) -> None:
        if found["State"].get("Paused"):
            await self._containers.quietly("POST", f"/containers/{found['Id']}/unpause")
        await self._send_stop_signal(tracked, found)
        if await self._containers.over(found["Id"], grace_seconds):
            return
        await self._containers.signal(found["Id"], "SIGKILL")
        if not await self._containers.over(found["Id"], KILL_SECONDS):
            raise EngineDown(f"{unit} does not end after SIGKILL")

    async def _send_stop_signal(self, tracked: Tracked, found: Mapping[str, Any]) -> None:
        """Send the stop signal once, also if `stop` is called several times."""
        if tracked.asked:
            return
        tracked.asked = True
        try:
            await self._containers.signal(found["Id"], found["Config"].get("StopSignal") or "SIGTERM")
        except BaseException:
            tracked.asked = False
            raise

    async def _send_signal(self, unit: Unit, found: Any, name: str) -> None:
        try:
            await self._api.call("POST", self.kill.format(found["Id"]), query={"signal": name})
        except Refused as error:
            if error.status in {GONE, NOT_NOW}:
                raise not_running(unit, "a signal") from error
            raise

    async def _discard(self, unit: Unit) -> None:
        found = await self._find(unit)
        if found is not None:
            await self._containers.discard(found["Id"])
            self._seen.pop(found["Id"], None)
        if (files := self._files(unit)).is_dir():
            await asyncio.to_thread(shutil.rmtree, files, ignore_errors=True)

    async def _tidy(self, wanted: set[str]) -> None:
        await self._sandboxes.tidy(wanted)

    async def _leave(self, uid: str) -> None:
        if self._sandboxes.known(uid):
            others = await self._api.get("/containers/json", all=True, filters=filters(label=[f"{marks.UID}={uid}"]))
            if all(marks.unit_of(each["Labels"], self.owner) is None for each in others):
                await self._sandboxes.remove(uid)

    async def _execute(
        self, unit: Unit, found: Any, command: Sequence[str], *, terminal: bool, rows: int, columns: int
    ) -> Execution:
        request: dict[str, Any] = {"AttachStdin": True, "AttachStdout": True, "AttachStderr": True}
        request |= {"Cmd": list(command), "Tty": terminal}
        begin: dict[str, Any] = {"Detach": False, "Tty": terminal}
        if terminal:
            request["ConsoleSize"] = begin["ConsoleSize"] = [rows, columns]
        try:
            made = await self._api.post(f"/containers/{found['Id']}/exec", request)
            connection = await self._api.hijack(f"/exec/{made['Id']}/start", begin)
        except Refused as error:
            if error.status in {GONE, NOT_NOW}:
                raise not_running(unit) from error
            raise

        async def init() -> int:
            return int((await self._api.get(f"/containers/{found['Id']}/json"))["State"]["Pid"])

        execution = ContainerExecution(self._api, made["Id"], connection, init, terminal=terminal)
        await execution.resize(rows, columns)  # Engines before API 1.42 ignore the size at the start.
        return execution
