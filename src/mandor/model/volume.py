"""Volumes: data that outlives instances; what a group asks for, and the objects it lives in."""

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
"""The fact that says which folders of a node may be mounted, with commas between them."""
_OWNER = re.compile(r"\d{1,10}(:\d{1,10})?")


class GroupVolume(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """A volume that the tasks of a group can mount."""

    type: VolumeType = "local"
    """`local`: a folder that the node's agent makes; `scratch`: one that goes with its instance, shared by its tasks;
    `host`: one that is there; `tmpfs`: memory, each task its own."""
    size: Size = Size(0)
    """Kept free for it on the node's disk (counted, not enforced); of a tmpfs: the most it holds."""
    per_instance: bool = False
    """Each instance has its own, which its successor of the same name gets; else they share one, and so its node."""
    path: Text | None = None
    """Of a `host` volume: the folder or file of the node; its agent has to allow it."""
    volume: str | None = None
    """An existing volume of this name, instead of one made for this group."""
    reclaim: Reclaim = "keep"
    """What happens to it when the workload is deleted."""
    on_loss: OnLoss = "wait"
    """When its node is lost: wait for it, or begin anew on another node with an empty one."""
    owner: str | None = None
    """`UID` or `UID:GID` that the folder belongs to; absent: the user of the task that mounts it."""
    mode: str = "0755"
    """Who may read and write the folder, in octal."""

    def __post_init__(self) -> None:
        _check_folder(self.owner, self.mode)
        if (self.type == "host") != (self.path is not None):
            raise ValueError("a `host` volume, and no other, has a `path`")
        if self.path is not None and (not self.path.startswith("/") or ".." in self.path.split("/")):
            raise ValueError(f"the path {self.path!r} of a `host` volume is absolute, without `..`")
        if self.type == "tmpfs" and not self.size:
            raise ValueError("a `tmpfs` has a `size`")
        if self.volume is not None:
            check_name(self.volume, "volume name", most=253)
            if self.type != "local" or self.per_instance:
                raise ValueError("`volume` names one local volume, which all instances share")
        if self.type != "local" and (self.per_instance or self.on_loss != "wait" or self.reclaim != "keep"):
            raise ValueError("`per_instance`, `reclaim` and `on_loss` belong to `local` volumes")

    def object_name(self, name: str, group: str, instance: str) -> str:
        """The volume object it is kept in: `group` and `instance` are what instance names begin with, and are."""
        return self.volume or f"{name}-{instance if self.per_instance else group}"


class VolumeSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    size: Size = Size(0)
    """Kept free for it on its node's disk; counted, not enforced."""
    node: str | None = None
    """The only node it may be on."""
    pool: str | None = None
    """The pool its node is of."""
    where: tuple[Where, ...] = ()
    """Rules that its node has to keep."""
    reclaim: Reclaim = "keep"
    """`delete`: it goes when the workload that used it first is deleted."""
    on_loss: OnLoss = "wait"
    """When its node is lost: wait for it, or begin anew on another one, empty."""
    owner: str | None = None
    """`UID` or `UID:GID` that the folder belongs to; absent: the user of the task that mounts it."""
    mode: str = "0755"
    """Who may read and write the folder, in octal."""

    def __post_init__(self) -> None:
        _check_folder(self.owner, self.mode)
        for name, what in ((self.node, "node name"), (self.pool, "pool")):
            if name is not None:
                check_name(name, what)
        if any(rule.strength != "must" for rule in self.where):
            raise ValueError("the rules of a volume are all `must`: it is placed once")


class VolumeStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """`node` and `workload` are written by the scheduler, `path` by that node's agent, the rest by the controller."""

    phase: VolumePhase = "Pending"
    message: str = ""
    node: str = ""
    """Where it is; empty: nowhere yet."""
    path: str = ""
    """Its folder there; empty: not made yet, so there is nothing in it."""
    workload: str = ""
    """Whose it is: the first that used it."""
    incarnation: int = 0
    """How often it was lost and begun anew."""
    used_by: tuple[str, ...] = ()
    """Instances that have it now."""


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
        raise ValueError(f"{owner!r} is not an owner; write numbers: `1000` or `1000:1000`")
    if not re.fullmatch(r"0?[0-7]{3}", mode):
        raise ValueError(f'{mode!r} is not a file mode; write it as text in octal: "0755"')


def may_be_allowed(path: str) -> bool:
    """Whether a node may be told to allow it: absolute, and as it stands in the fact, between commas."""
    return path.startswith("/") and "," not in path and ".." not in path.split("/")


def path_allowed(path: str, allowed: Iterable[str]) -> bool:
    """Whether it is one of these folders, or below one."""
    return any(each and f"{path}/".startswith(each.rstrip("/") + "/") for each in allowed)
