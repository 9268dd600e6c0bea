"""Makes the launch of a task, as an engine takes it, from an order: pure."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from mandor.agent.live_file_plan import live_folder
from mandor.agent.order import Order
from mandor.agent.ports import ports_of
from mandor.agent.sync_inputs import SyncInputs
from mandor.engines.base import Launch, Mount, Resolver, variable
from mandor.lib.words import did_you_mean
from mandor.model.allowance import Allowance
from mandor.model.group import GroupTemplate
from mandor.model.instance import PortStatus
from mandor.model.level import Level
from mandor.model.level_rules import BY_NAME
from mandor.model.live_file import LiveFile, live_files, live_folders
from mandor.model.node import COMMAND, NO_COMMANDS, Capabilities
from mandor.model.secret import whole, with_secrets
from mandor.model.task import File, Identity, Security, Task, TaskMount

HOSTS = "/etc/hosts"
NOBODY = 65_534
"""User id of a task at the level `restricted` while its namespace has no user ids."""
TOKEN_FILE = "MANDOR_IDENTITY_TOKEN_FILE"  # noqa: S105 - the name of a variable
TOKEN_PATH = "/run/mandor/identity/token"  # noqa: S105 - a path
RELATIVE_TOKEN_PATH = "identity/token"  # noqa: S105 - a path
"""Path of the token for engines that put volumes below the working directory (`links`)."""
_VARIABLE = re.compile(r"\$\{(MANDOR_[A-Z0-9_]+)\}")


class _Resolved(NamedTuple):
    """The mounts of a task, its ports, and the variables that its texts may contain."""

    mounts: tuple[Mount, ...]
    ports: list[PortStatus]
    variables: Mapping[str, str]
    resolver: Resolver | None


def _resolve(order: Order, task_name: str, engine: str, inputs: SyncInputs) -> _Resolved:
    assert order.template is not None, "an order is launched after its release was read"
    task = order.template.tasks[task_name]
    mounts = _mounts(order, task_name, inputs)
    ports = ports_of(order, published=inputs.published)
    resolver = inputs.names.resolver if _takes_resolver(order, task, engine, inputs) else None
    hosts = inputs.names.hosts if resolver is None else ""
    if hosts and inputs.mounts_hosts and inputs.published and _takes_hosts(task, engine):
        mounts += (Mount(path=HOSTS, source=hosts, read_only=True),)
        hosts = HOSTS
    elif hosts and "mounts" in inputs.extras and not inputs.published:
        # A confined process sees no folder of the agent's: the file is shown to it where it is.
        mounts += (Mount(path=hosts, source=hosts, read_only=True),)
    identified = _identified(task, inputs, task_name)
    mounts += identified.mounts
    environment = {
        **_about(order, task_name),
        **identified.variables,
        **port_variables(ports),
        **inputs.names.variables,
        **({"MANDOR_HOSTS": hosts} if hosts else {}),
        **{each.variable: each.path for each in mounts if each.name},
    }
    return _Resolved(mounts, list(ports), environment, resolver)


def make_live_files(order: Order, task_name: str, engine: str, inputs: SyncInputs) -> tuple[LiveFile, ...]:
    """Return the live files of the task, with their texts; none where the node has no folder for them."""
    assert order.template is not None, "an order is launched after its release was read"
    found = live_files(order.template.tasks[task_name]) if inputs.live_files else []
    if not found:
        return ()
    variables = _resolve(order, task_name, engine, inputs).variables
    return tuple(each._replace(file=_fill_file(each.file, variables, inputs.secrets)) for each in found)


def _live_mounts(order: Order, task: Task, task_name: str, inputs: SyncInputs) -> tuple[Mount, ...]:
    """An engine without mounts makes links, which cannot be read-only: the files belong to the task's user there."""
    place = live_folder(inputs.live_files, order.uid, task_name, image=task.image is not None)
    return tuple(
        Mount(path=folder, source=f"{place}/{number}", read_only="mounts" in inputs.extras)
        for number, folder in enumerate(live_folders(task))
    )


def make_launch(order: Order, task_name: str, engine: str, inputs: SyncInputs) -> Launch:
    """Return the task with everything resolved; variables name the instance, its node and others it can reach."""
    assert order.template is not None, "an order is launched after its release was read"
    task, instance = order.template.tasks[task_name], order.instance
    several = len(order.template.tasks) > 1
    limits = task.resources.limits
    mounts, ports, environment, resolver = _resolve(order, task_name, engine, inputs)
    files = task.files
    if inputs.live_files and (live := {each.file.path for each in live_files(task)}):
        files = tuple(each for each in files if each.path not in live)
        mounts = tuple(sorted((*mounts, *_live_mounts(order, task, task_name, inputs)), key=_depth))
    return Launch(
        name=f"{order.name}/{task_name}" if several else order.name,
        namespace=instance.meta.namespace,
        image=task.image,
        login=inputs.secrets.get(whole(login), "") if (login := pull_secret_of(order, task)) else "",
        command=tuple(fill_in(each, environment) for each in task.command),
        args=tuple(fill_in(each, environment) for each in task.args),
        env={
            **environment,
            **(_telemetry(order, task_name, inputs, environment) if inputs.otlp else {}),
            **{name: with_secrets(fill_in(each, environment), inputs.secrets) for name, each in task.env.items()},
            **{name: inputs.secrets[reference] for name, reference in task.secrets.items()},
        },
        files=tuple(_fill_file(each, environment, inputs.secrets) for each in files),
        secret_files=frozenset(each.path for each in files if each.references),
        mounts=mounts,
        working_dir=task.working_dir,
        user=user_of(order.allowance, task, engine) if inputs.users else task.security.user,
        security=confined(order.allowance.level, task.security),
        level=order.allowance.level,
        cpu_milli=None if limits.cpu is None else int(limits.cpu),
        memory_bytes=None if limits.memory is None else int(limits.memory),
        processes=limits.processes,
        ports={each.name: each.port for each in ports},
        host_ports={each.name: each.host for each in ports if each.host is not None},
        protocols={each.name: each.protocol for each in ports if each.protocol != "tcp"},
        resolver=resolver,
        sandbox=several,
        attachment=inputs.attachment,
        stop_signal=task.stop.signal,
        options=task.options.get(engine, {}),
    )


def pull_secret_of(order: Order, task: Task) -> str:
    """Return the secret with the registry login for the task's image: the task's or the namespace's; empty: none."""
    return (task.pull_secret or order.allowance.rules.pull_secret) if task.image else ""


def user_of(allowance: Allowance, task: Task, engine: str) -> str | int | None:
    """Return the user of a task: its own, or, unless its level leaves the choice to the engine, the first user id of
    its namespace."""
    given = task.security.user
    if given is not None or allowance.level == "privileged":
        return given
    if allowance.level == "baseline" and engine not in BY_NAME:
        return None
    return allowance.first_user or NOBODY


def confined(level: Level, security: Security) -> Security:
    """Return the security settings of a task with what its level requires. A task that is still `privileged` here was
    allowed to be by an administrator."""
    if level != "restricted" or security.privileged:
        return security
    return msgspec.structs.replace(
        security,
        no_new_privileges=True,
        cap_drop=("ALL",),
        read_only_root=security.read_only_root is not False,
    )


def token_path(identity: Identity, *, links: bool) -> str:
    """Return the path of the identity token in the task."""
    return identity.file or (RELATIVE_TOKEN_PATH if links else TOKEN_PATH)


class _Identified(NamedTuple):
    """Mount and variable of a task's identity token."""

    mounts: tuple[Mount, ...] = ()
    variables: Mapping[str, str] = {}


def _identified(task: Task, inputs: SyncInputs, task_name: str) -> _Identified:
    """The folder with the task's token, and the variable that names the file."""
    source = inputs.identities.get(task_name)
    if task.identity is None or source is None:
        return _Identified()
    file = token_path(task.identity, links="links" in inputs.extras)
    # An engine that only links cannot mount read-only; the token belongs to the task's user there.
    mount = Mount(path=file.rpartition("/")[0], source=source, read_only="mounts" in inputs.extras)
    return _Identified((mount,), {TOKEN_FILE: file})


def _fill_file(file: File, environment: Mapping[str, str], secrets: Mapping[str, str]) -> File:
    """The file with its text; `on_change` is for files with references to secrets, and goes with them."""
    if file.secret is not None:
        return msgspec.structs.replace(file, content=secrets[file.secret], secret=None, on_change=None)
    if not file.fill:
        return file
    text = with_secrets(fill_in(file.content, environment), secrets)
    return msgspec.structs.replace(file, content=text, fill=False, on_change=None)


def fill_in(text: str, environment: Mapping[str, str]) -> str:
    """Replace `${MANDOR_…}` by the variable's value; other names are left to the task's shell."""
    if "${MANDOR_" not in text:
        return text
    return _VARIABLE.sub(lambda match: environment.get(match[1], match[0]), text)


def _takes_resolver(order: Order, task: Task, engine: str, inputs: SyncInputs) -> bool:
    """Return whether the task uses the name server of the node: not one with its own servers or the node's network."""
    options = task.options.get(engine, {})
    if "resolver" not in inputs.extras or options.get("dns") or options.get("network") in {"host", "none"}:
        return False
    if "confined" not in inputs.extras:
        return True
    return order.allowance.level != "privileged" or bool(options.get("confine"))  # else it sees the node's files


def _takes_hosts(task: Task, engine: str) -> bool:
    """Return whether the hosts file can be mounted: not over the task's own, nor into a virtual machine."""
    options = task.options.get(engine, {})
    own = HOSTS in {*(each.path for each in task.files), *(each.path for each in task.mounts)}
    return not own and not options.get("extra_hosts") and options.get("type") != "virtual-machine"


def _about(order: Order, task_name: str) -> dict[str, str]:
    meta, spec = order.instance.meta, order.instance.spec
    return {
        "MANDOR_NAMESPACE": meta.namespace,
        "MANDOR_WORKLOAD": spec.workload,
        "MANDOR_GROUP": spec.group,
        "MANDOR_INSTANCE": meta.name,
        "MANDOR_INDEX": str(spec.index),
        "MANDOR_TASK": task_name,
        "MANDOR_NODE": spec.node,
    }


def _telemetry(order: Order, task_name: str, inputs: SyncInputs, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of OpenTelemetry's libraries: receiver, service name and attributes, as log sinks use them.
    The first start also gets the trace that it is part of."""
    meta, spec = order.instance.meta, order.instance.spec
    about = {
        "service.namespace": meta.namespace,
        "service.instance.id": meta.name,
        "host.name": spec.node,
        "mandor.task": task_name,
    }
    return {
        **({"TRACEPARENT": meta.trace.parent} if meta.trace is not None and not inputs.status.started_at else {}),
        "OTEL_EXPORTER_OTLP_ENDPOINT": fill_in(inputs.otlp, environment),
        "OTEL_SERVICE_NAME": spec.workload,
        "OTEL_RESOURCE_ATTRIBUTES": ",".join(f"{name}={quote(value, safe='')}" for name, value in about.items()),
    }


def port_variables(ports: Iterable[PortStatus]) -> dict[str, str]:
    """Return `MANDOR_PORT_<NAME>`, the port to listen on, and `MANDOR_HOST_PORT_<NAME>`, its port on the node."""
    found = {}
    for each in ports:
        found[f"MANDOR_PORT_{variable(each.name)}"] = str(each.port)
        if each.host is not None:
            found[f"MANDOR_HOST_PORT_{variable(each.name)}"] = str(each.host)
    return found


def _depth(mount: Mount) -> int:
    return mount.path.count("/")


def subpath_of(order: Order, task_name: str, mount: TaskMount) -> str:
    """Return the subpath of a mount with its variables replaced; empty: the whole volume."""
    return fill_in(mount.subpath, _about(order, task_name)) if mount.subpath else ""


def source_name(volume: str, subpath: str = "") -> str:
    """Return the key of a volume, or of a directory of it, in the sources of an instance."""
    return f"{volume}/{subpath}" if subpath else volume


def _mounts(order: Order, task_name: str, inputs: SyncInputs) -> tuple[Mount, ...]:
    """Return the mounts of a task, outer paths first."""
    assert order.template is not None, "an order is launched after its release was read"
    task, found = order.template.tasks[task_name], list[Mount]()
    taken = {each.path.rstrip("/") for each in task.mounts}
    for each in task.mounts:
        path = each.path.rstrip("/")
        volume = order.template.volumes[each.volume] if each.volume is not None else None
        if each.volume is None or (volume is not None and volume.type == "tmpfs"):
            size = each.tmpfs if volume is None else volume.size
            found.append(Mount(path=path, size_bytes=int(size or 0), read_only=each.read_only, name=each.volume or ""))
            continue
        name = source_name(each.volume, subpath_of(order, task_name, each))
        source, seed = inputs.sources[name], each.seed and each.volume in inputs.new_volumes
        found.append(Mount(path=path, source=source, read_only=each.read_only, name=each.volume, seed=seed))
        if path.startswith("/"):
            # Subpaths are directories of their own: they are shown at their places in the volume.
            inner = {f"{path}/{key[len(name) + 1 :]}": key for key in inputs.sources if key.startswith(f"{name}/")}
            found += [
                Mount(path=place, source=inputs.sources[key], read_only=each.read_only)
                for place, key in inner.items()
                if place not in taken
            ]
    return tuple(sorted(found, key=_depth))


def can_run(template: GroupTemplate, name: str, engine: Capabilities) -> bool:
    return engine.runs((task.image is not None for task in template.tasks.values()), template.needs(name))


def pick_engine(template: GroupTemplate, engines: Mapping[str, Capabilities]) -> tuple[str, str]:
    """Return (engine, ""), or ("", why there is none); engines that are up come first."""
    wanted = [name for name in template.engine if name in engines] if template.engine else sorted(engines)
    if template.engine and not wanted:
        names = " or ".join(template.engine)
        return "", f"this node has no engine {names}; {did_you_mean(template.engine[0], engines)}"
    able = [name for name in wanted if can_run(template, name, engines[name])]
    if not able:
        kind = "images" if any(task.image for task in template.tasks.values()) else "plain commands"
        needs = frozenset[str]().union(*(template.needs(name) for name in wanted))
        if COMMAND in needs and any(NO_COMMANDS in engines[name].extras for name in wanted):
            kind += " with a command"
        needs -= {COMMAND}
        kind += f" and has {', '.join(sorted(needs))}" if needs else ""
        return "", f"no engine of this node runs {kind}: {', '.join(wanted) or 'there is none'}"
    return next((name for name in able if engines[name].up), able[0]), ""
