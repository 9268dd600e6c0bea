"""PriorityClass: a named priority."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from msgspec import Meta as Bounds
from msgspec import Struct, field

from mandor.model.meta import Object
from mandor.model.record import Empty

PriorityNumber = Annotated[int, Bounds(ge=-(2**31), le=2**31 - 1)]
"""A priority; Kubernetes has the same range."""
Priority = PriorityNumber | str | None
"""Priority of a workload: a number, the name of a priority class, or None."""


class PriorityClassSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    value: PriorityNumber
    """Priority of the class's workloads. Instances of higher priority are placed first and may preempt those of lower
    priority.
    """
    preempt: Literal["lower", "never"] = "lower"
    """`lower`: instances may preempt others of lower priority. `never`: they wait for room. Defaults to `lower`."""
    default: bool = False
    """Whether workloads without a priority get this class."""
    description: Annotated[str, Bounds(max_length=1024)] = ""
    """Purpose of the class."""


class PriorityClass(Object, frozen=True, tag="priority-class"):
    """A named priority for workloads."""

    kind: ClassVar[str] = "priority-class"
    plural: ClassVar[str] = "priority-classes"
    namespaced: ClassVar[bool] = False
    spec: PriorityClassSpec
    status: Empty = field(default_factory=Empty)


NO_CLASS = PriorityClassSpec(value=0)
"""Priority of workloads that set none, if no class is the default."""


def class_of(priority: Priority, classes: Mapping[str, PriorityClass]) -> PriorityClassSpec:
    """Resolve a priority with these classes; a class that does not exist counts as no class."""
    if isinstance(priority, int):
        return PriorityClassSpec(value=priority)
    if priority is not None:
        found = classes.get(priority)
        return found.spec if found is not None else NO_CLASS
    # At most one class is the default, unless two admins create one at the same time.
    return min((each.spec for each in classes.values() if each.spec.default), key=_value, default=NO_CLASS)


def _value(spec: PriorityClassSpec) -> int:
    return spec.value
