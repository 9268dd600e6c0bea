"""Workload: the desired groups of tasks; Release: one immutable version of a workload's template."""

import hashlib
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Struct, field

from mandor.model.autoscale import AutoscaleStatus
from mandor.model.batch import Batch, check_batch
from mandor.model.daemon import check_per_node
from mandor.model.features import needs
from mandor.model.group import AUTO, Group, GroupTemplate
from mandor.model.image import Digest
from mandor.model.meta import NAME_MOST, InvalidField, Meta, Object, check_name
from mandor.model.priority import Priority
from mandor.model.rollout import NO_ORDERS, Rollout, RolloutOrders
from mandor.model.schedule import RUN_NAME_MOST, Schedule
from mandor.model.service import WorkloadService, check_services, target_ports
from mandor.model.update import Update

WorkloadType = Literal["service", "batch", "daemon"]
DEPENDENCIES_MOST = 32


class WorkloadSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    type: WorkloadType = "service"
    """`service` keeps its instances running, `batch` runs them to their end, `daemon` runs one on each matching node.
    Defaults to `service`.
    """
    priority: Priority = None
    """A whole number of 32 bits, or the name of a priority class. Instances of higher priority are placed first
    and may preempt those of lower priority. Defaults to the default priority class, otherwise 0.
    """
    profile: str = "default"
    """Scheduler profile that places the instances. Defaults to `default`."""
    gates: tuple[str, ...] = ()
    """Scheduling gates, at most 16: new instances are not scheduled until all gates are removed."""
    batch: Batch | None = None
    """Completions and parallelism of a batch. Defaults to running every replica once."""
    schedule: Schedule | None = None
    """Times of recurring runs. Defaults to a single run, at once."""
    run_of: str = ""
    """Workload with a schedule that this workload is a run of."""
    restarted: int = 0
    """Number of requested restarts of all instances."""
    rollout: RolloutOrders = NO_ORDERS
    """Commands of `mandor rollout`."""
    services: Annotated[tuple[WorkloadService, ...], needs("services")] = ()
    """Services of the workload, at most 32: each has a stable name and a virtual address for its ready instances."""
    groups: dict[str, Group]
    """Groups by name, at most 32."""

    def __post_init__(self) -> None:
        if not self.groups:
            raise ValueError("a workload must have at least one group")
        if len(self.groups) > 32:
            raise ValueError(f"{len(self.groups)} groups; at most 32 are allowed")
        if len(self.gates) > 16:
            raise ValueError(f"{len(self.gates)} gates; at most 16 are allowed")
        for gate in self.gates:
            check_name(gate, "gate")
        if isinstance(self.priority, str):
            check_name(self.priority, "name of a priority class")
        for name in self.groups:
            check_name(name, "group name")
        if self.batch is not None and self.type != "batch":
            raise ValueError("`batch` requires `type: batch`")
        if self.schedule is not None and self.type != "batch":
            raise InvalidField("`schedule` requires `type: batch`", "schedule", hint="add `type: batch`")
        check_services(self.services, {name: group.ports for name, group in self.groups.items()})
        _check_depends_on(self.groups, ends=self.type == "batch")
        for name, group in self.groups.items():
            if self.per_node:
                check_per_node(name, group, "a daemon" if self.type == "daemon" else "a batch with `per_node`")
            self._check_gang(name, group)
            if group.autoscale is not None and self.type != "service":
                raise InvalidField(
                    f"group {name}: only a service can have `autoscale`",
                    "groups",
                    name,
                    "autoscale",
                    hint="remove `autoscale`",
                )
            if self.type == "batch" and group.update != Update():
                raise InvalidField(
                    f"group {name}: a batch cannot have `update`: a change stops its instances and starts it again",
                    "groups",
                    name,
                    "update",
                    hint="remove `update`",
                )
        if self.type == "batch":
            for name, group in self.groups.items():
                check_batch(name, group)

    def _check_gang(self, name: str, group: Group) -> None:
        if group.gang is None or group.gang.min is None or (self.batch is None and not group.replicas):
            return  # Without replicas, the current count stays, or is 0.
        most = self.together(name)
        if group.gang.min > most:
            there = f"only {most} run at a time" if self.batch else f"there are only {most} replicas"
            raise InvalidField(
                f"group {name}: the gang requires at least {group.gang.min} instances, but {there}",
                "groups",
                name,
                "gang",
                "min",
                hint=f"set `gang.min` to at most {most}",
            )

    @property
    def per_node(self) -> bool:
        """Whether every matching node has one instance of each group: daemons, and batches with `per_node`."""
        return self.type == "daemon" or (self.batch is not None and self.batch.per_node)

    def together(self, group: str) -> int:
        """Return the number of instances of a group that run at the same time."""
        if self.batch is not None:
            return min(self.batch.together, self.batch.completions)
        return self.groups[group].count

    def gang_of(self, group: str) -> int:
        """Return the number of instances of a group that must be placed together; 0 if it is not a gang."""
        gang = self.groups[group].gang if group in self.groups else None
        if gang is None:
            return 0
        most = self.together(group)
        return most if gang.min is None else min(gang.min, most)

    def restart_policy(self, group: str) -> Literal["always", "on-failure", "never"]:
        return self.groups[group].restart.policy or ("on-failure" if self.type == "batch" else "always")

    @property
    def template(self) -> dict[str, GroupTemplate]:
        """Templates of the groups; ports that a service sends traffic to are published on the nodes."""
        return {name: _published(group.template, name, self.services) for name, group in self.groups.items()}


def _check_depends_on(groups: Mapping[str, Group], *, ends: bool) -> None:
    """Check the `depends_on` of each group; `ends` is true for a batch."""
    for group, spec in groups.items():
        if len(spec.depends_on) > DEPENDENCIES_MOST:
            raise ValueError(
                f"group {group}: {len(spec.depends_on)} dependencies; at most {DEPENDENCIES_MOST} are allowed"
            )
        for name, condition in spec.depends_on.items():
            check_name(name, "name of a group or workload")
            if name in groups and condition == "completed" and not ends:
                raise InvalidField(
                    f"group {group} waits for {name} to complete, but a group of a service or daemon never completes",
                    "groups",
                    group,
                    "depends_on",
                    name,
                    hint="use `healthy` or `started`; work that ends is a separate workload with `type: batch`",
                )


def _published(template: GroupTemplate, group: str, services: tuple[WorkloadService, ...]) -> GroupTemplate:
    """Return the template with host ports for the targets of services, so that other nodes reach them. Tasks without an
    image, and tasks on the node's own network, listen on ports of the node already."""
    tasks = template.tasks.values()
    if any(task.image is None or "host" in (each.get("network") for each in task.options.values()) for task in tasks):
        return template
    ports = {name: template.ports[name] for name in target_ports(services, group, template.ports)}
    published = {name: msgspec.structs.replace(port, host=AUTO) for name, port in ports.items() if port.host is None}
    return msgspec.structs.replace(template, ports=template.ports | published) if published else template


class WorkloadStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Status of a workload, written by the workload controller."""

    phase: str
    """One word: Pending, Running, Updating, Succeeded, Failed or Stopping."""
    release: str = ""
    wanted: int = 0
    running: int = 0
    ready: int = 0
    pending: int = 0
    succeeded: int = 0
    failed: int = 0
    indices: dict[str, str] = {}
    """Completed indices of an indexed batch, by group, as `0-4,7`."""
    message: str = ""
    opened: tuple[str, ...] = ()
    """Groups whose dependencies are met, for `release`."""
    rollout: Rollout | None = None
    """Progress of the latest rollout of a service or daemon."""
    autoscale: dict[str, AutoscaleStatus] = {}
    """Status of autoscaled groups by name; written by the autoscaler."""
    schedule: str = ""
    """Schedule that the times below refer to."""
    last_at: float = 0.0
    """Unix time up to which runs have started or were skipped."""
    next_at: float = 0.0
    """Unix time of the next run."""
    asked: int = 0
    """Number of requested restarts that were answered with a run."""


class Workload(Object, frozen=True, tag="workload"):
    """A program to run: groups of tasks, their number of instances and their type (service, batch or daemon)."""

    kind: ClassVar[str] = "workload"
    plural: ClassVar[str] = "workloads"

    spec: WorkloadSpec
    status: WorkloadStatus = field(default_factory=lambda: WorkloadStatus(phase="Pending"))

    def __post_init__(self) -> None:
        most = NAME_MOST if self.spec.schedule is None else RUN_NAME_MOST
        check_name(self.meta.name, "workload name", most)  # limited because instance names start with it


class ReleaseSpec(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    workload: str
    sequence: int
    hash: str
    cause: str = ""
    """Short description of the difference from the previous release."""
    groups: dict[str, GroupTemplate]


class ReleaseStatus(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    images: Annotated[dict[str, Digest], needs("image-digests")] = {}
    """Digests of images by reference in the template, as first reported by a node; later starts use them."""
    secrets: Annotated[dict[str, str], needs("secret-changes")] = {}
    """Content ids of secrets with `on_change`, by name, taken before the first instance of the release."""


class Release(Object, frozen=True, tag="release"):
    """An immutable version of a workload's template; its name is `<workload>.<sequence>`."""

    kind: ClassVar[str] = "release"
    plural: ClassVar[str] = "releases"

    spec: ReleaseSpec
    status: ReleaseStatus = field(default_factory=ReleaseStatus)


def template_hash(groups: Mapping[str, object], restarted: int = 0) -> str:
    """Hash a template. Fields left out by the author do not count, so a new default changes no hash."""
    from mandor.model.codec import to_plain

    plain = to_plain(groups)
    content = {"groups": plain, "restarted": restarted} if restarted else {"groups": plain}
    return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()[:16]


def make_release(workload: Workload, sequence: int, cause: str = "") -> Release:
    name, groups = workload.meta.name, workload.spec.template
    digest = template_hash(groups, workload.spec.restarted)
    spec = ReleaseSpec(workload=name, sequence=sequence, hash=digest, cause=cause, groups=groups)
    return Release(meta=Meta(name=f"{name}.{sequence}", namespace=workload.meta.namespace), spec=spec)
