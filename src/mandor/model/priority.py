"""PriorityClass: a name for a priority, so that its number stands in one place."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from msgspec import Meta as Bounds
from msgspec import Struct, field

from mandor.model.meta import Object
from mandor.model.record import Empty

PriorityNumber = Annotated[int, Bounds(ge=-1_000_000, le=1_000_000)]
Priority = PriorityNumber | str | None
"""As a workload gives it: a number, a class by name, or nothing."""


class PriorityClassSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    value: PriorityNumber
    """The priority of its workloads; higher is placed first, and may take the place of lower."""
    preempt: Literal["lower", "never"] = "lower"
    """`never`: its instances wait for room, and take nobody's place."""
    default: bool = False
    """Workloads that name no priority have this one."""
    description: Annotated[str, Bounds(max_length=1024)] = ""
    """What it is for."""


class PriorityClass(Object, frozen=True, tag="priority-class"):
    """A named priority for workloads."""

    kind: ClassVar[str] = "priority-class"
    plural: ClassVar[str] = "priority-classes"
    namespaced: ClassVar[bool] = False
    spec: PriorityClassSpec
    status: Empty = field(default_factory=Empty)


NO_CLASS = PriorityClassSpec(value=0)
"""Of workloads that name no priority while no class is the default."""


def class_of(priority: Priority, classes: Mapping[str, PriorityClass]) -> PriorityClassSpec:
    """What a priority means while these classes exist; a class that does not exist is none."""
    if isinstance(priority, int):
        return PriorityClassSpec(value=priority)
    if priority is not None:
        found = classes.get(priority)
        return found.spec if found is not None else NO_CLASS
    # There is one at most, unless two admins make one at the same time.
    return min((each.spec for each in classes.values() if each.spec.default), key=_value, default=NO_CLASS)


def _value(spec: PriorityClassSpec) -> int:
    return spec.value
