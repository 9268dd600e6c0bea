"""Group: tasks that run together on one node; GroupTemplate: the part of a group that a release contains."""

from collections.abc import Callable, Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta as Bounds
from msgspec import Struct

from mandor.lib.quantity import NEVER, Seconds
from mandor.model.autoscale import Autoscale
from mandor.model.features import needs
from mandor.model.lifecycle import Disconnect, Disruption, Gang, Reschedule, Restart
from mandor.model.live_file import live_needs
from mandor.model.meta import InvalidField, check_name
from mandor.model.network import ENGINE_NETWORK, network_extra
from mandor.model.node import COMMAND
from mandor.model.placement import Placement
from mandor.model.resources import NO_RESOURCES, Overhead, Resources
from mandor.model.secret import secret_of
from mandor.model.service import HOST_NAME
from mandor.model.share import is_none
from mandor.model.task import PortNumber, Task, TaskMount
from mandor.model.update import Update
from mandor.model.variant import TaskVariant
from mandor.model.volume import GroupVolume

Condition = Literal["started", "healthy", "completed"]
"""State of a dependency that allows a group to start."""
CONDITION_WORDS: Mapping[Condition, str] = {
    "started": "to start",
    "healthy": "to be healthy",
    "completed": "to complete",
}
Replicas = Annotated[int, Bounds(ge=0, le=100_000)]

FLAT = "main"
"""Name of the only group, and of its only task, of a flat manifest."""


AUTO: Literal["auto"] = "auto"
"""Value of a host port that the scheduler chooses."""


class Port(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A port on which a task listens, and the host port that forwards to it."""

    port: PortNumber | None = None
    """Port on which the task listens. Defaults to the host port; `MANDOR_PORT_<NAME>` holds it."""
    host: PortNumber | Literal["auto"] | None = None
    """Host port; two instances with the same fixed host port cannot share a node. With `auto` the scheduler chooses a
    free one from the node's range; `MANDOR_HOST_PORT_<NAME>` holds it.
    """
    protocol: Literal["tcp", "udp"] = "tcp"

    def __post_init__(self) -> None:
        if self.port is None and self.host is None:
            raise ValueError("a port requires `port`, `host` or both")


PORTS_MOST = 64
ALTERNATIVES_MOST = 8
ALIASES_MOST = 16
MACHINE = "virtual-machine"
"""Value of `options.<engine>.type` for a task that runs as a virtual machine."""


class Alternative(TaskVariant, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Another form of a group: differences of its only task from the main form or, for several tasks, of `tasks` by
    name.
    """

    engine: tuple[str, ...] = ()
    """Engines in order of preference. Defaults to those of the main form."""
    ports: dict[str, Port] | None = None
    """Ports; replaces those of the main form. Defaults to those of the main form."""
    tasks: dict[str, TaskVariant] = {}
    """Differences of the tasks by name; for groups of several tasks."""

    def form(self, main: "GroupTemplate") -> "GroupTemplate":
        """Return the group in this form; raises `ValueError` if it is not valid."""
        return msgspec.structs.replace(
            main,
            engine=self.engine or main.engine,
            ports=main.ports if self.ports is None else self.ports,
            tasks=main.tasks | {name: each.over(main.tasks[name]) for name, each in self._changes(main).items()},
            alternatives=(),
        )

    def _changes(self, main: "GroupTemplate") -> dict[str, TaskVariant]:
        for name in self.tasks:
            if name not in main.tasks:
                raise ValueError(f"unknown task {name!r}; the group has: {', '.join(main.tasks)}")
        if self.empty:
            return self.tasks
        if self.tasks or len(main.tasks) > 1:
            raise ValueError("in a group of several tasks, put the differences under `tasks`, by name")
        return dict.fromkeys(main.tasks, self)


def _check_kind(mount: TaskMount, volume: GroupVolume | None) -> None:
    """Check that the volume of a mount has directories, or can be new."""
    if volume is None:
        return
    if mount.subpath is not None and volume.type not in {"local", "scratch"}:
        raise ValueError(
            f"the mount {mount.path} has a `subpath`, which a volume of type {volume.type} does not support"
        )
    if mount.seed and volume.type != "local":
        raise ValueError(f"the mount {mount.path} has `seed`, which a volume of type {volume.type} does not support")


class GroupTemplate(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """The part of a group that a release contains: a change makes a new release."""

    engine: tuple[str, ...] = ()
    """Engines in order of preference. Defaults to any engine that can run the tasks."""
    ports: dict[str, Port] = {}
    """Ports by name, at most 64. A number alone is the port on which the task listens; `auto` alone is a host port
    chosen by the scheduler.
    """
    aliases: Annotated[tuple[str, ...], needs("aliases")] = ()
    """Further names under which other instances of the namespace find the group, at most 16; the name of a workload
    takes precedence.
    """
    network: Annotated[str, needs("networks")] = ""
    """Network of the cluster in which each instance has an address of its own; `engine`: the network of the engine.
    Defaults to the network named `default`, if there is one.
    """
    volumes: dict[str, GroupVolume] = {}
    """Volumes by name, at most 16; tasks mount them."""
    placement: Placement = Placement()
    """Rules about the nodes on which instances may run."""
    tasks: dict[str, Task]
    """Tasks by name, at most 32."""
    overhead: Annotated[Overhead, needs("overhead")] = Overhead()
    """Resources that an instance takes beside its tasks, for example for the virtual machine of a sandboxed runtime."""
    alternatives: tuple[Alternative, ...] = ()
    """Alternative forms of the group, at most 8, tried in this order when the main form does not fit on any node."""

    def __post_init__(self) -> None:
        for engine in self.engine:
            check_name(engine, "engine name")
        if len(self.ports) > PORTS_MOST:
            raise ValueError(f"{len(self.ports)} ports; at most {PORTS_MOST} are allowed")
        for name in self.ports:
            check_name(name, "port name")
        if not self.tasks:
            raise ValueError("a group must have at least one task")
        if len(self.tasks) > 32:
            raise ValueError(f"{len(self.tasks)} tasks; at most 32 are allowed")
        for name in self.tasks:
            check_name(name, "task name")
        if all(task.role != "main" for task in self.tasks.values()):
            raise ValueError("at least one task of a group must have the role `main`")
        if len(self.aliases) > ALIASES_MOST:
            raise ValueError(f"{len(self.aliases)} aliases; at most {ALIASES_MOST} are allowed")
        for name in self.aliases:
            if not HOST_NAME.fullmatch(name):
                raise ValueError(f"the alias {name[:80]!r} is not a host name")
        if self.network:
            check_name(self.network, "network")
        if len(self.volumes) > 16:
            raise ValueError(f"{len(self.volumes)} volumes; at most 16 are allowed")
        for name in self.volumes:
            check_name(name, "volume name")
        for task_name, task in self.tasks.items():
            for mount in task.mounts:
                if mount.volume is not None and mount.volume not in self.volumes:
                    raise ValueError(f"task {task_name} mounts {mount.volume!r}, which is not in `volumes`")
                _check_kind(mount, self.volumes.get(mount.volume or ""))
            for probe in (check for each in task.probes.values() for check in each.checks):
                asked = probe.port or probe.tcp
                if isinstance(asked, str) and asked not in self.ports:
                    raise ValueError(f"a probe of task {task_name} uses the port {asked!r}, which is not in `ports`")
        if self.alternatives:
            self._check_alternatives()

    def _check_alternatives(self) -> None:
        if len(self.alternatives) > ALTERNATIVES_MOST:
            raise InvalidField(
                f"{len(self.alternatives)} alternatives; at most {ALTERNATIVES_MOST} are allowed", "alternatives"
            )
        for number, each in enumerate(self.alternatives):
            if each == Alternative():
                raise InvalidField("the alternative does not differ from the main form", "alternatives", str(number))
            try:
                each.form(self)
            except ValueError as error:
                raise InvalidField(f"alternative {number + 1}: {error}", "alternatives", str(number)) from None

    @property
    def forms(self) -> "tuple[GroupTemplate, ...]":
        """All forms of the group without alternatives, the main form first."""
        if not self.alternatives:
            return (self,)
        main = Alternative().form(self)
        return (main, *(each.form(main) for each in self.alternatives))

    def form(self, variant: int) -> "GroupTemplate":
        """Return the form in which an instance was placed; 0 is the main form."""
        return self.forms[variant] if self.alternatives else self

    @property
    def secrets(self) -> frozenset[str]:
        """Names of the secrets that the tasks need."""
        return frozenset(secret_of(each) for task in self.tasks.values() for each in task.secret_references)

    @property
    def needs_anywhere(self) -> frozenset[str]:
        """Capabilities that every engine must have, for the group's commands, mounts, live files and security
        settings.
        """
        confined = any(task.security.confined for task in self.tasks.values())
        found = live_needs(self.tasks.values()) | ({"security"} if confined else set())
        if self.overlay:
            found.add(network_extra(self.overlay))
        if any(task.image is not None and (task.command or task.args) for task in self.tasks.values()):
            found.add(COMMAND)
        for mount in (mount for task in self.tasks.values() for mount in task.mounts):
            if mount.tmpfs is not None or self.volumes[mount.volume or ""].type == "tmpfs":
                found.add("tmpfs")
            elif mount.path.startswith("/") or mount.read_only:
                found.add("mounts")
            found |= set() if mount.path.startswith("/") else {"links"}
            found |= {"seed"} if mount.seed else set()
        return frozenset(found)

    @property
    def overlay(self) -> str:
        """Network of the cluster in which instances have an address; empty: none."""
        return "" if self.network == ENGINE_NETWORK else self.network

    @property
    def apart(self) -> bool:
        """Whether two instances cannot run side by side, because of volumes or fixed host ports."""
        if any(volume.type == "local" for volume in self.volumes.values()):
            return True
        # Without an image a task is a process of the node, and listens on host ports directly.
        plain = any(task.image is None for task in self.tasks.values())
        return any(isinstance(port.host, int) or (plain and port.port is not None) for port in self.ports.values())

    @property
    def machine_on(self) -> frozenset[str]:
        """Engines that run the group as a virtual machine."""
        options = (each for task in self.tasks.values() for each in task.options.items())
        return frozenset(engine for engine, given in options if given.get("type") == MACHINE)

    def needs(self, engine: str) -> frozenset[str]:
        """Return the capabilities that this engine must have, as named in `Capabilities.extras`."""
        return self.needs_anywhere | ({"machines"} if engine in self.machine_on else frozenset())

    @property
    def starts_first(self) -> tuple[str, ...]:
        """Init tasks and early sidecars in the order of their start. A sidecar is early if it is listed before the
        first main task.
        """
        names = list(self.tasks)
        main = next(index for index, name in enumerate(names) if self.tasks[name].role == "main")
        return tuple(
            name
            for index, name in enumerate(names)
            if self.tasks[name].role == "init" or (self.tasks[name].role == "sidecar" and index < main)
        )

    @property
    def request(self) -> Resources:
        """Resources of one instance, with its overhead."""
        scratch = sum(each.size for each in self.volumes.values() if each.type == "scratch")
        return self.total(lambda task: task.resources.request, Resources(disk_bytes=scratch))

    def total(self, amount: Callable[[Task], Resources], shared: Resources = NO_RESOURCES) -> Resources:
        """Return the largest sum of amounts at any time, with the overhead. Init tasks run one at a time, each beside
        the sidecars that started before it; `shared` is used beside all tasks but init tasks.
        """
        beside, largest, first = Resources(), Resources(), self.starts_first
        for name in first:
            asked = amount(self.tasks[name])
            if self.tasks[name].role == "init":
                largest = largest.at_least(asked + beside)
            else:
                beside += asked
        for name, task in self.tasks.items():
            if name not in first:
                beside += amount(task)
        return largest.at_least(beside + shared) + self.overhead.request


class Group(GroupTemplate, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Tasks that run together on one node, their number of instances and their lifecycle settings."""

    replicas: Replicas | None = None
    """Number of instances. Defaults to 1, or to `autoscale.min`, when the workload is created; a later apply without it
    keeps the current number.
    """
    autoscale: Autoscale | None = None
    """Scales the number of instances by load; `replicas` is then only the initial number. Defaults to no scaling."""
    depends_on: dict[str, Condition] = {}
    """Dependencies that must be met before instances start: the name of a group of this workload, or of another
    workload, with `started`, `healthy` or `completed`. At most 32. Once met for a release, a dependency stays met.
    """
    restart: Restart = Restart()
    """Restarts of tasks that end."""
    reschedule: Reschedule = Reschedule()
    """Replacement of failed instances."""
    disconnect: Disconnect = Disconnect()
    """Handling of instances whose node sends no heartbeats."""
    restore: bool = True
    """Whether an instance for which a `should` rule was relaxed is moved once the rule can be satisfied. Defaults to
    true.
    """
    disruption: Disruption = Disruption()
    """Limits on voluntary disruptions."""
    gang: Gang | None = None
    """Places instances together or not at all. Defaults to placing each instance separately."""
    update: Update = Update()
    """How instances are replaced when the template changes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_update()
        self._check_autoscale()
        if self.gang is not None and self.alternatives:
            raise InvalidField(
                "a gang with `alternatives` is not supported yet",
                "alternatives",
                hint="remove `gang` or `alternatives`",
            )
        quiet = self.disconnect
        if quiet.stop_after != NEVER and quiet.lost_after is not None:
            grace = max(task.stop.grace for task in self.tasks.values())
            least = Seconds(quiet.stop_after + grace + 10)
            if quiet.lost_after < least:
                raise ValueError(
                    f"lost_after {quiet.lost_after} is too short: stop_after + stop.grace + 10s is {least}, "
                    "and a replacement must not start before the original has stopped"
                )

    def _check_update(self) -> None:
        update = self.update
        if self.replicas and update.canary > self.count:
            raise InvalidField(
                f"{update.canary} canaries are more than {self.replicas} replicas",
                "update",
                "canary",
                hint=f"at most {self.replicas}",
            )
        beside = update.surge_key
        own = next((name for name, each in self.volumes.items() if each.per_instance), None)
        if beside and own is not None:
            raise InvalidField(
                f"each instance has its own volume {own!r}, so an additional instance would start without its data",
                "update",
                beside,
                hint="remove it: the old instance stops first, and the new one takes over its volume",
            )
        if beside and self.gang is not None:
            raise InvalidField(
                "a gang is placed as a whole, so no additional instance can start during an update",
                "update",
                beside,
                hint="remove it: each old instance stops before its replacement starts",
            )
        if is_none(self.disruption.max_unavailable) and not update.starts_first(apart=self._apart):
            raise InvalidField(
                "no instance may be unavailable, but an update would stop one before it starts another",
                "disruption",
                "max_unavailable",
                hint="at least 1, or `update: {order: start-first}`",
            )

    def _check_autoscale(self) -> None:
        scaling = self.autoscale
        if scaling is None:
            return
        if self.gang is not None:
            hint = "remove `autoscale` or `gang`"
            raise InvalidField("a gang cannot be scaled by load", "autoscale", hint=hint)
        if self.update.canary > scaling.min:
            raise InvalidField(
                f"{self.update.canary} canaries are more than `autoscale.min`, which is {scaling.min}",
                "update",
                "canary",
                hint=f"at most {scaling.min}, or increase `autoscale.min`",
            )

    @property
    def _apart(self) -> bool:
        return self.apart or self.gang is not None

    def update_room(self) -> tuple[int, int]:
        """Return how many additional instances there may be during an update, and how many may be unavailable."""
        surge, away = self.update.room(self.count, apart=self._apart)
        most = self.disruption.most_unavailable(self.count)
        return surge, away if most is None else min(away, most)

    @property
    def template(self) -> GroupTemplate:
        return GroupTemplate(**{name: getattr(self, name) for name in GroupTemplate.__struct_fields__})

    @property
    def count(self) -> int:
        given = 1 if self.replicas is None else self.replicas
        return self.autoscale.clamp(given) if self.autoscale is not None else given
