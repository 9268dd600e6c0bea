"""Converts one service of a Compose file into a workload."""

import shlex
from dataclasses import dataclass
from typing import Any

from mandor.importers.base import Options, check_isolation, filled, fitting_name, knows
from mandor.importers.compose.amounts import take_seconds, take_size
from mandor.importers.compose.container import read_container
from mandor.importers.compose.deploy import read_deploy
from mandor.importers.compose.document import Loader, beside
from mandor.importers.compose.draft import Draft
from mandor.importers.compose.ports import read_ports
from mandor.importers.compose.storage import Storage, labels_of
from mandor.importers.compose.texts import Texts
from mandor.importers.part import Part
from mandor.lib.quantity import Seconds, Size
from mandor.model.group import ALIASES_MOST, Group
from mandor.model.service import HOST_NAME

CONDITIONS = {
    "service_started": "started",
    "service_healthy": "healthy",
    "service_completed_successfully": "completed",
}
_PULL = {"always": "always", "missing": "missing", "if_not_present": "missing", "never": "never"}
_LOG_DRIVERS = frozenset({"json-file", "local"})
_ARCH = {"amd64", "arm64"}

DROPPED = {
    "attach": "it affects the output of `docker compose up` only",
    "blkio_config": "disk speed cannot be limited",
    "cgroup_parent": "the engine decides on control groups",
    "cpu_count": "CPU is requested with `cpus`",
    "cpu_percent": "CPU is requested with `cpus`",
    "cpu_rt_period": "real-time scheduling is not supported",
    "cpu_rt_runtime": "real-time scheduling is not supported",
    "credential_spec": "it does not exist on Linux",
    "develop": "it affects `docker compose watch` only",
    "external_links": "containers outside of Mandor cannot be referenced",
    "isolation": "it does not exist on Linux",
    "mac_address": "addresses are assigned by the engine",
    "mem_swappiness": "swap is configured on the node",
    "memswap_limit": "swap is configured on the node",
    "models": "models are run by another tool",
    "oom_kill_disable": "a task over its memory limit is killed",
    "post_start": "hooks are not supported; put it into the command",
    "pre_stop": "hooks are not supported; handle the stop signal in the program",
    "provider": "another tool runs it",
    "pull_refresh_after": "an image is pulled when it is missing, or at every start",
    "storage_opt": "the engine determines the storage options",
    "use_api_socket": "the engine's socket is not mounted; use a bind mount, if a node allows it",
}
"""Keys without a counterpart, and the reason."""
_SO_ANYWAY = frozenset({"oom_kill_disable", "use_api_socket"})
"""Keys of `DROPPED` without an effect when they are false."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Converts the services of one project."""

    project: str
    services: Part
    storage: Storage
    texts: Texts
    loader: Loader
    completed: frozenset[str]
    """Services that others wait for to complete: they become batches."""
    networks: dict[str, Part]

    @property
    def options(self) -> Options:
        return self.loader.options

    def manifest(self, name: str, service: Part) -> dict[str, Any]:
        draft = Draft(fitting_name(name), type="batch" if name in self.completed else None)
        if draft.name != name:
            self.services.guess(name, f"it is called {draft.name}: names are lower case")
        self._labels(draft, service)
        self._image(draft, name, service)
        self._program(draft, service)
        self._environment(draft, service)
        self._identity(draft, service)
        read_container(draft, service)
        self._network(draft, service)
        _logging(draft, service.part("logging"))
        read_ports(draft, service)
        self.storage.read(draft, service)
        self._borrowed(draft, service)
        self.texts.read(draft, service)
        read_deploy(draft, service)
        _health(draft, service.part("healthcheck"))
        self._order(draft, service)
        self._linked(draft, name)
        service.texts("profiles")
        for key in service:
            if key in DROPPED and service.peek(key) is False and key in _SO_ANYWAY:
                service.take(key)
            elif key in DROPPED:
                service.drop(key, DROPPED[key])
            elif key.startswith("x-"):
                service.ignore(key)
        _settle_update(draft, service)
        return draft.manifest(self.project)

    def _labels(self, draft: Draft, service: Part) -> None:
        for path in service.texts("label_file"):
            name = beside(service.file_of("label_file"), path)
            text = self.options.read(name)
            if text is None:
                raise service.wrong("label_file", f"there is no file {name}")
            draft.labels |= self.loader.pairs(name, text, self.loader.around)
        draft.labels |= labels_of(service, "annotations")
        if draft.labels and "annotations" in service:
            service.guess("annotations", "they are stored as labels")
        draft.labels |= labels_of(service, "labels")

    def _borrowed(self, draft: Draft, service: Part) -> None:
        """Return the mounts of another service, at the same paths: volumes and folders of the node can be shared."""
        taken = {each["path"] for each in draft.mounts}
        for index, text in enumerate(service.texts("volumes_from")):
            name, _, mode = text.partition(":")
            if name == "container":
                service.drop_item("volumes_from", index, "containers outside of Mandor cannot be referenced")
                continue
            if name not in self.services:
                raise service.wrong("volumes_from", f"there is no service {name!r}")
            other = Draft(name)
            self.storage.read(other, self.services.part(name))
            shared = {key for key, each in other.volumes.items() if {"volume", "path"} & each.keys()}
            if shared < other.volumes.keys() or other.files:
                service.guess("volumes_from", f"only named volumes and folders of the node are shared with {name}")
            for mount in other.mounts:
                if mount.get("volume") in shared and mount["path"] not in taken:
                    draft.volumes.setdefault(mount["volume"], other.volumes[mount["volume"]])
                    draft.mounts.append(mount | ({"read_only": True} if mode == "ro" else {}))

    # Image and command.

    def _image(self, draft: Draft, name: str, service: Part) -> None:
        image = service.text("image")
        if "build" in service:
            service.take("build")
            image = image or f"{self.project}-{name}".lower()
            service.guess(
                "build",
                f"the image {image} is not built here",
                f"docker compose build; then push it, or: docker save -o web.tar {image}; mandor image load web.tar",
            )
        if image == "":
            raise service.wrong("image", "it is empty; is a variable not set?")
        if not image and "provider" not in service:
            raise self.services.wrong(name, "a service has an `image` or a `build`")
        draft.group["image"] = image or name
        platform = service.text("platform")
        if platform:
            system, _, rest = platform.partition("/")
            arch = rest.partition("/")[0] or system
            if arch not in _ARCH:
                service.guess("platform", f"nodes whose `arch` is {arch!r} are asked for")
            draft.rule("where", rule=f"arch == {arch}")
        if (pull := service.text("pull_policy")) is not None:
            if pull not in _PULL:
                service.guess("pull_policy", f"{pull} is treated as `missing`")
            draft.options["pull"] = _PULL.get(pull, "missing")

    def _program(self, draft: Draft, service: Part) -> None:
        for key, name in (("entrypoint", "command"), ("command", "args")):
            words = _words(service, key)
            if words == []:
                service.drop(
                    key, "the entrypoint of the image is used: an empty one has no counterpart", "write it out"
                )
            draft.group |= filled(**{name: words})
        draft.group |= filled(working_dir=service.text("working_dir"))
        draft.group |= filled(
            stop=filled(grace=take_seconds(service, "stop_grace_period"), signal=_signal(service.text("stop_signal")))
        )

    def _environment(self, draft: Draft, service: Part) -> None:
        around = self.loader.around
        for each in service.mixed("env_file"):
            path = each.text("path") if isinstance(each, Part) else each
            required = each.flag("required", default=True) if isinstance(each, Part) else True
            form = each.text("format") if isinstance(each, Part) else None
            if isinstance(each, Part) and form not in {None, "raw"}:
                each.guess("format", "the file is read like a .env")
            name = beside(service.file_of("env_file"), path or "")
            text = self.options.read(name)
            if text is None and required:
                hint = "is it beside the Compose file? `env_file: {path: …, required: false}` goes on without it"
                raise service.wrong("env_file", f"there is no file {name}", hint)
            draft.env |= self.loader.pairs(name, text or "", {**around, **draft.env}, raw=form == "raw")
        if isinstance(service.peek("environment"), list):
            pairs = {name: value if equals else None for name, equals, value in _split(service.texts("environment"))}
        else:
            typed = service.text_map("environment")
            source = service.peek("environment") or {}
            pairs = {name: None if source.get(name) is None else value for name, value in typed.items()}
        for name, value in pairs.items():
            found = around.get(name) if value is None else value
            if found is None:
                service.guess("environment", f"{name} has no value here, and is left out")
            else:
                draft.env[name] = found

    # Environment.

    def _identity(self, draft: Draft, service: Part) -> None:
        if (user := service.text("user")) is not None:
            draft.security["user"] = int(user) if user.isdecimal() else user
        for key in ("container_name", "hostname"):
            if (name := service.text(key)) is not None:
                _add_alias(draft, service, key, name)
        draft.options |= filled(hostname=service.text("hostname") or None)

    def _network(self, draft: Draft, service: Part) -> None:
        mode = service.text("network_mode")
        if mode in {"host", "none"}:
            draft.options["network"] = mode
        elif mode and mode not in {"bridge", "default"}:
            why = f"{mode[:60]}: two workloads do not share a network, so its traffic would go elsewhere"
            check_isolation(service, "network_mode", self.options, why, "make them tasks of one group")
            service.drop("network_mode", why, "make them tasks of one group")
        value = service.peek("networks")
        if isinstance(value, dict):
            named = dict(service.entries("networks"))
        else:
            named = {name: self.networks.get(name, self.services) for name in service.texts("networks")}
        external = []
        for name, part in named.items():
            if isinstance(value, dict):
                for alias in part.texts("aliases"):
                    _add_alias(draft, part, "aliases", alias)
                part.drop_rest("the engine manages networks and assigns addresses")
            if name not in self.networks and name != "default":
                raise service.wrong("networks", f"the network {name!r} is not among the top `networks`")
            if name in self.networks and self.networks[name].peek("external"):
                external.append(str(self.networks[name].peek("name") or name))
        if external:
            draft.options["network"] = external[0]
            service.guess("networks", f"the network {external[0]} has to be on each node", "docker network create …")
        elif named:
            service.guess("networks", "networks do not isolate instances")
            self._check_internal(service, list(named))

    def _check_internal(self, service: Part, named: list[str]) -> None:
        """Refuse a service that only internal networks connect: no network of Mandor keeps it from the outside."""
        closed = [name for name in named if name in self.networks and self.networks[name].peek("internal") is True]
        if closed and len(closed) == len(named):
            why = f"the network {closed[0]} is internal, and nothing here keeps the service from other networks"
            hint = f"`docker network create --internal {closed[0]}` on each node, and `external: true` for it"
            check_isolation(service, "networks", self.options, why, hint)

    def _order(self, draft: Draft, service: Part) -> None:
        waits = _depends(service)
        links = service.texts("links")
        for text in links:
            name, _, alias = text.partition(":")
            waits.setdefault(name, "started")
            if alias and alias != name:
                service.guess("links", f"all services find {name} under the name {alias}")
        for name in waits:
            if name not in self.services:
                key = "depends_on" if "depends_on" in service else "links"
                raise service.wrong(key, f"there is no service {name!r}")
        waits = {name: each for name, each in waits.items() if self._runs(name)}
        if not waits:
            return
        if knows(Group, "depends_on"):
            draft.depends_on |= {fitting_name(name): condition for name, condition in waits.items()}
        else:
            for key in ("depends_on", "links"):
                service.drop(key, "workloads do not wait for each other in this version")

    def _linked(self, draft: Draft, name: str) -> None:
        """Add the names that the `links` of other services give to the service."""
        for other in self.services:
            source: Any = self.services.peek(other)
            links = source.get("links") if isinstance(source, dict) else None
            for text in links if isinstance(links, list) else ():
                target, _, alias = str(text).partition(":")
                if target == name and alias:
                    _add_alias(draft, self.services, other, alias)

    def _runs(self, name: str) -> bool:
        return wanted(self.services.peek(name), self.loader.profiles)


def _add_alias(draft: Draft, part: Part, key: str, name: str) -> None:
    """Add a name under which other services find the service."""
    if name == draft.name or name in draft.aliases:
        return
    if not HOST_NAME.fullmatch(name):
        part.note(key, "dropped", f"{name[:60]!r} is not a host name")
    elif len(draft.aliases) >= ALIASES_MOST:
        part.note(key, "dropped", f"a workload has at most {ALIASES_MOST} further names")
    else:
        draft.aliases.append(name)


def wanted(service: Any, profiles: tuple[str, ...]) -> bool:
    """Return whether the service runs: it has no profiles, or one of them is selected."""
    named = service.get("profiles") if isinstance(service, dict) else None
    listed = named if isinstance(named, list) else []
    return not listed or "*" in profiles or bool({str(each) for each in listed} & set(profiles))


def _depends(service: Part) -> dict[str, str]:
    if not isinstance(service.peek("depends_on"), dict):
        return dict.fromkeys(service.texts("depends_on"), "started")
    found = {}
    for name, part in service.entries("depends_on"):
        condition = part.text("condition", "service_started") or ""
        if condition not in CONDITIONS:
            raise part.wrong("condition", f"{condition[:40]!r} is none of {', '.join(CONDITIONS)}")
        if part.flag("restart"):
            part.drop("restart", "it is not restarted with its dependency")
        if not part.flag("required", default=True):
            part.guess("required", "the workload always waits for the dependency")
        found[name] = CONDITIONS[condition]
    return found


def _health(draft: Draft, part: Part) -> None:
    if not part:
        return
    if isinstance(part.peek("test"), list):
        words = part.texts("test")
    else:
        text = part.text("test")
        words = [] if text is None else ["NONE"] if text == "NONE" else ["CMD-SHELL", text]
    disabled = part.flag("disable") or words[:1] == ["NONE"]
    if "start_interval" in part:
        part.drop("start_interval", "probes have one interval")
    interval, timeout = take_seconds(part, "interval") or "30s", take_seconds(part, "timeout") or "30s"
    failures, start = part.whole("retries", 3), take_seconds(part, "start_period")
    if disabled:
        return
    if not words:
        for key in ("interval", "timeout", "retries", "start_period"):
            part.drop(key, "the health check of the image is unknown", "write the `test`, too")
        return
    kind, rest = words[0], words[1:]
    if kind == "CMD-SHELL":
        command = ["/bin/sh", "-c", " ".join(rest)]
    elif kind == "CMD":
        command = rest
    else:
        raise part.wrong("test", f"it begins with CMD, CMD-SHELL or NONE, not {kind[:40]!r}")
    draft.group["readiness"] = filled(
        command=command,
        interval=_at_least(interval),
        timeout=_at_least(timeout),
        failures=max(1, failures or 3),
        start_period=start,
    )


def _at_least(text: str) -> str:
    return str(Seconds(max(0.1, Seconds.parse(text) or 30)))


def _logging(draft: Draft, part: Part) -> None:
    driver = part.text("driver", "json-file")
    options = part.part("options")
    if driver not in _LOG_DRIVERS:
        part.drop("driver", "output is kept by the engine, for `mandor logs`", "use a `kind: log-sink`")
        options.drop_rest("they are options of the log driver")
        return
    size = take_size(options, "max-size")
    if size is not None:
        draft.options["log_size"] = str(max(Size.parse(size), Size(64 * 1024)))
    files = options.whole("max-file")
    if files is not None:
        draft.options["log_files"] = min(100, max(1, files))
    options.drop_rest("the engine stores output in its own format")


def _words(service: Part, key: str) -> list[str] | None:
    """Return a list, or a text split as a shell does."""
    value = service.peek(key)
    if isinstance(value, list):
        return service.texts(key)
    text = service.text(key)
    if text is None:
        return None
    try:
        return shlex.split(text)
    except ValueError as error:
        raise service.wrong(key, f"it cannot be split into words: {error}") from None


def _signal(text: str | None) -> str | None:
    if text is None:
        return None
    if text.isdecimal():
        import signal

        try:
            return signal.Signals(int(text)).name
        except ValueError:
            return text
    return text if text.startswith("SIG") else f"SIG{text}"


def _split(texts: list[str]) -> list[tuple[str, str, str]]:
    return [text.partition("=") for text in texts]


def _settle_update(draft: Draft, service: Part) -> None:
    """Stop an instance with data of its own before its successor starts."""
    update = draft.group.get("update")
    if (
        update
        and update.get("order") == "start-first"
        and any(each.get("per_instance") for each in draft.volumes.values())
    ):
        draft.group["update"] = {"auto_rollback": update["auto_rollback"]}
        service.part("deploy").part("update_config").guess("order", "it has its own data: the old instance stops first")
