"""Converts one task of a Nomad group."""

import re
from dataclasses import dataclass, field
from typing import Any

from mandor.importers.base import Made, filled, fitting_name
from mandor.importers.compose.amounts import size_of
from mandor.importers.nomad.artifact import Fetching
from mandor.importers.nomad.blocks import block, blocks, drop_all, duration, label, pairs
from mandor.importers.nomad.login import read_login
from mandor.importers.nomad.runtime import Runtime
from mandor.importers.nomad.sharing import SHARING, sharing
from mandor.importers.nomad.template import TemplateResult, read_template
from mandor.importers.part import Part
from mandor.lib.quantity import Cpu, Size

MHZ_PER_CORE = 2000
"""Assumed MHz of a core: Nomad counts CPU in MHz."""
MEMORY_MB = 300
CPU_MHZ = 100
ENGINES = {
    "docker": "docker",
    "podman": "podman",
    "containerd-driver": "cri",
    "exec": "process",
    "exec2": "process",
    "raw_exec": "process",
    "java": "process",
    "mock_driver": "fake",
}
WITH_OPTIONS = frozenset({"docker", "podman"})
ISOLATED = frozenset({"exec", "exec2", "java"})
"""Drivers that isolate a program from its node; Nomad runs it as `nobody` by default."""

DROPPED = {
    "consul": "there is no Consul",
    "identity": "Nomad identities are not converted",
    "secret": "secrets are not fetched from other tools",
    "action": "run it with `mandor exec`",
    "schedule": "a task runs while its instance does",
    "kind": "service meshes are not supported",
    "csi_plugin": "there are no CSI plugins",
    "dispatch_payload": "batches receive no payload",
    "shutdown_delay": "a task is stopped without a delay",
    "scaling": "resources of a task are not changed while it runs",
}
_ULIMIT = re.compile(r"(-1|\d{1,18})(?::(-1|\d{1,18}))?")
"""SOFT:HARD; -1: no limit."""
_CONFIG = {
    "advertise_ipv6_address": "addresses are assigned by the engine",
    "container_exists_attempts": "the agent retries without a limit",
    "cpu_cfs_period": "CPU limits are in cores",
    "dns": "the engine's name servers are used",
    "healthchecks": "the health check of the image is not used",
    "image_pull_timeout": "pulls have no time limit while data arrives",
    "ipv4_address": "addresses are assigned by the engine",
    "ipv6_address": "addresses are assigned by the engine",
    "isolation": "it does not exist on Linux",
    "mac_address": "addresses are assigned by the engine",
    "network_aliases": "addresses are assigned by the engine",
    "no_cgroups": "the engine decides on control groups",
    "storage_opt": "the engine determines the storage options",
    "volume_driver": "volumes are folders that the node's agent makes",
    "memory_swap": "swap is configured on the node",
    "memory_swappiness": "swap is configured on the node",
    "socket": "the engine's address is a setting of the agent",
    "load": "`mandor image load` brings images from files",
}


@dataclass(slots=True)
class TaskDraft:
    name: str
    engine: str
    task: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    files: list[dict[str, Any]] = field(default_factory=list)
    mounts: list[dict[str, Any]] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    requests: dict[str, Any] = field(default_factory=dict)
    volumes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Volumes of the group that its mounts need."""
    templates: TemplateResult = field(default_factory=TemplateResult)
    """Result of its templates."""
    fetching: Fetching = field(default_factory=Fetching)
    login: Made | None = None
    """The secret with the login of its `auth` block."""
    shares: bool = False
    """The task uses the shared folder of the group."""

    def manifest(self) -> dict[str, Any]:
        options = {self.engine: self.options} if self.options else {}
        return filled(
            **self.task,
            env=self.env,
            secrets=self.templates.secrets,
            files=self.files,
            mounts=self.mounts,
            resources=filled(**self.requests, limits=self.limits),
            options=options,
        )


def read_task(part: Part, runtime: Runtime, ports: dict[str, dict[str, Any]]) -> TaskDraft:
    driver = part.text("driver")
    if driver not in ENGINES:
        raise part.wrong("driver", f"there is no engine for the driver {driver!r}", f"known: {', '.join(ENGINES)}")
    draft = TaskDraft(fitting_name(runtime.task), ENGINES[driver])
    runtime.folder = "" if draft.engine == "process" else "/"
    _resources(draft, block(part, "resources"), runtime)
    for name, value in pairs(part, "env").items():
        draft.env[name] = runtime.fill(value, part, "env")
        runtime.shares = runtime.shares or value.startswith("/alloc")
    for each in blocks(part, "template"):
        read_template(draft.templates, each, runtime, draft.env)
    draft.files += draft.templates.files
    draft.env |= draft.templates.env
    for each in blocks(part, "artifact"):
        draft.fetching.add(each, runtime, container=draft.engine != "process")
    _config(draft, driver, block(part, "config"), runtime, ports)
    if draft.fetching.lines and draft.engine == "process":
        draft.task["command"] = draft.fetching.around(draft.task["command"])
    _role(draft, part)
    _changes(draft, part)
    _ending(draft, part, driver)
    for each in blocks(part, "volume_mount"):
        _mount(draft, each, runtime)
    drop_all(part, DROPPED)
    draft.shares = runtime.shares
    return draft


def _role(draft: TaskDraft, part: Part) -> None:
    cycle = block(part, "lifecycle")
    hook, beside = cycle.text("hook"), cycle.flag("sidecar")
    if hook == "prestart":
        draft.task["role"] = "sidecar" if beside else "init"
    elif hook == "poststart":
        draft.task["role"] = "sidecar"
        cycle.guess("hook", "it starts with the others, not after them")
    elif hook == "poststop":
        draft.task["role"] = "poststop"


def _changes(draft: TaskDraft, part: Part) -> None:
    """`on_change` of its files; a task that runs to its end before the others gets no signal."""
    if draft.task.get("role") in {"init", "poststop"} and any("on_change" in each for each in draft.files):
        part.guess("template", "a changed secret reaches the task with its next start")
        draft.files = [{key: value for key, value in each.items() if key != "on_change"} for each in draft.files]
    elif draft.templates.change_signal not in {None, "SIGHUP"}:
        draft.task["change_signal"] = draft.templates.change_signal


def _ending(draft: TaskDraft, part: Part, driver: str) -> None:
    draft.task |= filled(stop=filled(grace=duration(part, "kill_timeout"), signal=part.text("kill_signal")))
    if (user := part.text("user")) is not None:
        draft.task.setdefault("security", {})["user"] = int(user) if user.isdecimal() else user
    if driver in ISOLATED:
        if user in {"root", "0"}:
            raise part.wrong("user", f"a program of the driver {driver} is not confined as root", "use another user")
        draft.options["confine"] = True
        part.guess("driver", "a process in namespaces of its own that is not root and sees system folders read-only")
        if user is None:
            draft.task.setdefault("security", {})["user"] = "nobody"
    logs = block(part, "logs")
    files, size = logs.whole("max_files"), logs.whole("max_file_size")
    if draft.engine != "fake":
        draft.options |= filled(
            log_files=min(100, max(1, files)) if files else None, log_size=f"{size}Mi" if size else None
        )
    if logs.flag("disabled"):
        logs.guess("disabled", "logs are always kept")
    logs.drop("enabled", "output is kept")


# Resources.


def _resources(draft: TaskDraft, part: Part, runtime: Runtime) -> None:
    cores, mhz = part.whole("cores"), part.whole("cpu")
    if mhz is not None and not cores:
        draft.requests["cpu"] = str(Cpu(max(1, round(mhz * 1000 / MHZ_PER_CORE))))
        part.guess("cpu", f"{mhz} MHz become {draft.requests['cpu']}, with {MHZ_PER_CORE} MHz per core")
    else:
        draft.requests["cpu"] = str(cores) if cores else str(Cpu(round(CPU_MHZ * 1000 / MHZ_PER_CORE)))
    memory, most = part.whole("memory", MEMORY_MB) or MEMORY_MB, part.whole("memory_max") or 0
    runtime.memory = memory
    draft.requests["memory"] = str(Size(memory << 20))
    draft.limits["memory"] = str(Size(max(memory, most) << 20))
    devices = [_device(each) for each in blocks(part, "device")]
    if devices:
        draft.requests["devices"] = devices
    if (disk := part.whole("disk")) is not None:
        draft.requests["disk"] = f"{disk}Mi"
    drop_all(
        part,
        {
            "numa": "cores are not pinned",
            "iops": "disk speed is not counted",
            "secrets": "files are part of the task's folder",
        },
    )


def _device(part: Part) -> dict[str, Any]:
    words = label(part, "device").split("/")
    if len(words) > 2:
        part.guess("count" if "count" in part else "device", f"any model of {words[0]}/{words[1]} will do")
    for key in ("constraint", "affinity"):
        part.drop(key, "devices are counted, not selected by attribute")
    kind = words[1] if len(words) > 1 else words[0]
    return filled(kind=kind, vendor=words[0] if len(words) > 1 else None, count=part.whole("count", 1))


# Image and command.


def _config(draft: TaskDraft, driver: str, part: Part, runtime: Runtime, ports: dict[str, dict[str, Any]]) -> None:
    args = [runtime.fill(each, part, "args") for each in part.texts("args")]
    command = part.text("command")
    command = None if command is None else runtime.fill(command, part, "command")
    if driver == "java":
        draft.task["command"] = _java(part, runtime)
        draft.task |= filled(args=args)
        return
    if draft.engine == "process":
        if not command:
            raise part.wrong("command", "the task has a `command`")
        draft.task["command"] = [command]
        draft.task |= filled(args=args, working_dir=part.text("work_dir"))
        drop_all(part, _CONFIG)
        for key in ("cap_add", "cap_drop"):
            part.drop(key, "a process has the capabilities of its user")
        return
    if draft.engine == "fake":
        draft.task |= {"command": ["mock"]}
        for key in part:
            part.drop(key, "the fake engine has options of its own")
        return
    _container(draft, part, runtime, command, args)
    _config_ports(part, ports)


def _java(part: Part, runtime: Runtime) -> list[str]:
    jar, kind, path = part.text("jar_path"), part.text("class"), part.text("class_path")
    words = ["java", *(runtime.fill(each, part, "jvm_options") for each in part.texts("jvm_options"))]
    if path:
        words += ["-cp", runtime.fill(path, part, "class_path")]
    if jar:
        words += ["-jar", runtime.fill(jar, part, "jar_path")]
    elif kind:
        words.append(kind)
    drop_all(part, _CONFIG)
    return words


def _container(draft: TaskDraft, part: Part, runtime: Runtime, command: str | None, args: list[str]) -> None:
    image = part.text("image")
    if not image:
        raise part.wrong("image", "the task has an `image`")
    draft.task["image"] = runtime.fill(image.removeprefix("docker://"), part, "image", now=True)
    if (login := read_login(part, runtime, draft.task["image"])) is not None:
        draft.task["pull_secret"], draft.login = login
    entrypoint = part.texts("entrypoint")
    draft.task |= filled(
        command=entrypoint,
        args=([command] if command else []) + args,
        working_dir=part.text("work_dir") or part.text("working_dir"),
    )
    if part.flag("force_pull"):
        draft.options["pull"] = "always"
    if part.flag("init"):
        draft.options["init"] = True
    walls: dict[str, Any] = filled(read_only_root=part.flag("readonly_rootfs") or None)
    added, dropped = part.texts("cap_add"), part.texts("cap_drop")
    if part.flag("privileged"):
        walls["privileged"] = True
    else:
        walls |= filled(cap_add=[each.upper() for each in added], cap_drop=[each.upper() for each in dropped])
    if walls:
        draft.task["security"] = walls
    mode = part.text("network_mode")
    if mode in {"host", "none"}:
        draft.options["network"] = mode
    elif mode and mode not in {"bridge", "default", "slirp4netns"}:
        draft.options["network"] = mode
        part.guess("network_mode", f"the network {mode} has to be on each node")
    hosts = [each.replace("=", ":", 1) if "=" in each else each for each in part.texts("extra_hosts")]
    draft.options |= filled(
        hostname=part.text("hostname"),
        dns=part.texts("dns_servers"),
        dns_search=part.texts("dns_search_domains"),
        ulimits=_ulimits(part),
        sysctls=pairs(part, "sysctl"),
        runtime=part.text("runtime"),
        extra_hosts=hosts,
        shm_size=_shared_memory(part),
    )
    draft.options |= sharing(part)
    if not part.flag("auth_soft_fail", default=True):
        part.drop("auth_soft_fail", "images are pulled with the node's own login, if it has one")
    if draft.engine == "cri":
        for key in ("init", "hostname", "shm_size", "extra_hosts", "dns", "dns_search", "ulimits", "sysctls"):
            draft.options.pop(key, None)
            part.drop(key, "the engine cri does not support it")
        for key in SHARING:
            draft.options.pop(key, None)
            part.drop(SHARING[key], "the engine cri does not support it")
    if (hard := part.text("memory_hard_limit")) is not None and hard.isdecimal() and int(hard):
        draft.limits["memory"] = str(max(Size.parse(draft.requests["memory"]), Size(int(hard) << 20)))
    if (processes := part.whole("pids_limit")) is not None and processes > 0:
        draft.limits["processes"] = processes
    if part.flag("cpu_hard_limit"):
        draft.limits["cpu"] = draft.requests["cpu"]
    _labels(part)
    for index, text in enumerate(part.texts("volumes")):
        _bind(draft, part, index, runtime.fill(text, part, "volumes", now=True))
    for key in ("mount", "mounts"):
        for each in blocks(part, key):
            _long_mount(draft, each, runtime)
    for path in part.texts("tmpfs"):
        draft.mounts.append({"tmpfs": "64Mi", "path": path.partition(":")[0]})
    logging = block(part, "logging")
    for key in logging:
        logging.drop(key, "output is kept by the engine, for `mandor logs`")
    drop_all(part, _CONFIG)


def _ulimits(part: Part) -> dict[str, dict[str, int]]:
    """Return ulimits: `nofile = "2048:4096"` is soft and hard."""
    found = {}
    for name, text in pairs(part, "ulimit").items():
        match = _ULIMIT.fullmatch(text)
        if match is None:
            raise part.wrong("ulimit", f"{text[:40]!r} is not SOFT:HARD")
        found[name] = {"soft": int(match[1]), "hard": int(match[2] or match[1])}
    return found


def _labels(part: Part) -> None:
    if "labels" in part:
        part.drop("labels", "Mandor sets the labels of containers; use `labels` of the workload")


def _config_ports(part: Part, ports: dict[str, dict[str, Any]]) -> None:
    for name in part.texts("ports"):
        if fitting_name(name) not in ports:
            raise part.wrong("ports", f"there is no port {name!r} in the group's `network`")
    for name, target in pairs(part, "port_map").items():
        if fitting_name(name) in ports and target.isdecimal():
            ports[fitting_name(name)]["port"] = int(target)
        else:
            part.note("port_map", "dropped", f"there is no port {name!r}")


# Environment, files and mounts.


def _bind(draft: TaskDraft, part: Part, index: int, text: str) -> None:
    words = text.split(":")
    if len(words) < 2:
        part.drop_item("volumes", index, f"{text[:60]!r} is not SOURCE:PATH")
        return
    modes = [mode for each in words[2:] for mode in each.split(",")]
    _place(draft, part, "volumes", index, words[0], words[1], "ro" in modes, seed="nocopy" not in modes)


def _shared_memory(part: Part) -> str | None:
    """Return the shared memory size: bytes for Docker, an amount such as `256m` for Podman."""
    given = part.text("shm_size")
    if not given:
        return None
    try:
        return size_of(given)
    except ValueError as error:
        raise part.wrong("shm_size", str(error)) from None


def _long_mount(draft: TaskDraft, part: Part, runtime: Runtime) -> None:
    kind, source = part.text("type", "volume"), runtime.fill(part.text("source", "") or "", part, "source", now=True)
    target, read_only = runtime.fill(part.text("target") or "", part, "target", now=True), part.flag("readonly")
    if not target:
        raise part.wrong("target", "a mount has a `target`")
    options = block(part, "tmpfs_options")
    size = options.whole("size")
    options.drop("mode", "a tmpfs belongs to its task")
    own = block(part, "volume_options")
    seed = not own.flag("no_copy")
    own.drop_rest("volumes are folders that the node's agent makes")
    part.drop("bind_options", "mounts have no options")
    if kind not in {"bind", "volume", "tmpfs"}:
        raise part.wrong("type", f"{kind!r} is none of bind, volume, tmpfs")
    if kind == "tmpfs":
        draft.mounts.append({"tmpfs": str(Size(size)) if size else "64Mi", "path": target})
    else:
        _place(draft, part, "source", None, source, target, read_only, seed=seed)


def _place(
    draft: TaskDraft, part: Part, key: str, index: int | None, source: str, target: str, read_only: bool, *, seed: bool
) -> None:
    of_volume = False
    name = "/" + source.lstrip("./").rstrip("/")
    if found := next((each for each in draft.files if each["path"] == name), None):
        # Its own folder: a template's file there is also placed at the mount.
        draft.files.append({**found, "path": target})
        return
    if below := [each for each in draft.files if each["path"].startswith(f"{name}/")]:
        draft.files += [{**each, "path": target.rstrip("/") + each["path"].removeprefix(name)} for each in below]
        part.note(key, "guessed", f"at {target} contains the results of templates for {name}, and nothing else")
        return
    if source.startswith(("local", "secrets", "/local", "/secrets", "../alloc", "alloc", "/alloc")):
        source = f".{name}"
    if source.startswith("/"):
        name = fitting_name(source.strip("/").replace("/", "-") or "root", most=50)
        draft.volumes[name] = {"type": "host", "path": source.rstrip("/") or "/"}
    elif source and "/" not in source and not source.startswith("."):
        name = fitting_name(source)
        draft.volumes[name] = {}
        of_volume = True
        part.note(key, "guessed", f"{source} is a volume of this group, not one of the node's engine")
    else:
        why = f"{source[:60]} is below the task's folder, which is not mounted"
        if index is None:
            part.drop(key, why)
        else:
            part.drop_item(key, index, why)
        return
    seeded = (seed and of_volume) or None
    draft.mounts.append(filled(volume=name, path=target, read_only=read_only or None, seed=seeded))


def _mount(draft: TaskDraft, part: Part, runtime: Runtime) -> None:
    volume, path = part.text("volume"), part.text("destination")
    if not volume or not path:
        raise part.wrong("volume", "a volume_mount has a `volume` and a `destination`")
    path = runtime.fill(path, part, "destination", now=True)
    if part.text("propagation_mode", "private") != "private":
        part.guess("propagation_mode", "mount propagation is not supported")
    part.drop("selinux_label", "SELinux labels are not supported")
    draft.mounts.append(filled(volume=fitting_name(volume), path=path, read_only=part.flag("read_only") or None))
