"""Task: one program of a group, as its author wrote it."""

import re
import signal
from typing import Annotated, Any, Literal

from msgspec import Meta as Bounds
from msgspec import Struct

from mandor.lib.quantity import Seconds
from mandor.model.meta import check_name
from mandor.model.resources import TaskResources

Text = Annotated[str, Bounds(max_length=4096)]
PortNumber = Annotated[int, Bounds(ge=1, le=65535)]
Count = Annotated[int, Bounds(ge=1, le=1000)]

_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


class Probe(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A question asked again and again: one of `http` (a path), `tcp` (a port) or `command`."""

    http: str | None = None
    tcp: str | PortNumber | None = None
    command: tuple[Text, ...] | None = None
    port: str | PortNumber | None = None
    """For `http`: a number, or the name of one of the group's ports."""
    interval: Seconds = Seconds(10)
    timeout: Seconds = Seconds(2)
    failures: Count = 3
    """So many bad answers in a row change a good opinion."""
    successes: Count = 1
    start_period: Seconds = Seconds(0)
    """Bad answers do not count until then."""

    def __post_init__(self) -> None:
        asked = [name for name in ("http", "tcp", "command") if getattr(self, name) is not None]
        if len(asked) != 1:
            raise ValueError(f"a probe asks exactly one of `http`, `tcp` and `command`; this one has {asked or 'none'}")
        if self.http is not None and not self.http.startswith("/"):
            raise ValueError(f"`http` is a path and starts with `/`, not {self.http!r}")
        if self.http is not None and self.port is None:
            raise ValueError("an `http` probe needs a `port`: a number, or the name of one of the ports")
        if self.http is None and self.port is not None:
            raise ValueError("`port` belongs to an `http` probe; for `tcp` write `tcp: PORT`")
        if self.command is not None and not self.command:
            raise ValueError("`command` has at least one word")
        if self.interval < 0.1 or self.timeout < 0.1:
            raise ValueError("`interval` and `timeout` are at least 100ms")


class File(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A small file put in place before the task starts."""

    path: Text
    content: Annotated[str, Bounds(max_length=1 << 20)]
    mode: str = "0644"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"0?[0-7]{3}", self.mode):
            raise ValueError(f'{self.mode!r} is not a file mode; write it as text in octal: "0644"')
        if ".." in self.path.split("/"):
            raise ValueError(f"the path {self.path!r} must not contain `..`")


class Stop(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """How a task is asked to end, and how long it gets."""

    signal: str = "SIGTERM"
    grace: Seconds = Seconds(10)

    def __post_init__(self) -> None:
        if not hasattr(signal, self.signal) or not self.signal.startswith("SIG") or self.signal.startswith("SIG_"):
            raise ValueError(f"{self.signal!r} is not a signal; write its name: SIGTERM, SIGINT, SIGQUIT …")
        if self.grace > 86_400:
            raise ValueError("`grace` is at most 1d")


class Security(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    user: str | int | None = None
    """A name or number; absent: whoever runs the agent."""


class Task(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    role: Literal["main", "init", "sidecar"] = "main"
    image: Text | None = None
    command: tuple[Text, ...] = ()
    args: tuple[Text, ...] = ()
    env: dict[str, str] = {}
    files: tuple[File, ...] = ()
    working_dir: Text | None = None
    resources: TaskResources = TaskResources()
    health: Probe | None = None
    readiness: Probe | None = None
    stop: Stop = Stop()
    security: Security = Security()
    options: dict[str, dict[str, Any]] = {}
    """What only one engine knows, by engine."""

    def __post_init__(self) -> None:
        if not self.image and not self.command:
            raise ValueError("a task needs an `image` or a `command`")
        for name in self.env:
            if not _ENV.fullmatch(name):
                raise ValueError(f"{name!r} is not the name of an environment variable")
        for engine in self.options:
            check_name(engine, "engine name")
        if self.role == "init" and (self.health or self.readiness):
            raise ValueError("an init task runs to its end: it has no `health` and no `readiness`")
