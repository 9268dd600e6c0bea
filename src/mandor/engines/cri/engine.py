"""An engine over the Container Runtime Interface: one sandbox per instance and one container per unit, found by
labels."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from msgspec.structs import replace

from mandor.engines.base import Execution, Launch, LogLine, Observed, Unit, UnitPhase, Usage
from mandor.engines.containers import labels as marks
from mandor.engines.containers import refused as containers
from mandor.engines.containers.engine import AT_ONCE, KILL_SECONDS, ContainerEngine, taken_away
from mandor.engines.containers.files import write_files
from mandor.engines.containers.launches import check_working_dir, image_of, with_writable_tmp
from mandor.engines.containers.pulled_images import PulledImages
from mandor.engines.containers.tracked import Tracked
from mandor.engines.cri import wire
from mandor.engines.cri.amend import amend, needs_amending
from mandor.engines.cri.client import START_SECONDS, CriClient, Refused
from mandor.engines.cri.config import container_config, log_name, sandbox_config
from mandor.engines.cri.execution import Dial, begin, dial_directly
from mandor.engines.cri.images import CriImages
from mandor.engines.cri.network import Traffic, traffic_of
from mandor.engines.cri.observe import NANO, interrupted, observe, process_of, working_dir_of
from mandor.engines.cri.options import CriOptions
from mandor.engines.cri.sandboxes import Sandboxes
from mandor.engines.options import read_options
from mandor.engines.stamped import read_logs, rotate
from mandor.errors import EngineDown, Invalid, MandorError, NotFound, Unavailable
from mandor.model.image import ImageFile
from mandor.model.node import Capabilities

SOCKETS = (Path("/run/containerd/containerd.sock"), Path("/var/run/crio/crio.sock"))
LOOK_SECONDS = 0.05
POLL_SECONDS = 1.0
CONTAINERD = "containerd"
"""Runtime whose own API, on the same socket, has calls that the CRI lacks."""
LIMITS = frozenset({"cpu", "memory"})
EXTRAS = frozenset(
    (
        *("logs", "exec", "signal", "stats", "events", "pull", "user"),
        *("security", "sandbox", "mounts", "ports", "hosts", "clean", "resolver"),
    )
)
_LOG_LIMITS = "io.mandor.log"


class CriEngine(ContainerEngine):
    name: ClassVar[str] = "cri"
    options = CriOptions

    def __init__(
        self,
        directory: Path,
        *,
        socket: Path | None = None,
        credentials: Sequence[Path] | None = None,
        answer_seconds: float = 60.0,
        dial: Dial = dial_directly,
    ) -> None:
        """`socket` None: the one that CONTAINER_RUNTIME_ENDPOINT names, else containerd's, else CRI-O's; `dial` reaches
        the runtime's streaming server."""
        super().__init__(directory)
        self._api = CriClient(socket or find_socket(), answer_seconds=answer_seconds)
        self._images = CriImages(self._api, PulledImages(self._directory / "images.json"), credentials=credentials)
        self._sandboxes = Sandboxes(self._api)
        self._dial = dial
        self._seen: dict[str, Observed] = {}
        """Exited units by container id; they do not change any more."""
        self._processes: dict[str, int | None] = {}
        """Process id of the first process by container id; None: not read yet."""
        self._starts = asyncio.Semaphore(AT_ONCE)
        self._questions = asyncio.Semaphore(AT_ONCE)
        """Limit of concurrent reads, separate from the starts: a read does not wait for a start."""

    @property
    def title(self) -> str:
        return "the CRI runtime"

    # Reading.

    async def probe(self) -> Capabilities:
        self._check_there()
        with self._engine_errors("report its version"):
            version = await self._version()
            status = await self._api.call(wire.STATUS)
        lacking = [each for each in status.status.conditions if not each.status]
        message = "; ".join(f"{each.type}: {each.message or each.reason}" for each in lacking)
        return Capabilities(
            version=version.runtime_version.removeprefix("v"),
            images=True,
            limits=LIMITS | ({"processes"} if version.runtime_name == CONTAINERD else frozenset()),
            extras=EXTRAS | ({"tmpfs"} if version.runtime_name == CONTAINERD else frozenset()),
            loads=frozenset({"archive"} if version.runtime_name == CONTAINERD else ()),
            message=message,
        )

    async def logs(
        self, unit: Unit, *, follow: bool = False, tail: int | None = None, since: float | None = None
    ) -> AsyncIterator[LogLine]:
        if await self._find_for_logs(unit) is None:
            return

        async def over() -> bool:
            with self._engine_errors(f"find {unit}"):
                found = await self._find(unit)
            return found is None or found.state == wire.EXITED

        path = self._logs(unit.uid) / log_name(unit)
        async for line in read_logs(path, follow=follow, tail=tail, since=since, over=over):
            yield line

    async def usage(self) -> Mapping[Unit, Usage]:
        wanted = wire.make("ContainerStatsFilter", label_selector={marks.OWNER: self.owner})
        with self._engine_errors("measure its units"):
            running = {each.id: each for _, each in await self._labelled() if each.state == wire.RUNNING}
            found = await self._api.call(wire.STATS, filter=wanted)
            traffic = await self._traffic(running)
            await self._rotate_logs()
        return {
            unit: Usage(
                cpu_seconds=each.cpu.usage_core_nano_seconds.value / NANO,
                memory_bytes=each.memory.working_set_bytes.value,
                network_in_bytes=traffic.get(each.attributes.id, Traffic()).received,
                network_out_bytes=traffic.get(each.attributes.id, Traffic()).sent,
            )
            for each in found.stats
            if each.attributes.id in running and (unit := marks.unit_of(each.attributes.labels, self.owner)) is not None
        }

    async def _traffic(self, running: Mapping[str, Any]) -> Mapping[str, Traffic]:
        """Return the traffic by container; tasks that share a network are counted with the first one."""
        first = {each.pod_sandbox_id: identity for identity, each in sorted(running.items(), reverse=True)}
        self._processes = {identity: self._processes.get(identity) for identity in first.values()}
        for identity in [identity for identity, process in self._processes.items() if process is None]:
            status = await self._status(identity, verbose=True)
            self._processes[identity] = None if status is None else process_of(status.info)
        known = ((identity, process) for identity, process in self._processes.items() if process is not None)
        return {identity: traffic_of(process) for identity, process in known}

    async def images(self) -> Mapping[str, int]:
        with self._engine_errors("list its images"):
            return await self._images.sizes()

    async def clean_image(self, keep: Collection[str]) -> str:
        with self._engine_errors("remove an image"):
            return await self._images.clean(keep)

    async def storage(self) -> str:
        with self._engine_errors("report its storage folder"):
            found = (await self._api.call(wire.IMAGE_DISKS)).image_filesystems
        return next((each.fs_id.mountpoint for each in found), "")

    async def load_image(self, image: ImageFile, content: AsyncIterator[bytes]) -> bool:
        if image.kind != "archive":
            return await super().load_image(image, content)
        with self._engine_errors("load an image"):
            return await self._images.load(image, content)

    async def events(self) -> AsyncIterator[None]:
        with self._engine_errors("send events"):
            yield  # Changes before this subscription were not sent.
            try:
                async for _ in self._api.stream(wire.EVENTS):
                    yield
            except Refused as error:
                if not error.unimplemented:
                    raise
            else:
                raise EngineDown("the event stream of the CRI runtime ended")
            before: object = None
            while True:  # Older runtimes have no events: poll, and report changes only.
                now = [(each.id, each.state) for _, each in await self._labelled()]
                if now != before:
                    yield
                before = now
                await asyncio.sleep(POLL_SECONDS)

    async def close(self) -> None:
        await self._api.close()

    # The steps of the verbs.

    def _check_there(self) -> None:
        if not self._api.socket.exists() and not (self._directory / "owner").exists():
            raise NotFound("no CRI runtime is installed on this machine", hint=f"there is no socket {self._api.socket}")

    async def _list(self) -> Sequence[tuple[Unit, Awaitable[Observed | None]]]:
        listed = await self._labelled()
        await self._sandboxes.look(self.owner)
        self._seen = {each.id: kept for _, each in listed if (kept := self._seen.get(each.id)) is not None}
        return [(unit, self._look(unit, each)) for unit, each in listed]

    async def _labelled(self, labels: Mapping[str, str] | None = None) -> Sequence[tuple[Unit, Any]]:
        wanted = wire.make("ContainerFilter", label_selector={marks.OWNER: self.owner, **(labels or {})})
        found = await self._api.call(wire.LIST, filter=wanted)
        return [(unit, each) for each in found.containers if (unit := marks.unit_of(each.labels, self.owner))]

    async def _find(self, unit: Unit, *, foreign: bool = False) -> Any | None:
        """Return the container of a unit. Names are unique within a sandbox, so they never conflict with foreign
        ones."""
        labels = {marks.UID: unit.uid, marks.TASK: unit.task, marks.ATTEMPT: str(unit.attempt)}
        found = next((each for _, each in await self._labelled(labels)), None)
        if found is not None and found.state == wire.EXITED and found.id not in self._seen:
            status = await self._status(found.id)
            if status is not None and interrupted(status.status):
                await self._take_away(found.id)
                return None
        return found

    def _phase(self, unit: Unit, found: Any) -> UnitPhase:
        known = {wire.CREATED: UnitPhase.STARTING, wire.RUNNING: UnitPhase.RUNNING}
        return known.get(found.state, UnitPhase.EXITED)

    async def _look(self, unit: Unit, listed: Any) -> Observed | None:
        if (kept := self._seen.get(listed.id)) is not None:
            return kept
        if listed.state == wire.CREATED:
            return await self._abandon(unit)
        async with self._questions:
            status = await self._status(listed.id)
            address = await self._sandboxes.address(listed.pod_sandbox_id)
        if status is not None and interrupted(status.status):
            if not self._is_busy(unit):
                await self._take_away(listed.id)
            return None
        observed = None if status is None else observe(unit, status.status, address)
        if observed is not None and (digest := listed.labels.get(marks.DIGEST)):
            observed = replace(observed, digest=digest)
        if observed is not None and observed.phase is UnitPhase.EXITED:
            self._seen[listed.id] = observed
        return observed

    async def _status(self, identity: str, *, verbose: bool = False) -> Any | None:
        try:
            return await self._api.call(wire.CONTAINER_STATUS, container_id=identity, verbose=verbose)
        except Refused as error:
            if error.unknown:
                return None
            raise

    async def _begin(self, unit: Unit, launch: Launch, tracked: Tracked, found: Any | None) -> None:
        def progress(words: str) -> None:
            tracked.progress = words

        if found is not None:
            await self._discard(unit)
        check_working_dir(launch)
        options = read_options(self.name, launch.options, CriOptions)
        if (await self._version()).runtime_name == CONTAINERD:
            launch = with_writable_tmp(launch)
        image = await self._images.ensure(image_of(launch), options.pull, progress, launch.login)
        files = write_files(launch, self._files(unit), working_dir_of(image.info))
        labels = marks.labels_of(self.owner, unit, launch)
        if digest := self._images.digest_of(image_of(launch), image):
            labels[marks.DIGEST] = digest
        labels[_LOG_LIMITS] = f"{int(options.log_size)}.{options.log_files}"
        container = container_config(unit, launch, options, labels, files)
        async with self._starts:
            sandbox, config = await self._ensure_sandbox(unit, launch, options)
            made = await self._create(unit, sandbox, container, config)
            if needs_amending(launch):
                await self._amend(made.container_id, launch)
            try:
                await self._api.call(wire.START, seconds=START_SECONDS, container_id=made.container_id)
            except Refused as error:
                if error.unknown:
                    raise taken_away(unit) from error
                raise

    async def _amend(self, identity: str, launch: Launch) -> None:
        if (await self._version()).runtime_name == CONTAINERD:
            await amend(self._api, identity, launch)
        elif memory := next((each for each in launch.mounts if each.source is None), None):
            raise Invalid(f"the mount {memory.path}: this CRI runtime has no tmpfs", hint="mount a volume instead")

    async def _version(self) -> Any:
        return await self._api.call(wire.VERSION)

    def _refusal(self, error: containers.Refused, launch: Launch) -> MandorError:
        nobody = "no users found" in error.message
        return Invalid(f"the image has no user {launch.user}" if nobody else error.message)

    async def _create(self, unit: Unit, sandbox: str, container: Any, config: Any) -> Any:
        deadline = asyncio.get_running_loop().time() + KILL_SECONDS
        while True:
            try:
                return await self._api.call(
                    wire.CREATE, seconds=START_SECONDS, pod_sandbox_id=sandbox, config=container, sandbox_config=config
                )
            except Refused as error:
                # An interrupted start may have left it.
                if not error.reserved or asyncio.get_running_loop().time() > deadline:
                    raise
            found = await self._find(unit)
            if found is not None:
                await self._take_away(found.id)
            await asyncio.sleep(LOOK_SECONDS)

    async def _ensure_sandbox(self, unit: Unit, launch: Launch, options: CriOptions) -> tuple[str, Any]:
        labels = {marks.OWNER: self.owner, marks.UID: unit.uid, marks.NAME: launch.name.partition("/")[0]}
        logs = self._logs(unit.uid)
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)

        def config(attempt: int) -> Any:
            return sandbox_config(unit.uid, launch, options, labels, logs, attempt)

        return await self._sandboxes.ensure(unit.uid, self.owner, config, options.runtime)

    async def _end(self, unit: Unit, found: Any, tracked: Tracked, grace_seconds: float) -> None:
        if not tracked.asked:
            tracked.asked = await self._signal(found, found.labels.get(marks.SIGNAL) or "SIGTERM")
        if tracked.asked and await self._over(found.id, grace_seconds):
            return
        wait = 0 if tracked.asked else int(-(-grace_seconds // 1))
        await self._quietly(wire.STOP, container_id=found.id, timeout=wait, seconds=grace_seconds + 2 * KILL_SECONDS)
        if not await self._over(found.id, KILL_SECONDS):
            raise EngineDown(f"{unit} does not end after SIGKILL")

    async def _send_signal(self, unit: Unit, found: Any, name: str) -> None:
        if not await self._signal(found, name):
            raise Unavailable(
                f"the signal {name} cannot be sent to {unit}",
                hint="the CRI runtime has to report the first process of a container, and the agent has to be root",
            )

    async def _signal(self, found: Any, name: str) -> bool:
        """Send a signal to the first process of a container and return whether it was sent. The CRI has no call for
        signals, so the process itself is sent it."""
        status = await self._status(found.id, verbose=True)
        process = process_of(status.info) if status is not None else None
        if process is None:
            return False
        try:
            os.kill(process, signal.Signals[name])
        except (KeyError, PermissionError):
            return False
        except ProcessLookupError:
            return True
        return True

    async def _over(self, identity: str, seconds: float) -> bool:
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            status = await self._status(identity)
            if status is None or status.status.state == wire.EXITED:
                return True
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(LOOK_SECONDS)

    async def _discard(self, unit: Unit) -> None:
        found = await self._find(unit)
        if found is not None:
            await self._take_away(found.id)
            self._seen.pop(found.id, None)
        shutil.rmtree(self._files(unit), ignore_errors=True)
        for path in self._logs(unit.uid).glob(f"{log_name(unit)}*"):
            path.unlink(missing_ok=True)

    async def _take_away(self, identity: str) -> None:
        deadline = asyncio.get_running_loop().time() + KILL_SECONDS
        while True:
            try:
                await self._quietly(wire.STOP, container_id=identity, timeout=0, seconds=2 * KILL_SECONDS)
                return await self._quietly(wire.REMOVE, container_id=identity)
            except Refused as error:  # An interrupted start request is still being processed.
                if "starting state" not in error.message or asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(LOOK_SECONDS)

    async def _tidy(self, wanted: set[str]) -> None:
        await self._sandboxes.tidy(wanted)

    async def _leave(self, uid: str) -> None:
        if not await self._labelled({marks.UID: uid}):
            await self._sandboxes.remove(uid, self.owner)
            shutil.rmtree(self._logs(uid), ignore_errors=True)

    async def _execute(
        self, unit: Unit, found: Any, command: Sequence[str], *, terminal: bool, rows: int, columns: int
    ) -> Execution:
        streams = {"tty": terminal, "stdin": True, "stdout": True, "stderr": not terminal}
        answer = await self._api.call(wire.EXEC, container_id=found.id, cmd=list(command), **streams)
        execution = await begin(answer.url, self._dial, terminal=terminal)
        await execution.resize(rows, columns)
        return execution

    async def _quietly(self, method: wire.Method, *, seconds: float | None = None, **fields: Any) -> None:
        """Call a method; a container that does not exist is no error."""
        try:
            await self._api.call(method, seconds=seconds, **fields)
        except Refused as error:
            if not error.unknown:
                raise

    # Folders.

    def _logs(self, uid: str) -> Path:
        return self._directory / "logs" / uid

    def _files(self, unit: Unit) -> Path:
        return self._directory / "files" / str(unit)

    async def _rotate_logs(self) -> None:
        """Rotate log files that are too large: the runtime appends to one file without limit."""
        for unit, each in await self._labelled():
            size, _, keep = each.labels.get(_LOG_LIMITS, "").partition(".")
            path = self._logs(unit.uid) / log_name(unit)
            if each.state != wire.RUNNING or not size.isdecimal() or not keep.isdecimal():
                continue
            with suppress(FileNotFoundError):
                if path.stat().st_size > int(size):
                    rotate(path, int(keep))
                    await self._quietly(wire.REOPEN_LOG, container_id=each.id)


def find_socket(environ: Mapping[str, str] = os.environ) -> Path:
    named = environ.get("CONTAINER_RUNTIME_ENDPOINT", "")
    if named:
        return Path(named.removeprefix("unix://"))
    return next((path for path in SOCKETS if path.exists()), SOCKETS[0])
