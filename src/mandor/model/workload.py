"""Workload: what someone wants; Release: one immutable version of its template."""

import hashlib
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta as Bounds
from msgspec import Struct, field

from mandor.lib.quantity import NEVER, Seconds, SecondsOrNever
from mandor.model.autoscale import Autoscale, AutoscaleStatus
from mandor.model.batch import Batch, check_batch
from mandor.model.daemon import check_daemon
from mandor.model.depends import Condition, check_depends_on
from mandor.model.features import needs
from mandor.model.image import Digest
from mandor.model.live_file import live_needs
from mandor.model.meta import NAME_MOST, Meta, Misfit, Object, check_name
from mandor.model.placement import Placement
from mandor.model.priority import Priority
from mandor.model.resources import Resources
from mandor.model.rollout import NO_ORDERS, Rollout, RolloutOrders
from mandor.model.schedule import RUN_NAME_MOST, Schedule
from mandor.model.secret import secret_of
from mandor.model.share import Share, check_share, is_none, share_of
from mandor.model.task import PortNumber, Task
from mandor.model.update import Update
from mandor.model.variant import TaskVariant
from mandor.model.volume import GroupVolume

WorkloadType = Literal["service", "batch", "daemon"]
Replicas = Annotated[int, Bounds(ge=0, le=100_000)]

FLAT = "main"
"""The name of the only group, and of its only task, of a flat manifest."""


AUTO: Literal["auto"] = "auto"
"""As a port of the node: one that the scheduler chooses."""


class Port(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A port a task listens on; `host`: the node's port that leads to it."""

    port: PortNumber | None = None
    """The number the task listens on; absent: the same as the node's port, as `MANDOR_PORT_<NAME>` tells it."""
    host: PortNumber | Literal["auto"] | None = None
    """The node's port; two instances that ask for the same one cannot share a node. `auto`: one that is free, chosen
    by the scheduler from the node's range; `MANDOR_HOST_PORT_<NAME>` tells it."""
    protocol: Literal["tcp", "udp"] = "tcp"

    def __post_init__(self) -> None:
        if self.port is None and self.host is None:
            raise ValueError("a port has a number, a `host` port, or both")


class Restart(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """In place: `delay` doubling to `max_delay`; after `attempts` within `interval` the instance has failed."""

    policy: Literal["always", "on-failure", "never"] | None = None
    """Absent: on-failure for a batch, else always."""
    attempts: Annotated[int, Bounds(ge=0, le=10_000)] = 10
    """Restarts within `interval` before the instance has failed."""
    interval: Seconds = Seconds(1800)
    """Older restarts are forgiven."""
    delay: Seconds = Seconds(10)
    """Before the first restart; each next one waits twice as long."""
    max_delay: Seconds = Seconds(300)
    """The longest wait."""

    def __post_init__(self) -> None:
        if self.max_delay < self.delay:
            raise ValueError(f"max_delay {self.max_delay} is shorter than delay {self.delay}")


class Reschedule(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """After failing on a node, a replacement elsewhere: `delay` doubling to `max_delay`."""

    delay: Seconds = Seconds(30)
    """Before the first replacement; each next one waits twice as long."""
    max_delay: Seconds = Seconds(3600)
    """The longest wait."""


class Disconnect(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """What happens when the node of an instance falls silent."""

    lost_after: Seconds | None = None
    """Silence after which the instance is Lost; absent: the cluster's setting."""
    stop_after: SecondsOrNever = NEVER
    """The node itself stops the instance after so long without a control plane, also when its agent is dead."""
    replace: bool = True
    """Whether a lost instance is replaced on another node."""
    reconcile: Literal["keep-replacement"] = "keep-replacement"
    """A node that comes back stops what was replaced."""


class Disruption(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """How much of it may be taken away at a time, by whoever has a choice."""

    max_unavailable: Share | None = None
    """So many of its instances, or so many percent of them (`25%`); absent: any number. Preemption goes beyond it last
    of all."""
    preempt: Literal["last", "never"] = "last"
    """`never`: no higher priority takes the place of its instances."""

    def __post_init__(self) -> None:
        check_share(self.max_unavailable, "max_unavailable")

    def most_unavailable(self, wanted: int) -> int | None:
        """Of so many; a part of an instance counts as one, as in Kubernetes."""
        most = self.max_unavailable
        return None if most is None else share_of(most, wanted, up=True)


GANG_SECONDS_MOST = 86_400
PORTS_MOST = 64


class Gang(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """All or nothing: so many instances of the group get their nodes together, or none gets one."""

    min: Annotated[int, Bounds(ge=1, le=100_000)] | None = None
    """The fewest that are worth running; absent: all of them."""
    timeout: Seconds = Seconds(300)
    """So long may fewer than `min` hold nodes, after a node was lost or the like; then they give them back."""

    def __post_init__(self) -> None:
        if not 1 <= self.timeout <= GANG_SECONDS_MOST:
            raise Misfit(f"{self.timeout} is no time for a gang to wait", "timeout", hint="1s to 24h")


ALTERNATIVES_MOST = 8
MACHINE = "virtual-machine"
"""What `options.<engine>.type` says of a task that is to be a virtual machine."""


class Alternative(TaskVariant, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Another form of a group: what is different from the main form, of its only task or, by name, of its `tasks`."""

    engine: tuple[str, ...] = ()
    """Any of these, in order of preference; absent: as in the main form."""
    ports: dict[str, Port] | None = None
    """All of its ports; absent: as in the main form."""
    tasks: dict[str, TaskVariant] = {}
    """What is different about its tasks, by name; for groups of several tasks."""

    def form(self, main: "GroupTemplate") -> "GroupTemplate":
        """The group in this form; a `ValueError` when that is none."""
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
                raise ValueError(f"there is no task {name!r}; there are: {', '.join(main.tasks)}")
        if self.empty:
            return self.tasks
        if self.tasks or len(main.tasks) > 1:
            raise ValueError("a group of several tasks says under `tasks`, by name, what is different about each")
        return dict.fromkeys(main.tasks, self)


class GroupTemplate(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """What a release fixes: a change here makes a new one."""

    engine: tuple[str, ...] = ()
    """Any of these, in order of preference; empty: whichever can run it."""
    ports: dict[str, Port] = {}
    """Ports by name; a number alone is the port the task listens on, `auto` alone one of the node's that is chosen."""
    volumes: dict[str, GroupVolume] = {}
    """Data that outlives its instances, by name; tasks mount them."""
    placement: Placement = Placement()
    """Where it may go."""
    tasks: dict[str, Task]
    """Programs by name."""
    alternatives: tuple[Alternative, ...] = ()
    """Other forms of it, tried in this order when the main form has no place."""

    def __post_init__(self) -> None:
        for engine in self.engine:
            check_name(engine, "engine name")
        if len(self.ports) > PORTS_MOST:
            raise ValueError(f"a group has at most {PORTS_MOST} ports")
        for name in self.ports:
            check_name(name, "port name")
        if not self.tasks:
            raise ValueError("a group has at least one task")
        if len(self.tasks) > 32:
            raise ValueError("a group has at most 32 tasks")
        for name in self.tasks:
            check_name(name, "task name")
        if all(task.role != "main" for task in self.tasks.values()):
            raise ValueError("at least one task of a group has the role `main`")
        if len(self.volumes) > 16:
            raise ValueError("a group has at most 16 volumes")
        for name in self.volumes:
            check_name(name, "volume name")
        for task_name, task in self.tasks.items():
            for mount in task.mounts:
                if mount.volume is not None and mount.volume not in self.volumes:
                    raise ValueError(f"task {task_name} mounts {mount.volume!r}, which is not among `volumes`")
            for probe in task.probes.values():
                asked = probe.port or probe.tcp
                if isinstance(asked, str) and asked not in self.ports:
                    raise ValueError(
                        f"the probe of task {task_name} names the port {asked!r}, which is not among `ports`"
                    )
        if self.alternatives:
            self._check_alternatives()

    def _check_alternatives(self) -> None:
        if len(self.alternatives) > ALTERNATIVES_MOST:
            raise Misfit(f"a group has at most {ALTERNATIVES_MOST} alternatives", "alternatives")
        for number, each in enumerate(self.alternatives):
            if each == Alternative():
                raise Misfit("an alternative names what is different from the main form", "alternatives", str(number))
            try:
                each.form(self)
            except ValueError as error:
                raise Misfit(f"alternative {number + 1}: {error}", "alternatives", str(number)) from None

    @property
    def forms(self) -> "tuple[GroupTemplate, ...]":
        """What an instance of it can be, the main form first: each for itself, without alternatives."""
        if not self.alternatives:
            return (self,)
        main = Alternative().form(self)
        return (main, *(each.form(main) for each in self.alternatives))

    def form(self, variant: int) -> "GroupTemplate":
        """The form that an instance was placed in; 0: the main one."""
        return self.forms[variant] if self.alternatives else self

    @property
    def secrets(self) -> frozenset[str]:
        """The names of the secrets that its tasks need."""
        return frozenset(secret_of(each) for task in self.tasks.values() for each in task.secret_references)

    @property
    def needs_anywhere(self) -> frozenset[str]:
        """Capabilities that every engine of it needs: for its mounts, its live files and its security settings."""
        confined = any(task.security.confined for task in self.tasks.values())
        found = live_needs(self.tasks.values()) | ({"security"} if confined else set())
        for mount in (mount for task in self.tasks.values() for mount in task.mounts):
            if mount.tmpfs is not None or self.volumes[mount.volume or ""].type == "tmpfs":
                found.add("tmpfs")
            elif mount.path.startswith("/") or mount.read_only:
                found.add("mounts")
            found |= set() if mount.path.startswith("/") else {"links"}
        return frozenset(found)

    @property
    def apart(self) -> bool:
        """Two instances cannot count on running beside each other: data of their own, or ports of the node."""
        if any(volume.type == "local" for volume in self.volumes.values()):
            return True
        # Without an image a task is a process of the node, and listens on the node's own ports.
        plain = any(task.image is None for task in self.tasks.values())
        return any(isinstance(port.host, int) or (plain and port.port is not None) for port in self.ports.values())

    @property
    def machine_on(self) -> frozenset[str]:
        """The engines that are told to make a virtual machine of it."""
        options = (each for task in self.tasks.values() for each in task.options.items())
        return frozenset(engine for engine, told in options if told.get("type") == MACHINE)

    def needs(self, engine: str) -> frozenset[str]:
        """What that engine has to be able to do, in the words of `Capabilities.extras`."""
        return self.needs_anywhere | ({"machines"} if engine in self.machine_on else frozenset())

    @property
    def request(self) -> Resources:
        """What one instance takes: init tasks run before the others, one at a time."""
        scratch = sum(each.size for each in self.volumes.values() if each.type == "scratch")
        together, largest = Resources(disk_bytes=scratch), Resources()
        for task in self.tasks.values():
            asked = task.resources.request
            if task.role == "init":
                largest = largest.at_least(asked)
            else:
                together += asked
        return largest.at_least(together)


class Group(GroupTemplate, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Tasks that share fate and node, how many copies, and how they are looked after."""

    replicas: Replicas | None = None
    """Absent: 1 when new (or the fewest of `autoscale`); an apply that leaves it out keeps the current count."""
    autoscale: Autoscale | None = None
    """The count follows the load; `replicas` is only what it begins with then. Absent: it stays as it is."""
    depends_on: dict[str, Condition] = {}
    """What has to be so before its instances begin, by the name of a group of this workload, else of a workload:
    `started`, `healthy` or `completed`. Once met for a release, it stays so."""
    restart: Restart = Restart()
    """What happens when a task ends by itself."""
    reschedule: Reschedule = Reschedule()
    """What happens when an instance has failed for good."""
    disconnect: Disconnect = Disconnect()
    """What happens when its node falls silent."""
    restore: bool = True
    """Whether an instance that was placed without a `should` rule moves when the rule can be kept again."""
    disruption: Disruption = Disruption()
    """How much of it may be taken away at a time."""
    gang: Gang | None = None
    """All or nothing: how many have to get their nodes together; absent: each is placed by itself."""
    update: Update = Update()
    """How its instances are replaced when the template changes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_update()
        self._check_autoscale()
        if self.gang is not None and self.alternatives:
            raise Misfit(
                "a gang with `alternatives` is not supported yet",
                "alternatives",
                hint="leave `gang` or `alternatives` out: the members of a gang have one form",
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
            raise Misfit(
                f"{update.canary} canaries, but there are {self.replicas} replicas",
                "update",
                "canary",
                hint=f"at most {self.replicas}",
            )
        beside = update.asks_for_beside
        own = next((name for name, each in self.volumes.items() if each.per_instance), None)
        if beside and own is not None:
            raise Misfit(
                f"each instance has its own volume {own!r}: one started beside it would begin without its data",
                "update",
                beside,
                hint="leave it out: the old one stops first, and the new one takes over its volume",
            )
        if beside and self.gang is not None:
            raise Misfit(
                "a gang is placed as a whole: none of it is started beside it",
                "update",
                beside,
                hint="leave it out: members are replaced where they are, the old one first",
            )
        if is_none(self.disruption.max_unavailable) and not update.starts_first(apart=self._apart):
            raise Misfit(
                "no instance may be taken away, and an update would have to stop one before it starts another",
                "disruption",
                "max_unavailable",
                hint="at least 1, or `update: {order: start-first}`",
            )

    def _check_autoscale(self) -> None:
        scaling = self.autoscale
        if scaling is None:
            return
        if self.gang is not None:
            hint = "leave `autoscale` out: a gang is placed as a whole"
            raise Misfit("the count of a gang cannot follow its load", "autoscale", hint=hint)
        if self.update.canary > scaling.min:
            raise Misfit(
                f"{self.update.canary} canaries, and `autoscale` may leave {scaling.min} instances",
                "update",
                "canary",
                hint=f"at most {scaling.min}, or a larger `min`",
            )

    @property
    def _apart(self) -> bool:
        return self.apart or self.gang is not None

    def update_room(self) -> tuple[int, int]:
        """During an update: how many more than wanted there may be, and how many fewer available."""
        surge, away = self.update.room(self.count, apart=self._apart)
        most = self.disruption.most_unavailable(self.count)
        return surge, away if most is None else min(away, most)

    @property
    def template(self) -> GroupTemplate:
        return GroupTemplate(
            engine=self.engine,
            ports=self.ports,
            volumes=self.volumes,
            placement=self.placement,
            tasks=self.tasks,
            alternatives=self.alternatives,
        )

    @property
    def count(self) -> int:
        given = 1 if self.replicas is None else self.replicas
        return self.autoscale.clamp(given) if self.autoscale is not None else given


class WorkloadSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    type: WorkloadType = "service"
    """`service` keeps its instances alive, `batch` runs them to their end, `daemon` has one on each matching node."""
    priority: Priority = None
    """A number, or the name of a priority class: higher is placed first, and may take the place of lower. Absent: the
    class that is the default, else 0."""
    profile: str = "default"
    """The scheduler profile that places it."""
    gates: tuple[str, ...] = ()
    """While one is named here, new instances wait outside the queue; whoever set it takes it away."""
    batch: Batch | None = None
    """How often and how many at a time; absent: every replica once."""
    schedule: Schedule | None = None
    """When it runs, again and again; absent: at once."""
    run_of: str = ""
    """The workload with a schedule that this is a run of."""
    restarted: int = 0
    """How often someone asked for a restart of all its instances."""
    rollout: RolloutOrders = NO_ORDERS
    """What someone ordered about its roll-out."""
    groups: dict[str, Group]
    """Groups by name."""

    def __post_init__(self) -> None:
        if not self.groups:
            raise ValueError("a workload has at least one group")
        if len(self.groups) > 32:
            raise ValueError("a workload has at most 32 groups")
        if len(self.gates) > 16:
            raise ValueError("a workload has at most 16 gates")
        for gate in self.gates:
            check_name(gate, "gate")
        if isinstance(self.priority, str):
            check_name(self.priority, "name of a priority class")
        for name in self.groups:
            check_name(name, "group name")
        if self.batch is not None and self.type != "batch":
            raise ValueError("`batch` belongs to `type: batch`")
        if self.schedule is not None and self.type != "batch":
            raise Misfit("`schedule` belongs to `type: batch`", "schedule", hint="write `type: batch` beside it")
        check_depends_on(self.groups, ends=self.type == "batch")
        for name, group in self.groups.items():
            if self.type == "daemon":
                check_daemon(name, group)
            self._check_gang(name, group)
            if group.autoscale is not None and self.type != "service":
                raise Misfit(
                    f"group {name}: only a service is scaled by its load",
                    "groups",
                    name,
                    "autoscale",
                    hint="leave `autoscale` out",
                )
            if self.type == "batch" and group.update != Update():
                raise Misfit(
                    f"group {name}: a batch is not rolled out: a change stops what runs, and it begins anew",
                    "groups",
                    name,
                    "update",
                    hint="leave `update` out",
                )
        if self.type == "batch":
            for name, group in self.groups.items():
                check_batch(name, group)

    def _check_gang(self, name: str, group: Group) -> None:
        if group.gang is None or group.gang.min is None:
            return
        if self.batch is None and not group.replicas:
            return  # As many as there are already, or nobody at all.
        most = self.together(name)
        if group.gang.min > most:
            there = f"only {most} run at a time" if self.batch else f"there are {most} replicas"
            raise Misfit(
                f"group {name}: a gang of at least {group.gang.min}, but {there}",
                "groups",
                name,
                "gang",
                "min",
                hint=f"`min` is at most {most}",
            )

    def together(self, group: str) -> int:
        """So many instances of a group there are at the same time, if all goes well."""
        if self.batch is not None:
            return min(self.batch.parallelism, self.batch.completions)
        return self.groups[group].count

    def gang_of(self, group: str) -> int:
        """So many instances of a group have to get their nodes together; 0: it is no gang."""
        gang = self.groups[group].gang if group in self.groups else None
        if gang is None:
            return 0
        most = self.together(group)
        return most if gang.min is None else min(gang.min, most)

    def restart_policy(self, group: str) -> Literal["always", "on-failure", "never"]:
        return self.groups[group].restart.policy or ("on-failure" if self.type == "batch" else "always")

    @property
    def template(self) -> dict[str, GroupTemplate]:
        return {name: group.template for name, group in self.groups.items()}


class WorkloadStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Written by the workload controller."""

    phase: str
    """Pending, Running, Updating, Succeeded, Failed or Stopping, in one word for people."""
    release: str = ""
    wanted: int = 0
    running: int = 0
    ready: int = 0
    pending: int = 0
    succeeded: int = 0
    failed: int = 0
    indices: dict[str, str] = {}
    """Of an indexed batch: which indices have succeeded, by group, as `0-4,7`."""
    message: str = ""
    opened: tuple[str, ...] = ()
    """Groups whose dependencies were met, for `release`."""
    rollout: Rollout | None = None
    """Of a service or a daemon: how far its latest roll-out is."""
    autoscale: dict[str, AutoscaleStatus] = {}
    """Of groups whose count follows their load, by name; written by the autoscaler."""
    schedule: str = ""
    """The schedule that the times below are about."""
    last_at: float = 0.0
    """Runs up to this time have begun, or were left out."""
    next_at: float = 0.0
    """When the next run begins."""
    asked: int = 0
    """How many restarts were answered with a run."""


class Workload(Object, frozen=True, tag="workload"):
    """What a user wants to run: groups of tasks, their count and their type (service, batch or daemon)."""

    kind: ClassVar[str] = "workload"
    plural: ClassVar[str] = "workloads"

    spec: WorkloadSpec
    status: WorkloadStatus = field(default_factory=lambda: WorkloadStatus(phase="Pending"))

    def __post_init__(self) -> None:
        most = NAME_MOST if self.spec.schedule is None else RUN_NAME_MOST
        check_name(self.meta.name, "workload name", most)  # shorter than most: its instances' names begin with it


class ReleaseSpec(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    workload: str
    sequence: int
    hash: str
    cause: str = ""
    """What made it differ from the one before, in a few words."""
    groups: dict[str, GroupTemplate]


class ReleaseStatus(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    images: Annotated[dict[str, Digest], needs("image-digests")] = {}
    """Digests by the references in its template: the first that a node reports for each. Later starts use them."""
    secrets: Annotated[dict[str, str], needs("secret-changes")] = {}
    """Content ids of secrets with `on_change`, by name, from before the first instance of the release."""


class Release(Object, frozen=True, tag="release"):
    """Never changes; its name is `<workload>.<sequence>`."""

    kind: ClassVar[str] = "release"
    plural: ClassVar[str] = "releases"

    spec: ReleaseSpec
    status: ReleaseStatus = field(default_factory=ReleaseStatus)


def template_hash(groups: Mapping[str, object], restarted: int = 0) -> str:
    """The same for the same words: what the author left out does not count, so a new default changes no hash."""
    from mandor.model.codec import to_plain

    plain = to_plain(groups)
    content = {"groups": plain, "restarted": restarted} if restarted else {"groups": plain}
    return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()[:16]


def make_release(workload: Workload, sequence: int, cause: str = "") -> Release:
    name, groups = workload.meta.name, workload.spec.template
    digest = template_hash(groups, workload.spec.restarted)
    spec = ReleaseSpec(workload=name, sequence=sequence, hash=digest, cause=cause, groups=groups)
    return Release(meta=Meta(name=f"{name}.{sequence}", namespace=workload.meta.namespace), spec=spec)
