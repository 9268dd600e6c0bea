"""Volumes: persistent data of instances; a group's volumes and the objects that store them."""

import re
from collections.abc import Iterable
from typing import ClassVar, Literal

from msgspec import Struct, field

from mandor.lib.quantity import Size
from mandor.model.meta import Object, check_name
from mandor.model.placement import Where
from mandor.model.task import Text

VolumeType = Literal["local", "host", "tmpfs", "scratch"]
OnLoss = Literal["wait", "recreate"]
Reclaim = Literal["keep", "delete"]
VolumePhase = Literal["Pending", "Bound", "Lost"]

HOST_PATHS = "host.paths"
"""Fact that lists the host paths that a node allows to be mounted, separated by commas."""
_OWNER = re.compile(r"\d{1,10}(:\d{1,10})?")


class GroupVolume(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """A volume that the tasks of a group can mount."""

    type: VolumeType = "local"
    """`local`: a directory created by the node's agent. `scratch`: a directory shared by the tasks of an instance and
    deleted with it. `host`: an existing directory or file of the node. `tmpfs`: memory, separate for each task.
    Defaults to `local`.
    """
    size: Size = Size(0)
    """Disk space reserved on the node (counted, not enforced); for a tmpfs its maximum size."""
    per_instance: bool = False
    """Whether each instance has its own volume, which its successor with the same name takes over. Otherwise all
    instances share one volume, and therefore its node. Defaults to false.
    """
    path: Text | None = None
    """For `host` volumes: directory or file of the node; the node's agent must allow it."""
    volume: str | None = None
    """Name of an existing volume to use instead of creating one."""
    reclaim: Reclaim = "keep"
    """Whether the volume is kept or deleted when the workload is deleted. Defaults to `keep`."""
    on_loss: OnLoss = "wait"
    """Handling of a lost node: `wait` for the node, or `recreate` an empty volume on another one.
    Defaults to `wait`.
    """
    owner: str | None = None
    """`UID` or `UID:GID` that owns the directory. Defaults to the user of the task that mounts it."""
    mode: str = "0755"
    """Permissions of the directory in octal. Defaults to `0755`."""

    def __post_init__(self) -> None:
        _check_folder(self.owner, self.mode)
        if (self.type == "host") != (self.path is not None):
            raise ValueError("`path` is required for `host` volumes, and not allowed for others")
        if self.path is not None and (not self.path.startswith("/") or ".." in self.path.split("/")):
            raise ValueError(f"the path {self.path!r} of a `host` volume must be absolute and not contain `..`")
        if self.type == "tmpfs" and not self.size:
            raise ValueError("a `tmpfs` requires a `size`")
        if self.volume is not None:
            check_name(self.volume, "volume name", most=253)
            if self.type != "local" or self.per_instance:
                raise ValueError(
                    "`volume` refers to one local volume shared by all instances: remove `per_instance` and `type`"
                )
        if self.type != "local" and (self.per_instance or self.on_loss != "wait" or self.reclaim != "keep"):
            raise ValueError("`per_instance`, `reclaim` and `on_loss` are only for `local` volumes")

    def object_name(self, name: str, group: str, instance: str) -> str:
        """Return the name of the volume object. `group` is the prefix of the instances' names, `instance` the
        instance's name.
        """
        return self.volume or f"{name}-{instance if self.per_instance else group}"


class VolumeSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    size: Size = Size(0)
    """Disk space reserved on the node; counted, not enforced."""
    node: str | None = None
    """The only node on which the volume may be."""
    pool: str | None = None
    """The pool of the volume's node."""
    where: tuple[Where, ...] = ()
    """Rules that the volume's node must satisfy."""
    reclaim: Reclaim = "keep"
    """`delete` deletes the volume together with the workload that used it first. Defaults to `keep`."""
    on_loss: OnLoss = "wait"
    """Handling of a lost node: `wait` for the node, or `recreate` an empty volume on another one.
    Defaults to `wait`.
    """
    owner: str | None = None
    """`UID` or `UID:GID` that owns the directory. Defaults to the user of the task that mounts it."""
    mode: str = "0755"
    """Permissions of the directory in octal. Defaults to `0755`."""

    def __post_init__(self) -> None:
        _check_folder(self.owner, self.mode)
        for name, what in ((self.node, "node name"), (self.pool, "pool")):
            if name is not None:
                check_name(name, what)
        if any(rule.strength != "must" for rule in self.where):
            raise ValueError("rules of a volume must have `strength: must`, because it is placed only once")


class VolumeStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Status of a volume. The scheduler writes `node` and `workload`, the node's agent `path`, the volume controller
    the rest.
    """

    phase: VolumePhase = "Pending"
    message: str = ""
    node: str = ""
    """Node of the volume; empty if it has none yet."""
    path: str = ""
    """Directory on the node; empty if it is not created yet."""
    workload: str = ""
    """Workload that used the volume first."""
    incarnation: int = 0
    """Number of times the volume was lost and recreated."""
    used_by: tuple[str, ...] = ()
    """Instances that use the volume."""


class Volume(Object, frozen=True, tag="volume"):
    """Data that outlives instances."""

    kind: ClassVar[str] = "volume"
    plural: ClassVar[str] = "volumes"

    spec: VolumeSpec = field(default_factory=VolumeSpec)
    status: VolumeStatus = field(default_factory=VolumeStatus)

    @property
    def node(self) -> str:
        return self.status.node


def _check_folder(owner: str | None, mode: str) -> None:
    if owner is not None and not _OWNER.fullmatch(owner):
        raise ValueError(f"{owner!r} is not an owner; write ids: `1000` or `1000:1000`")
    if not re.fullmatch(r"0?[0-7]{3}", mode):
        raise ValueError(f'{mode!r} is not a file mode; write it in octal, in quotes: "0755"')


def may_be_allowed(path: str) -> bool:
    """Return whether an agent may allow the path: it must be absolute and contain no comma and no `..`."""
    return path.startswith("/") and "," not in path and ".." not in path.split("/")


def path_allowed(path: str, allowed: Iterable[str]) -> bool:
    """Return whether the path is one of the allowed directories, or below one."""
    return any(each and f"{path}/".startswith(each.rstrip("/") + "/") for each in allowed)
