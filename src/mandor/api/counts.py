"""Counts: what a manifest leaves open stays as it is, and while `autoscale` is set the count is not for people."""

from msgspec.structs import replace

from mandor.errors import Conflict, Invalid
from mandor.model.meta import InvalidField, Object
from mandor.model.workload import Group, Workload, WorkloadSpec


def kept_counts(stored: Workload | None, given: WorkloadSpec) -> WorkloadSpec:
    """With the counts that are kept, or begun with, written down."""
    if given.type == "daemon":
        return given  # one on each node
    known = stored.spec.groups if stored is not None else {}
    try:
        groups = {name: _kept(known.get(name), group) for name, group in given.groups.items()}
        return given if groups == given.groups else replace(given, groups=groups)
    except InvalidField as error:  # with the count that is kept
        raise Invalid(str(error), hint=error.hint) from error


def scaled_counts(stored: Workload, given: WorkloadSpec) -> WorkloadSpec:
    """As `kept_counts`, but only where the load decides and no count is given."""
    known = stored.spec.groups
    open_ones = {name for name, group in given.groups.items() if group.autoscale is not None and group.replicas is None}
    if not open_ones:
        return given
    groups = {n: _kept(known.get(n), group) if n in open_ones else group for n, group in given.groups.items()}
    return replace(given, groups=groups)


def _kept(stored: Group | None, given: Group) -> Group:
    scaling = given.autoscale
    if scaling is None:
        return replace(given, replicas=stored.replicas) if given.replicas is None and stored is not None else given
    if stored is None or (stored.autoscale is None and given.replicas is not None):
        return replace(given, replicas=given.count)
    return replace(given, replicas=scaling.clamp(stored.count))


def check_counts(before: Object | None, after: Object) -> None:
    """Raise `Conflict` for somebody who sets the count of a group that is scaled by its load."""
    if not isinstance(before, Workload) or not isinstance(after, Workload):
        return
    for name, group in after.spec.groups.items():
        old, scaling = before.spec.groups.get(name), group.autoscale
        if old is None or old.autoscale is None or scaling is None or group.count == scaling.clamp(old.count):
            continue
        of = after.meta.name if len(after.spec.groups) == 1 else f"the group {name} of {after.meta.name}"
        raise Conflict(
            f"the count of {of} follows its load: it has {old.count}, between {scaling.min} and {scaling.max}",
            hint="change `min` and `max` under `autoscale` in its manifest and apply it, or take `autoscale` away",
            path=f"spec.groups.{name}.replicas",
        )


def check_targets(workload: Workload) -> None:
    """Raise `Invalid` for a share of something that is not asked for: with the defaults of its namespace, if any."""
    for name, group in workload.spec.groups.items():
        scaling, request = group.autoscale, group.template.request
        if scaling is None:
            continue
        for what, target, asked in (
            ("cpu", scaling.cpu, request.cpu_milli),
            ("memory", scaling.memory, request.memory_bytes),
        ):
            if target is not None and not asked:
                raise Invalid(
                    f"`autoscale` wants {target} of the {what} that it asks for, and it asks for none",
                    hint=f"write `resources: {{{what}: …}}`",
                    path=f"spec.groups.{name}.autoscale.{what}",
                )
