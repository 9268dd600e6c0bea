"""Task: one program of a group, as its author wrote it."""

import re
import signal
from typing import Annotated, Any, Literal

from msgspec import Meta as Bounds
from msgspec import Struct

from mandor.lib.quantity import Seconds, Size
from mandor.model.features import needs
from mandor.model.live_file import check_live_files, signal_files
from mandor.model.meta import Misfit, check_name
from mandor.model.resources import TaskResources
from mandor.model.secret import check_reference, references_in, whole

Text = Annotated[str, Bounds(max_length=4096)]
PortNumber = Annotated[int, Bounds(ge=1, le=65535)]
Count = Annotated[int, Bounds(ge=1, le=1000)]

OnChange = Literal["none", "restart", "signal"]
"""Reactions of a workload to a changed secret."""

ProbeKind = Literal["startup", "health", "readiness"]

_CAPABILITY = re.compile(r"(CAP_)?[A-Z][A-Z_]{1,40}|ALL")
_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def check_signal(name: str, field: str = "signal") -> None:
    """Refuse a text that is not the name of a signal."""
    if not hasattr(signal, name) or not name.startswith("SIG") or name.startswith("SIG_"):
        raise Misfit(f"{name!r} is not a signal; write its name: SIGTERM, SIGINT, SIGHUP …", field)


class Probe(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A question asked again and again: one of `http` (a path), `tcp` (a port) or `command`."""

    http: str | None = None
    """A path; an answer below 400 is good."""
    tcp: str | PortNumber | None = None
    """A port, by number or name; a connection is good."""
    command: tuple[Text, ...] | None = None
    """Run inside the task; exit status 0 is good."""
    port: str | PortNumber | None = None
    """For `http`: a number, or the name of one of the group's ports."""
    interval: Seconds = Seconds(10)
    """From one question to the next."""
    timeout: Seconds = Seconds(2)
    """No answer by then is a bad one."""
    failures: Count = 3
    """So many bad answers in a row change a good opinion."""
    successes: Count = 1
    """So many good answers in a row change a bad opinion."""
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
    """Where it is put; the process engine takes paths inside the task's own folder only."""
    content: Annotated[str, Bounds(max_length=1 << 20)] = ""
    """All of its text."""
    mode: str = "0644"
    """Who may read and write it, in octal."""
    secret: Text | None = None
    """Its text is that of a secret, `NAME` or `NAME/KEY`, instead of `content`."""
    fill: bool = False
    """`${MANDOR_INSTANCE}` and the like, and `${secret:NAME/KEY}`, are filled in where they stand in `content`."""
    on_change: Annotated[OnChange | None, needs("secret-changes")] = None
    """Reaction to a change of its secret: `restart` replaces the instances in a roll-out, `signal` replaces the file in
    running instances and sends `change_signal` to the task, `none` does nothing; absent: as `on_change` of the task. A
    change of `content` is always rolled out."""

    def __post_init__(self) -> None:
        for reference in self.references:
            check_reference(reference)
        if self.secret is not None and self.content:
            raise ValueError("a file has `content`, or the text of a `secret`, not both")
        if self.on_change in {"none", "signal"} and not self.references:
            raise Misfit(
                "the file has no secret, and a change of `content` is always rolled out",
                "on_change",
                hint="leave `on_change` out",
            )
        if not re.fullmatch(r"0?[0-7]{3}", self.mode):
            raise ValueError(f'{self.mode!r} is not a file mode; write it as text in octal: "0644"')
        if ".." in self.path.split("/"):
            raise ValueError(f"the path {self.path!r} must not contain `..`")

    @property
    def references(self) -> list[str]:
        """Values of secrets in its text."""
        if self.secret is not None:
            return [self.secret]
        return references_in(self.content) if self.fill else []


class TaskMount(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Where a task finds a volume of its group, or memory of its own."""

    volume: str | None = None
    """The name of one of the group's volumes."""
    tmpfs: Size | None = None
    """Memory of this size instead, gone with the task."""
    path: Text
    """Absolute, or below the working directory; not every engine can do both."""
    read_only: bool = False
    """Nothing can be written there."""

    def __post_init__(self) -> None:
        if (self.volume is None) == (self.tmpfs is None):
            raise ValueError("a mount has either a `volume` or a `tmpfs`")
        if self.tmpfs is not None and not self.tmpfs:
            raise ValueError("a `tmpfs` has a size: `tmpfs: 64Mi`")
        parts = [part for part in self.path.split("/") if part]
        if not parts or ".." in parts or "\0" in self.path:
            raise ValueError(f"the path {self.path!r} of a mount names a folder, without `..`")


class Stop(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """How a task is asked to end, and how long it gets."""

    signal: str = "SIGTERM"
    """What it is sent first."""
    grace: Seconds = Seconds(10)
    """After so long it is killed."""

    def __post_init__(self) -> None:
        check_signal(self.signal)
        if self.grace > 86_400:
            raise ValueError("`grace` is at most 1d")


class Security(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    user: str | int | None = None
    """A name or number; absent: a user of its namespace at the level `restricted`, else the image's or the agent's."""
    read_only_root: bool | None = None
    """Nothing can be written but to mounts; absent: so at the level `restricted`, which then has an empty /tmp in
    memory, and not at others."""
    cap_add: tuple[Text, ...] = ()
    """Powers of root it gets beyond the usual ones: `NET_ADMIN`."""
    cap_drop: tuple[Text, ...] = ()
    """Powers of root it does not get; `ALL` for none."""
    privileged: bool = False
    """All of the node's devices and powers."""
    no_new_privileges: bool = False
    """It cannot gain powers that it did not begin with, whatever program it runs."""

    def __post_init__(self) -> None:
        for name in (*self.cap_add, *self.cap_drop):
            if not _CAPABILITY.fullmatch(name):
                raise ValueError(f"{name!r} is not the name of a capability; write it as `NET_ADMIN`")
        if self.privileged and (self.cap_add or self.cap_drop):
            raise ValueError("`privileged` has all powers: `cap_add` and `cap_drop` say nothing beside it")

    @property
    def confined(self) -> bool:
        """It says something that only engines with walls of their own can do."""
        walls = self.read_only_root or self.privileged or self.no_new_privileges
        return bool(walls) or bool(self.cap_add or self.cap_drop)


class Identity(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """A short-lived signed token (JWT) in a file, which shows other systems which workload the task belongs to."""

    name: Annotated[str, Bounds(max_length=63)] = ""
    """The last part of `sub`, `mandor:CLUSTER:NAMESPACE:WORKLOAD:NAME`; absent: `default`."""
    audience: Annotated[tuple[Annotated[str, Bounds(min_length=1, max_length=256)], ...], Bounds(max_length=16)] = (
        "mandor",
    )
    """The systems that the token is for, its `aud`; each should accept only its own."""
    ttl: Seconds = Seconds(3600)
    """How long a token is good, 1m…1d; it is replaced in place when two thirds have passed."""
    file: Text | None = None
    """Where the task finds it, in a folder of its own; absent: /run/mandor/identity/token, with the process engine
    identity/token in the working directory. MANDOR_IDENTITY_TOKEN_FILE names it."""

    def __post_init__(self) -> None:
        if self.name:
            check_name(self.name, "identity name")
        if not self.audience:
            raise Misfit("a token is for at least one `audience`", "audience")
        if not 60 <= self.ttl <= 86_400:
            raise Misfit("`ttl` is 1m…1d", "ttl")
        parts = [part for part in (self.file or "a/b").split("/") if part]
        if len(parts) < 2 or ".." in parts or "\0" in (self.file or "") or (self.file or "").endswith("/"):
            raise Misfit(f"{self.file!r} names no file in a folder", "file", hint="/run/identity/token")


class Task(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    role: Literal["main", "init", "sidecar"] = "main"
    """`init` runs to its end before the others, `sidecar` beside them; `main` decides how the instance ends."""
    image: Text | None = None
    """What to run, for engines that run images."""
    command: tuple[Text, ...] = ()
    """The program and its first arguments; over an image: instead of its own. `${MANDOR_INSTANCE}` and the like are
    filled in, here, in `args` and in `env`."""
    args: tuple[Text, ...] = ()
    """Further arguments."""
    env: dict[str, str] = {}
    """Environment variables, beside MANDOR_INSTANCE, MANDOR_INDEX, MANDOR_NODE, MANDOR_PORT_<NAME> and the like; a
    secret within a longer value is `${secret:NAME/KEY}`."""
    pull_secret: Annotated[Text | None, needs("pull-secrets")] = None
    """The secret with the login to the image's registry: `username`, `password` and `registry`, or
    `.dockerconfigjson`; absent: that of the namespace, or the node's own logins."""
    secrets: dict[str, Text] = {}
    """Environment variables with the value of a secret: `DB_PASSWORD: db-password`, or `db/password` for one key."""
    files: tuple[File, ...] = ()
    """Small files put in place before it starts."""
    on_change: Annotated[OnChange, needs("secret-changes")] = "none"
    """Reaction to a change of a secret in `secrets`, `env` or `files`: `restart` replaces the instances in a roll-out
    (services and daemons), `signal` replaces the files in running instances and sends `change_signal` to the task,
    `none` leaves them with the old value until their next start."""
    change_signal: Annotated[str, needs("secret-changes")] = "SIGHUP"
    """Signal to the task's first process after its files were replaced (`on_change: signal`); the task has to handle
    it: most signals end a program that does not."""
    mounts: tuple[TaskMount, ...] = ()
    """What it finds where, besides its files: volumes of its group, and memory."""
    working_dir: Text | None = None
    """Where it starts; absent: a folder of its own, or the image's."""
    resources: TaskResources = TaskResources()
    """What it asks for, and the most it may use."""
    health: Probe | None = None
    """Bad answers restart the task."""
    readiness: Probe | None = None
    """Good answers make the instance ready; absent: it is ready when it runs."""
    startup: Probe | None = None
    """Asked first: until it is good the others wait; too many bad answers in a row restart the task."""
    stop: Stop = Stop()
    """How it is asked to end."""
    security: Security = Security()
    """As whom it runs."""
    identity: Annotated[Identity | None, needs("workload-identity")] = None
    """A signed token that shows which workload it is; absent: none."""
    options: dict[str, dict[str, Any]] = {}
    """What only one engine knows, by engine."""

    def __post_init__(self) -> None:
        if not self.image and not self.command:
            raise ValueError("a task needs an `image` or a `command`")
        if both := self.env.keys() & self.secrets.keys():
            raise Misfit(f"{min(both)} is among `env` and among `secrets`", "secrets")
        for place, references in (("secrets", self.secrets.values()), ("env", self._within)):
            for reference in references:
                try:
                    check_reference(reference)
                except ValueError as error:
                    raise Misfit(str(error), place) from None
        if self.pull_secret is not None:
            if not self.image:
                raise Misfit("`pull_secret` is for tasks with an `image`", "pull_secret")
            check_name(self.pull_secret, "name of a secret")
        for name in (*self.env, *self.secrets):
            if not _ENV.fullmatch(name):
                raise ValueError(f"{name!r} is not the name of an environment variable")
        _check_mounts(self.mounts)
        for engine in self.options:
            check_name(engine, "engine name")
        check_signal(self.change_signal, "change_signal")
        if self.change_signal in {"SIGKILL", "SIGSTOP"}:
            raise Misfit(
                f"{self.change_signal} cannot be handled by a program",
                "change_signal",
                hint="`on_change: restart` replaces the instances",
            )
        check_live_files(self)
        if self.role == "init" and (self.health or self.readiness or self.startup):
            raise ValueError("an init task runs to its end: it has no `health`, no `readiness` and no `startup`")

    @property
    def secret_references(self) -> frozenset[str]:
        """Every value of a secret that it needs: `NAME`, or `NAME/KEY`."""
        login = [whole(self.pull_secret)] if self.pull_secret is not None else []
        return frozenset(
            (*login, *self.secrets.values(), *self._within, *(one for each in self.files for one in each.references))
        )

    @property
    def restart_references(self) -> frozenset[str]:
        """The values of secrets whose change replaces its instances; the login for its image is none of them."""
        variables = (*self.secrets.values(), *self._within) if self.on_change == "restart" else ()
        files = (each for each in self.files if (each.on_change or self.on_change) == "restart")
        return frozenset((*variables, *(one for each in files for one in each.references)))

    @property
    def signal_references(self) -> frozenset[str]:
        """The values of secrets whose change replaces files of the running task."""
        return frozenset(one for each in signal_files(self) for one in each.references)

    @property
    def _within(self) -> list[str]:
        """Those that are part of longer values of variables."""
        return [one for value in self.env.values() for one in references_in(value)]

    @property
    def probes(self) -> "dict[ProbeKind, Probe]":
        """Those that it has."""
        found: dict[ProbeKind, Probe | None] = {
            "startup": self.startup,
            "health": self.health,
            "readiness": self.readiness,
        }
        return {kind: probe for kind, probe in found.items() if probe is not None}


def _check_mounts(mounts: tuple[TaskMount, ...]) -> None:
    if len(mounts) > 32:
        raise ValueError("a task has at most 32 mounts")
    paths = [mount.path.rstrip("/") for mount in mounts]
    for path in paths:
        if paths.count(path) > 1:
            raise ValueError(f"two mounts have the path {path!r}")
