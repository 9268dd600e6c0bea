"""Task: one program of a group."""

import re
import signal
from collections.abc import Iterable
from posixpath import dirname, join, normpath
from typing import Annotated, Any, Literal
from urllib.parse import quote

from msgspec import Meta as Bounds
from msgspec import Struct

from mandor.lib.quantity import Seconds, Size
from mandor.model.features import needs
from mandor.model.meta import InvalidField, check_name
from mandor.model.resources import TaskResources
from mandor.model.secret import check_reference, references_in, whole

Text = Annotated[str, Bounds(max_length=4096)]
PortNumber = Annotated[int, Bounds(ge=1, le=65535)]
Count = Annotated[int, Bounds(ge=1, le=1000)]

OnChange = Literal["none", "restart", "signal"]
"""Reaction of a workload to a changed secret."""

ProbeKind = Literal["startup", "health", "readiness"]

SUBPATH_MOST = 180
"""Bytes of a subpath in percent-encoding: it is the name of a directory."""
_CAPABILITY = re.compile(r"(CAP_)?[A-Z][A-Z_]{1,40}|ALL")
_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_SYSTEM = frozenset(
    (
        *("/", "/bin", "/boot", "/etc", "/home", "/lib", "/lib32", "/lib64", "/media", "/mnt", "/opt", "/root"),
        *("/run", "/sbin", "/srv", "/tmp", "/usr", "/var", "/etc/ssl", "/etc/ssl/certs", "/usr/bin", "/usr/lib"),  # noqa: S108 - in the image
        *("/usr/local", "/usr/local/bin", "/usr/local/etc", "/usr/local/lib", "/usr/sbin", "/usr/share"),
        *("/var/cache", "/var/lib", "/var/log", "/var/run", "/var/tmp"),  # noqa: S108 - in the image
    )
)
"""Folders that other programs of an image use: a mount must not cover them."""
_KERNEL = ("/dev", "/proc", "/sys")


def check_signal(name: str, field: str = "signal") -> None:
    """Raise `InvalidField` if the text is not the name of a signal."""
    if not hasattr(signal, name) or not name.startswith("SIG") or name.startswith("SIG_"):
        raise InvalidField(f"{name!r} is not a signal; use a name such as SIGTERM, SIGINT or SIGHUP", field)


class ProbeCheck(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A further check of a probe, by one of `http`, `tcp` or `command`."""

    http: str | None = None
    """Path of an HTTP GET request, starting with `/`; a status below 400 is a success. Requires `port`."""
    tcp: str | PortNumber | None = None
    """Port by number or name; an established connection is a success."""
    command: tuple[Text, ...] | None = None
    """Command run inside the task; exit status 0 is a success."""
    port: str | PortNumber | None = None
    """Port for `http`: a number, or the name of one of the group's ports."""
    timeout: Seconds = Seconds(2)
    """Time after which the check is a failure, at least 100ms. Defaults to 2s."""

    def __post_init__(self) -> None:
        _check_probe(self)


CHECKS_MOST = 8
"""Further checks of one probe."""


class Probe(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A periodic check of a task by one of `http` (a path), `tcp` (a port) or `command`."""

    http: str | None = None
    """Path of an HTTP GET request, starting with `/`; a status below 400 is a success. Requires `port`."""
    tcp: str | PortNumber | None = None
    """Port by number or name; an established connection is a success."""
    command: tuple[Text, ...] | None = None
    """Command run inside the task; exit status 0 is a success."""
    port: str | PortNumber | None = None
    """Port for `http`: a number, or the name of one of the group's ports."""
    interval: Seconds = Seconds(10)
    """Time between checks, at least 100ms. Defaults to 10s."""
    timeout: Seconds = Seconds(2)
    """Time after which a check without a result is a failure, at least 100ms. Defaults to 2s."""
    failures: Count = 3
    """Number of consecutive failures after which the probe fails. Defaults to 3."""
    successes: Count = 1
    """Number of consecutive successes after which a failed probe succeeds. Defaults to 1."""
    start_period: Seconds = Seconds(0)
    """Time after the task's start during which failures are ignored. Defaults to 0s."""
    also: Annotated[tuple[ProbeCheck, ...], needs("probe-checks")] = ()
    """Further checks, at most 8: the probe succeeds if all checks do."""

    def __post_init__(self) -> None:
        _check_probe(self)
        if len(self.also) > CHECKS_MOST:
            raise ValueError(f"{len(self.also)} further checks; at most {CHECKS_MOST} are allowed")
        if self.interval < 0.1:
            raise ValueError("`interval` and `timeout` must be at least 100ms")

    @property
    def checks(self) -> "tuple[Probe | ProbeCheck, ...]":
        return (self, *self.also)


def _check_probe(probe: Probe | ProbeCheck) -> None:
    asked = [name for name in ("http", "tcp", "command") if getattr(probe, name) is not None]
    if len(asked) != 1:
        found = ", ".join(asked) or "none"
        raise ValueError(f"a probe must have exactly one of `http`, `tcp` and `command`; this one has {found}")
    if probe.http is not None and not probe.http.startswith("/"):
        raise ValueError(f"`http` is {probe.http!r}, but must be a path that starts with `/`")
    if probe.http is not None and probe.port is None:
        raise ValueError("an `http` probe requires `port`: a number, or the name of one of the group's ports")
    if probe.http is None and probe.port is not None:
        raise ValueError("`port` is only for `http` probes; for `tcp` write `tcp: PORT`")
    if probe.command is not None and not probe.command:
        raise ValueError("`command` must not be empty")
    if probe.timeout < 0.1:
        raise ValueError("`interval` and `timeout` must be at least 100ms")


class File(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A small file that is created before the task starts."""

    path: Text
    """Path of the file. The process engine accepts only paths inside the task's own directory."""
    content: Annotated[str, Bounds(max_length=1 << 20)] = ""
    """Content of the file, at most 1 MiB."""
    mode: str = "0644"
    """Permissions in octal. Defaults to `0644`."""
    secret: Text | None = None
    """Secret whose value is the content, as `NAME` or `NAME/KEY`; excludes `content`."""
    fill: bool = False
    """Whether `${MANDOR_INSTANCE}` and similar variables, and `${secret:NAME/KEY}`, are replaced in `content`. Defaults
    to false.
    """
    on_change: Annotated[OnChange | None, needs("secret-changes")] = None
    """Reaction to a change of the file's secret: `restart` replaces the instances in a rollout, `signal` replaces the
    file in running instances and sends `change_signal` to the task, `none` does nothing. Defaults to the task's
    `on_change`. A change of `content` always starts a rollout.
    """

    def __post_init__(self) -> None:
        for reference in self.references:
            check_reference(reference)
        if self.secret is not None and self.content:
            raise ValueError("set either `content` or `secret`, not both")
        if self.on_change in {"none", "signal"} and not self.references:
            raise InvalidField(
                "the file refers to no secret, and a change of `content` is always rolled out",
                "on_change",
                hint="remove `on_change`",
            )
        if not re.fullmatch(r"0?[0-7]{3}", self.mode):
            raise ValueError(f'{self.mode!r} is not a file mode; write it in octal, in quotes: "0644"')
        if ".." in self.path.split("/"):
            raise ValueError(f"the path {self.path!r} must not contain `..`")

    @property
    def references(self) -> list[str]:
        """References to secrets in the file's content."""
        if self.secret is not None:
            return [self.secret]
        return references_in(self.content) if self.fill else []


class TaskMount(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Mounts a volume of the group, or a temporary file system, in a task."""

    volume: str | None = None
    """Name of one of the group's volumes."""
    tmpfs: Size | None = None
    """Size of a temporary file system in memory that is discarded with the task; excludes `volume`."""
    path: Text
    """Absolute path, or path relative to the working directory; engines may support only one of the two."""
    read_only: bool = False
    """Whether the mount is read-only. Defaults to false."""
    subpath: Annotated[Text | None, needs("mount-subpaths")] = None
    """Directory of the volume to mount instead of the whole volume; created if it does not exist. `${MANDOR_INSTANCE}`
    and similar variables are replaced.
    """
    seed: Annotated[bool, needs("mount-seeds")] = False
    """Whether a new, empty volume gets the content, owner and mode of this path in the image, as a named volume of
    Docker does. Defaults to false.
    """

    def __post_init__(self) -> None:
        if (self.volume is None) == (self.tmpfs is None):
            raise ValueError("a mount must have either `volume` or `tmpfs`")
        if self.volume is None and (self.subpath is not None or self.seed):
            raise ValueError("`subpath` and `seed` are for volumes, not for a `tmpfs`")
        if self.subpath is not None:
            _check_subpath(self.subpath)
            if self.seed:
                raise ValueError("a mount has either `subpath` or `seed`")
        if self.tmpfs is not None and not self.tmpfs:
            raise ValueError("the size of a `tmpfs` must be above 0, for example `tmpfs: 64Mi`")
        parts = [part for part in self.path.split("/") if part]
        if not parts or ".." in parts or "\0" in self.path:
            raise ValueError(f"the mount path {self.path!r} must name a directory and not contain `..`")


class Stop(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """How a task is stopped."""

    signal: str = "SIGTERM"
    """Signal sent first. Defaults to SIGTERM."""
    grace: Seconds = Seconds(10)
    """Time between the signal and the kill, at most 1d. Defaults to 10s."""

    def __post_init__(self) -> None:
        check_signal(self.signal)
        if self.grace > 86_400:
            raise ValueError("`grace` must be at most 1d")


class Security(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    user: str | int | None = None
    """User name or id that the task runs as. Defaults to a user of its namespace at the level `restricted`, otherwise
    to the user of the image or of the agent.
    """
    read_only_root: bool | None = None
    """Whether the root file system is read-only, except for mounts. Defaults to true at the level `restricted`, which
    then provides an empty /tmp in memory, otherwise to false.
    """
    cap_add: tuple[Text, ...] = ()
    """Linux capabilities to add to the default ones, for example `NET_ADMIN`."""
    cap_drop: tuple[Text, ...] = ()
    """Linux capabilities to drop; `ALL` drops all."""
    privileged: bool = False
    """Whether the task has all devices and capabilities of the node. Defaults to false."""
    no_new_privileges: bool = False
    """Whether the task can never gain more privileges than its first process has (no_new_privs). Defaults to false."""

    def __post_init__(self) -> None:
        for name in (*self.cap_add, *self.cap_drop):
            if not _CAPABILITY.fullmatch(name):
                raise ValueError(f"{name!r} is not a capability; use a name such as `NET_ADMIN`")
        if self.privileged and (self.cap_add or self.cap_drop):
            raise ValueError("`privileged` includes all capabilities; remove `cap_add` and `cap_drop`")

    @property
    def confined(self) -> bool:
        """Whether a setting requires an engine that isolates tasks."""
        isolating = self.read_only_root or self.privileged or self.no_new_privileges
        return bool(isolating) or bool(self.cap_add or self.cap_drop)


class Identity(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """A short-lived signed token (JWT) in a file that proves to other systems which workload the task belongs to."""

    name: Annotated[str, Bounds(max_length=63)] = ""
    """Last part of the `sub` claim, `mandor:CLUSTER:NAMESPACE:WORKLOAD:NAME`. Defaults to `default`."""
    audience: Annotated[tuple[Annotated[str, Bounds(min_length=1, max_length=256)], ...], Bounds(max_length=16)] = (
        "mandor",
    )
    """Systems that the token is intended for (`aud` claim); each should accept only its own. Defaults to `mandor`."""
    ttl: Seconds = Seconds(3600)
    """Validity of a token, 1m to 1d; it is replaced in place after two thirds of it. Defaults to 1h."""
    file: Text | None = None
    """Path of the token, in a directory of its own; also in MANDOR_IDENTITY_TOKEN_FILE. Defaults to
    /run/mandor/identity/token, or with the process engine to identity/token in the working directory.
    """

    def __post_init__(self) -> None:
        if self.name:
            check_name(self.name, "identity name")
        if not self.audience:
            raise InvalidField("`audience` must not be empty", "audience")
        if not 60 <= self.ttl <= 86_400:
            raise InvalidField(f"{self.ttl} is out of range", "ttl", hint="1m to 1d")
        parts = [part for part in (self.file or "a/b").split("/") if part]
        if len(parts) < 2 or ".." in parts or "\0" in (self.file or "") or (self.file or "").endswith("/"):
            raise InvalidField(
                f"{self.file!r} is not the path of a file in a directory", "file", hint="/run/identity/token"
            )


class Task(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    role: Literal["main", "init", "sidecar"] = "main"
    """`init` runs to its end before the other tasks, `sidecar` runs beside them, `main` determines the result of the
    instance. Init tasks, and sidecars that are listed before the first main task, start in the order of the manifest:
    the next one starts when the init task has ended, or the sidecar has started. Defaults to `main`.
    """
    image: Text | None = None
    """Image to run. Required unless `command` is set."""
    command: tuple[Text, ...] = ()
    """Program and its first arguments; replaces the image's own command. `${MANDOR_INSTANCE}` and similar variables are
    replaced, also in `args` and `env`.
    """
    args: tuple[Text, ...] = ()
    """Further arguments."""
    env: dict[str, str] = {}
    """Environment variables, in addition to MANDOR_INSTANCE, MANDOR_INDEX, MANDOR_NODE, MANDOR_PORT_<NAME> and others.
    `${secret:NAME/KEY}` within a value is replaced by that secret.
    """
    pull_secret: Annotated[Text | None, needs("pull-secrets")] = None
    """Secret with the credentials for the image's registry: `username`, `password` and `registry`, or
    `.dockerconfigjson`. Defaults to the namespace's pull secret, or the node's own credentials.
    """
    secrets: dict[str, Text] = {}
    """Environment variables with values of secrets: `DB_PASSWORD: db-password`, or `db/password` for one key of a
    secret.
    """
    files: tuple[File, ...] = ()
    """Small files that are created before the task starts."""
    on_change: Annotated[OnChange, needs("secret-changes")] = "none"
    """Reaction to a change of a secret in `secrets`, `env` or `files`: `restart` replaces the instances in a rollout
    (services and daemons), `signal` replaces the files in running instances and sends `change_signal` to the task,
    `none` keeps the old value until their next start. Defaults to `none`.
    """
    change_signal: Annotated[str, needs("secret-changes")] = "SIGHUP"
    """Signal sent to the task's first process after its files were replaced (`on_change: signal`). The program must
    handle it, because the default action of most signals is to end the process. Defaults to SIGHUP.
    """
    mounts: tuple[TaskMount, ...] = ()
    """Volumes of the group, and temporary file systems, mounted in the task; at most 32."""
    working_dir: Text | None = None
    """Working directory. Defaults to the image's, or to a directory of the task's own."""
    resources: TaskResources = TaskResources()
    """Requested resources and limits."""
    health: Probe | None = None
    """Liveness probe: the task is restarted when it fails."""
    readiness: Probe | None = None
    """Readiness probe: the instance is ready while it succeeds. Defaults to ready while the task runs."""
    startup: Probe | None = None
    """Startup probe: the other probes wait until it succeeds; the task is restarted when it fails."""
    stop: Stop = Stop()
    """How the task is stopped."""
    security: Security = Security()
    """User, capabilities and privileges of the task."""
    identity: Annotated[Identity | None, needs("workload-identity")] = None
    """Signed token that identifies the workload. Defaults to none."""
    options: dict[str, dict[str, Any]] = {}
    """Engine-specific options, by engine."""

    def __post_init__(self) -> None:
        if not self.image and not self.command:
            raise ValueError("a task requires an `image` or a `command`")
        if both := self.env.keys() & self.secrets.keys():
            raise InvalidField(f"{min(both)} is in both `env` and `secrets`", "secrets")
        for place, references in (("secrets", self.secrets.values()), ("env", self._within)):
            for reference in references:
                try:
                    check_reference(reference)
                except ValueError as error:
                    raise InvalidField(str(error), place) from None
        if self.pull_secret is not None:
            if not self.image:
                raise InvalidField("`pull_secret` requires an `image`", "pull_secret")
            check_name(self.pull_secret, "name of a secret")
        for name in (*self.env, *self.secrets):
            if not _ENV.fullmatch(name):
                raise ValueError(f"{name!r} is not a valid name of an environment variable")
        _check_mounts(self.mounts)
        for engine in self.options:
            check_name(engine, "engine name")
        check_signal(self.change_signal, "change_signal")
        if self.change_signal in {"SIGKILL", "SIGSTOP"}:
            raise InvalidField(
                f"{self.change_signal} cannot be handled by a program",
                "change_signal",
                hint="`on_change: restart` replaces the instances",
            )
        _check_live_files(self)
        if self.role == "init" and (self.health or self.readiness or self.startup):
            raise ValueError("an init task runs to its end and cannot have `health`, `readiness` or `startup`")

    @property
    def secret_references(self) -> frozenset[str]:
        """References to all secrets that the task needs: `NAME` or `NAME/KEY`."""
        login = [whole(self.pull_secret)] if self.pull_secret is not None else []
        return frozenset(
            (*login, *self.secrets.values(), *self._within, *(one for each in self.files for one in each.references))
        )

    @property
    def restart_references(self) -> frozenset[str]:
        """References to secrets whose change replaces the instances; the pull secret is not among them."""
        variables = (*self.secrets.values(), *self._within) if self.on_change == "restart" else ()
        files = (each for each in self.files if (each.on_change or self.on_change) == "restart")
        return frozenset((*variables, *(one for each in files for one in each.references)))

    @property
    def signal_references(self) -> frozenset[str]:
        """References to secrets whose change replaces files of the running task."""
        return frozenset(one for each in self.signal_files for one in each.references)

    @property
    def signal_files(self) -> list[File]:
        """Files with a secret whose change sends a signal to the task."""
        return [each for each in self.files if (each.on_change or self.on_change) == "signal" and each.references]

    def path_of(self, file: File) -> str:
        """Return where the task finds the file; relative to the working directory for a task without an image."""
        base = (self.working_dir or "") if self.image else ""
        return normpath(join(base, file.path))

    @property
    def _within(self) -> list[str]:
        """References to secrets within values of `env`."""
        return [one for value in self.env.values() for one in references_in(value)]

    @property
    def probes(self) -> "dict[ProbeKind, Probe]":
        """The probes that are set, by kind."""
        found: dict[ProbeKind, Probe | None] = {
            "startup": self.startup,
            "health": self.health,
            "readiness": self.readiness,
        }
        return {kind: probe for kind, probe in found.items() if probe is not None}


def _check_subpath(path: str) -> None:
    """Check a path below a volume; as one file name, in percent-encoding, it has to fit in a directory."""
    if any(part in {"", ".", ".."} for part in path.split("/")) or "\0" in path:
        raise ValueError(f"the subpath {path!r} must be relative, without `.`, `..` or empty parts")
    if len(quote(path, safe="")) > SUBPATH_MOST:
        raise ValueError(f"the subpath {path[:40]!r} is too long")


def _check_mounts(mounts: tuple[TaskMount, ...]) -> None:
    if len(mounts) > 32:
        raise ValueError(f"{len(mounts)} mounts; at most 32 are allowed")
    paths = [mount.path.rstrip("/") for mount in mounts]
    for path in paths:
        if paths.count(path) > 1:
            raise ValueError(f"two mounts have the path {path!r}")


def _check_live_files(task: Task) -> None:
    """Refuse `on_change: signal` where it cannot work: secrets in variables, init tasks, shared folders."""
    files = task.signal_files
    if task.on_change == "signal":
        if names := _secret_variables(task):
            raise InvalidField(
                f"`signal` cannot change environment variables of a running process: {names[0]} has a secret",
                "on_change",
                hint="put the secret into a file of `files`, or write `on_change: restart` for the task and "
                "`on_change: signal` for its files",
            )
        if not files:
            raise InvalidField(
                "`signal` needs a file with a secret, and the task has none",
                "on_change",
                hint="`files: [{path: /run/app/password, secret: db/password}]`, or leave `on_change` out",
            )
    if not files:
        if task.change_signal != "SIGHUP":
            raise InvalidField(
                "`change_signal` is sent only with `on_change: signal`",
                "change_signal",
                hint="write `on_change: signal` for the task or for one of its files",
            )
        return
    if task.role == "init":
        raise InvalidField(
            "an init task gets no signals: it runs to its end", "on_change", hint="leave `on_change` out"
        )
    taken = [mount.path for mount in task.mounts]
    if task.identity is not None and task.identity.file:
        taken.append(task.identity.file)
    for file in files:
        _check_folder(task, file, taken)


def _check_folder(task: Task, file: File, taken: Iterable[str]) -> None:
    if task.image and not file.path.startswith("/") and not (task.working_dir or "").startswith("/"):
        raise InvalidField(
            f"the file {file.path} has `on_change: signal` and needs an absolute path, because the task has an `image`",
            "files",
            hint=f"`path: /run/app/{file.path}`, or an absolute `working_dir`",
        )
    path = task.path_of(file)
    folder = dirname(path)
    shared = folder in _SYSTEM or any(within(folder, each) for each in _KERNEL)
    if not folder or shared or (task.working_dir and folder == normpath(task.working_dir)):
        raise InvalidField(
            f"the file {file.path} has `on_change: signal` and needs a folder of its own: the folder is mounted, and "
            "hides what the image has there",
            "files",
            hint=f"`path: {join(folder, 'live', path.rpartition('/')[2])}`",
        )
    for each in taken:
        if within(normpath(each), folder):
            raise InvalidField(
                f"{each} is in the folder of the file {file.path}, which has `on_change: signal`: nothing else is "
                "mounted there",
                "files",
                hint="put the file into a folder of its own",
            )


def within(path: str, folder: str) -> bool:
    """Return whether the path is the folder or below it."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _secret_variables(task: Task) -> list[str]:
    return sorted((*task.secrets, *(name for name, value in task.env.items() if "${secret:" in value)))
