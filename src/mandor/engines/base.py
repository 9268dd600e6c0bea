"""The engine interface: what mandor needs from Docker, Incus, a CRI runtime, a shell.

An engine is told what to run and asked what is running. It keeps no wish list and makes
no decisions: the agent calls the same verb again until `list` shows the result. So every
verb is idempotent, and an agent that restarts learns everything it needs from `list`.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Protocol, Self

from msgspec import Struct

from mandor.errors import Unsupported
from mandor.model.image import ImageFile
from mandor.model.level import Level
from mandor.model.node import Capabilities
from mandor.model.task import File, Security


class Unit(NamedTuple):
    """One start of one task of one instance: the idempotency token, kept as the engine's label."""

    uid: str
    task: str
    attempt: int

    def __str__(self) -> str:
        return f"{self.uid}.{self.task}.{self.attempt}"


def variable(name: str) -> str:
    """A name as a part of the name of an environment variable."""
    return name.upper().replace("-", "_").replace(".", "_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A place in the task's file system that outlives the task, is shared, or is memory; the agent has resolved it.

    An engine that cannot do a mount as it stands (announced in `Capabilities.extras`: `mounts`, `links`, `tmpfs`) says
    so: the unit shows as exited with the reason `StartFailed`. It never leaves one out, and never deletes a source.
    """

    path: str
    """Where the task finds it. Absolute: needs `mounts`. Relative to its working directory: needs `links`."""
    source: str | None = None
    """What is found there: an absolute path of the node that exists, a folder as a rule; None: memory (`tmpfs`)."""
    size_bytes: int | None = None
    """The most a tmpfs holds; None: the kernel's own limit."""
    read_only: bool = False
    """Needs `mounts`: the task, whoever it runs as, cannot write there."""
    name: str = ""
    """The volume's, for people and for the environment; empty: it has none."""

    @property
    def variable(self) -> str:
        """The environment variable that tells a task where it is; the agent sets it to `path`."""
        return f"MANDOR_VOLUME_{variable(self.name)}"


class Launch(Struct, frozen=True, kw_only=True):
    """The task with everything resolved: nothing in it needs the control plane any more."""

    name: str
    """For people: `web-0`, or `shop-web-0/app` in a group of several tasks."""
    namespace: str = "default"
    image: str | None = None
    login: str = ""
    """The login for its image's registry, as JSON: the values of a pull secret; empty: the node's own logins."""
    command: Sequence[str] = ()
    args: Sequence[str] = ()
    env: Mapping[str, str] = {}
    files: Sequence[File] = ()
    secret_files: frozenset[str] = frozenset()
    """The paths of those files whose text comes from a secret: an engine keeps them from other users of the node, and
    from its disk where it can."""
    mounts: tuple[Mount, ...] = ()
    """Outer paths before those inside them: made in this order, each finds its place."""
    working_dir: str | None = None
    user: str | int | None = None
    security: Security = Security()
    """How it is walled in (its `user` is above); an engine that can announces `security`."""
    level: Level = "baseline"
    """The level of its namespace: at `restricted` and `baseline` an engine applies its confinement."""
    cpu_milli: int | None = None
    memory_bytes: int | None = None
    processes: int | None = None
    ports: Mapping[str, int] = {}
    """Port number by name, as the task listens on it."""
    host_ports: Mapping[str, int] = {}
    """The node's port that leads to it, by name, for those that have one. An engine that can lead ports announces
    `ports`; where it does not, `ports` has the node's numbers already."""
    protocols: Mapping[str, str] = {}
    """By the name of the port, where it is not tcp."""
    sandbox: bool = False
    """Its instance has several tasks: they share one network, where the engine can (`sandbox`)."""
    stop_signal: str = "SIGTERM"
    options: Mapping[str, Any] = {}
    """The engine's own part of the task's `options`."""


class UnitPhase(StrEnum):
    STARTING = "starting"
    """Ordered, not running yet (an image is pulled, a supervisor comes up)."""
    RUNNING = "running"
    EXITED = "exited"


class Observed(Struct, frozen=True, kw_only=True):
    """One unit, as an engine sees it now."""

    unit: Unit
    phase: UnitPhase
    exit_code: int | None = None
    """As a shell shows it: 128 + n for signal n."""
    reason: str = ""
    """When exited: Completed, Error, OOMKilled, Signalled, StartFailed, Vanished."""
    message: str = ""
    started_at: float = 0.0
    finished_at: float = 0.0
    address: str = ""
    digest: str = ""
    """Of its image, where the engine pulled that from a registry."""


@dataclass(frozen=True, slots=True)
class LogLine:
    at: float
    stream: str
    """`stdout` or `stderr`"""
    text: bytes
    """Without its line end."""


class Usage(Struct, frozen=True):
    """What a unit uses now; CPU as seconds since it began."""

    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    network_in_bytes: int = 0
    """Since it began; 0 where the engine cannot tell, and where it shares the node's network."""
    network_out_bytes: int = 0
    disk_read_bytes: int = 0
    disk_write_bytes: int = 0


class Execution(Protocol):
    """A command that runs inside a unit; both ends are byte streams."""

    async def read(self) -> tuple[str, bytes] | None:
        """(`stdout` or `stderr`, data), None at the end."""

    async def write(self, data: bytes) -> None:
        """To its standard input; empty: no more comes."""

    async def resize(self, rows: int, columns: int) -> None: ...

    async def wait(self) -> int:
        """Its exit code."""

    async def close(self) -> None:
        """End it if it still runs."""


class Engine(ABC):
    """Use as `async with`: leaving the block lets go of the engine and stops nothing."""

    name: ClassVar[str]
    options: ClassVar[type | None] = None
    """What a task may say under `options.NAME`; None: known to the engine alone, so only it can check them."""

    @abstractmethod
    async def probe(self) -> Capabilities:
        """Raise `EngineDown` if the engine does not answer."""

    @abstractmethod
    async def list(self) -> Sequence[Observed]:
        """Everything mandor started here, running or not, and nothing else."""

    @abstractmethod
    async def start(self, unit: Unit, launch: Launch) -> None:
        """Begin it, if it was not begun before; a unit that has exited is not started again.

        What can never start (no such program, no such user) shows as exited with the reason `StartFailed`. A start that
        was broken off does not begin later: what may begin yet is shown by `list`, and never begins after a `stop`.
        """

    @abstractmethod
    async def stop(self, unit: Unit, *, grace_seconds: float) -> None:
        """Ask it to end, and make it end after the grace; return when it has. Unknown or exited: nothing."""

    @abstractmethod
    async def remove(self, unit: Unit) -> None:
        """Forget an exited unit and everything kept for it; a running one is killed first. Unknown: nothing."""

    def logs(
        self, unit: Unit, *, follow: bool = False, tail: int | None = None, since: float | None = None
    ) -> AsyncIterator[LogLine]:
        raise Unsupported(f"{self.name} keeps no logs", unit=str(unit))

    async def exec(
        self, unit: Unit, command: Sequence[str], *, terminal: bool = False, rows: int = 24, columns: int = 80
    ) -> Execution:
        raise Unsupported(f"{self.name} cannot exec", unit=str(unit))

    async def signal(self, unit: Unit, name: str) -> None:
        """Send a signal, such as `SIGHUP`, to the first process of a running unit; `NotFound`: it does not run.

        Announced as `signal`.
        """
        raise Unsupported(f"{self.name} cannot send signals to a task", unit=str(unit))

    async def usage(self) -> Mapping[Unit, Usage]:
        """Of everything running here; empty where the engine cannot tell."""
        return {}

    async def disk(self) -> Mapping[Unit, int]:
        """Bytes that each unit takes on disk, volumes not counted; empty where the engine cannot tell.

        It may take long: it is asked only when there is little disk left."""
        return {}

    async def images(self) -> Mapping[str, int]:
        """The images that are here already, with their sizes in bytes; empty where the engine runs none."""
        return {}

    async def clean_image(self, keep: Collection[str]) -> str:
        """Take away one image that it fetched for tasks and that nothing uses, the one wanted longest ago first; its
        name. Empty: there is none. Never one of `keep`, nor one that came otherwise: from a file, or by hand.

        Asked when there is little disk left; announced as `clean`.
        """
        return ""

    async def storage(self) -> str:
        """The folder of this machine where it keeps images and what its units write; empty: it cannot tell."""
        return ""

    async def load_image(self, image: ImageFile, content: AsyncIterator[bytes]) -> bool:
        """Take an image from its file, which comes in pieces and is never whole in memory; True: it is new here.

        What is here already, under its names, is not taken again: `content` need not be read to its end. Raise
        `Invalid` for a file that is no such image, `Unavailable` where the disk is full.
        """
        raise Unsupported(f"{self.name} takes no images from files", kind=image.kind)

    def events(self) -> AsyncIterator[None]:
        """A tick whenever `list` may answer something new; the agent polls engines that cannot tell."""
        raise Unsupported(f"{self.name} sends no events")

    async def close(self) -> None:
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
