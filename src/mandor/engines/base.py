"""The engine interface: the calls that the agent makes to Docker, Incus, a CRI runtime or the process engine.

An engine starts, stops and lists units. It keeps no desired state and makes no decisions: the agent repeats a verb
until `list` shows the result. So every verb is idempotent, and an agent that restarts reads the current state with
`list`."""

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
    """Return a name in the form of an environment variable: `MY_DB` for `my-db`."""
    return name.upper().replace("-", "_").replace(".", "_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A folder or a tmpfs that is mounted into a task; the agent has resolved its source.

    An engine refuses a mount that it does not support (`Capabilities.extras` has `mounts`, `links`, `tmpfs`): the unit
    is listed as exited with the reason `StartFailed`. It never ignores a mount, and never deletes a source."""

    path: str
    """Path in the task. An absolute path needs `mounts`, a path relative to the working directory `links`."""
    source: str | None = None
    """Existing absolute path on the node, usually a folder; None: memory (`tmpfs`)."""
    size_bytes: int | None = None
    """Size limit of a tmpfs; None: the default of the kernel."""
    read_only: bool = False
    """No user of the task can write there; needs `mounts`."""
    name: str = ""
    """Name of the volume, for messages and environment variables; empty: none."""
    seed: bool = False
    """The volume is new: if it is empty, it gets content, owner and mode of this path in the image; needs `seed`."""

    @property
    def variable(self) -> str:
        """Name of the environment variable with the path of the volume."""
        return f"MANDOR_VOLUME_{variable(self.name)}"


class Resolver(Struct, frozen=True):
    """How tasks look up names, as in resolv.conf."""

    servers: tuple[str, ...]
    """Addresses of name servers."""
    search: tuple[str, ...] = ()
    """Domains that are appended to names with fewer dots than `ndots`."""
    options: tuple[str, ...] = ("ndots:1",)

    def text(self) -> str:
        """Return the content of resolv.conf."""
        lines = [f"nameserver {each}" for each in self.servers]
        lines += [f"search {' '.join(self.search)}"] if self.search else []
        lines += [f"options {' '.join(self.options)}"] if self.options else []
        return "".join(f"{line}\n" for line in lines)


class Attachment(Struct, frozen=True, kw_only=True):
    """An instance's place in a network of the cluster: a bridge of the node, and its addresses there.

    An engine that attaches its units announces `overlay`; the agent makes the bridge and leases the addresses."""

    network: str
    bridge: str
    """Interface of the node to which the instance is attached; its addresses are the gateways."""
    mtu: int
    subnet: str
    """IPv4 range of the bridge."""
    gateway: str
    address: str
    subnet6: str = ""
    """IPv6 range of the bridge; empty: the instance gets no IPv6 address."""
    gateway6: str = ""
    address6: str = ""


class Launch(Struct, frozen=True, kw_only=True):
    """A task with everything resolved: an engine needs nothing from the control plane to run it."""

    name: str
    """Name for messages: `web-0`, or `shop-web-0/app` in a group of several tasks."""
    namespace: str = "default"
    image: str | None = None
    login: str = ""
    """Login for the registry of the image: the values of a pull secret, as JSON; empty: the logins of the node."""
    command: Sequence[str] = ()
    args: Sequence[str] = ()
    env: Mapping[str, str] = {}
    files: Sequence[File] = ()
    secret_files: frozenset[str] = frozenset()
    """Paths of the files with a secret: an engine keeps them unreadable for other users of the node, and in memory if
    it can."""
    mounts: tuple[Mount, ...] = ()
    """Mounts in the order in which they are made: outer paths before paths inside them."""
    working_dir: str | None = None
    user: str | int | None = None
    security: Security = Security()
    """Security settings besides `user`; engines that apply them announce `security`."""
    level: Level = "baseline"
    """Level of its namespace: at `restricted` and `baseline` an engine applies its confinement."""
    cpu_milli: int | None = None
    memory_bytes: int | None = None
    processes: int | None = None
    ports: Mapping[str, int] = {}
    """Port numbers that the task listens on, by name."""
    host_ports: Mapping[str, int] = {}
    """Published ports of the node, by name. An engine that publishes ports announces `ports`; for other engines `ports`
    has the numbers of the node already."""
    protocols: Mapping[str, str] = {}
    """Protocols other than tcp, by name of the port."""
    resolver: Resolver | None = None
    """Name servers of the task, for engines that announce `resolver`; None: those of the engine. The task's own options
    take precedence."""
    sandbox: bool = False
    """The instance has several tasks, which share one network if the engine announces `sandbox`."""
    attachment: Attachment | None = None
    """The network of the cluster to attach the instance to; None: it has the network that the engine gives it."""
    stop_signal: str = "SIGTERM"
    options: Mapping[str, Any] = {}
    """Options of the task for this engine."""


class UnitPhase(StrEnum):
    STARTING = "starting"
    """Not running yet: an image is being pulled, or a supervisor starts."""
    RUNNING = "running"
    EXITED = "exited"


class Observed(Struct, frozen=True, kw_only=True):
    """State of one unit, as reported by its engine."""

    unit: Unit
    phase: UnitPhase
    exit_code: int | None = None
    """Exit code in the convention of shells: 128 + n for signal n."""
    reason: str = ""
    """Reason of the end: Completed, Error, OOMKilled, Signalled, StartFailed or Vanished."""
    message: str = ""
    started_at: float = 0.0
    finished_at: float = 0.0
    address: str = ""
    digest: str = ""
    """Digest of its image, if the engine pulled it from a registry."""


@dataclass(frozen=True, slots=True)
class LogLine:
    at: float
    stream: str
    """`stdout` or `stderr`"""
    text: bytes
    """Text of the line without its line end."""


class Usage(Struct, frozen=True):
    """Resource usage of a unit; CPU as seconds since its start."""

    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    network_in_bytes: int = 0
    """Bytes received since its start; 0 if unknown, or if it uses the network of the node."""
    network_out_bytes: int = 0
    disk_read_bytes: int = 0
    disk_write_bytes: int = 0


class Execution(Protocol):
    """A command that runs inside a unit, with byte streams for input and output."""

    async def read(self) -> tuple[str, bytes] | None:
        """Return the stream (`stdout` or `stderr`) and its data; None at the end."""

    async def write(self, data: bytes) -> None:
        """Write to standard input; empty data closes it."""

    async def resize(self, rows: int, columns: int) -> None: ...

    async def wait(self) -> int:
        """Wait for the end and return the exit code."""

    async def close(self) -> None:
        """End the command if it still runs."""


class Engine(ABC):
    """An engine, used as `async with`: leaving the block closes connections and stops no unit."""

    name: ClassVar[str]
    options: ClassVar[type | None] = None
    """Struct of the options under `options.NAME`; None: only the engine itself can check them."""
    published_at: str = ""
    """Address at which the ports that the engine publishes are reached, known after `probe`; empty: the node's."""

    @abstractmethod
    async def probe(self) -> Capabilities:
        """Return the capabilities; `EngineDown`: the engine does not answer."""

    @abstractmethod
    async def list(self) -> Sequence[Observed]:
        """Return all units that this agent started, running or exited, and nothing else."""

    @abstractmethod
    async def start(self, unit: Unit, launch: Launch) -> None:
        """Start a unit that was not started before; an exited unit is not started again.

        A unit that can never start (no such program, no such user) is listed as exited with the reason `StartFailed`. A
        cancelled start does not begin later unnoticed: `list` shows a unit that may still begin, and `stop` prevents
        it."""

    @abstractmethod
    async def stop(self, unit: Unit, *, grace_seconds: float) -> None:
        """Send the stop signal, kill after the grace, return when it has ended. Unknown or exited: do nothing."""

    @abstractmethod
    async def remove(self, unit: Unit) -> None:
        """Delete an exited unit and everything kept for it; a running one is killed first. Unknown: do nothing."""

    def logs(
        self, unit: Unit, *, follow: bool = False, tail: int | None = None, since: float | None = None
    ) -> AsyncIterator[LogLine]:
        raise Unsupported(f"the engine {self.name} keeps no logs", unit=str(unit))

    async def exec(
        self, unit: Unit, command: Sequence[str], *, terminal: bool = False, rows: int = 24, columns: int = 80
    ) -> Execution:
        raise Unsupported(f"the engine {self.name} cannot run commands in a task", unit=str(unit))

    async def signal(self, unit: Unit, name: str) -> None:
        """Send a signal, such as `SIGHUP`, to the first process of a running unit; `NotFound`: it does not run.

        Announced as `signal`.
        """
        raise Unsupported(f"the engine {self.name} cannot send signals to a task", unit=str(unit))

    async def usage(self) -> Mapping[Unit, Usage]:
        """Return the usage of all running units; empty: the engine cannot measure it."""
        return {}

    async def disk(self) -> Mapping[Unit, int]:
        """Return the disk usage of each unit in bytes, without volumes; empty: the engine cannot measure it.

        It may be slow: the agent calls it only when disk space is short."""
        return {}

    async def images(self) -> Mapping[str, int]:
        """Return the images on the node with their sizes in bytes; empty: the engine runs no images."""
        return {}

    async def clean_image(self, keep: Collection[str]) -> str:
        """Remove the least recently used image that was pulled for tasks and that no container uses; return its name.

        Empty: there is none. Images of `keep`, and images that were loaded from files or by hand, are never removed.
        The agent calls it when disk space is short; announced as `clean`."""
        return ""

    async def storage(self) -> str:
        """Return the folder of the node with images and written data of units; empty: unknown."""
        return ""

    async def load_image(self, image: ImageFile, content: AsyncIterator[bytes]) -> bool:
        """Load an image from a file that arrives in pieces; return whether it is new on the node.

        An image that the node has under these names is not loaded again: `content` need not be read to its end. Raise
        `Invalid` for a file that is no image, `Unavailable` if the disk is full.
        """
        raise Unsupported(f"the engine {self.name} cannot load images from files", kind=image.kind)

    def events(self) -> AsyncIterator[None]:
        """Yield whenever the result of `list` may have changed; the agent polls engines without events."""
        raise Unsupported(f"the engine {self.name} sends no events")

    async def close(self) -> None:
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
