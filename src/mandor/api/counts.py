"""Replica counts: a count that a manifest omits is kept, and while `autoscale` is set users do not set it."""

from msgspec.structs import replace

from mandor.errors import Conflict, Invalid
from mandor.model.group import Group
from mandor.model.meta import InvalidField, Object
from mandor.model.workload import Workload, WorkloadSpec


def keep_counts(stored: Workload | None, given: WorkloadSpec) -> WorkloadSpec:
    """Return the spec with the stored counts, or the initial ones, where the manifest omits them."""
    if given.per_node:
        return given  # one on each node
    known = stored.spec.groups if stored is not None else {}
    try:
        groups = {name: _with_count(known.get(name), group) for name, group in given.groups.items()}
        return given if groups == given.groups else replace(given, groups=groups)
    except InvalidField as error:  # with the count that is kept
        raise Invalid(str(error), hint=error.hint) from error


def scaled_counts(stored: Workload, given: WorkloadSpec) -> WorkloadSpec:
    """Return the spec with the stored counts of groups that have `autoscale` and no count."""
    known = stored.spec.groups
    open_ones = {name for name, group in given.groups.items() if group.autoscale is not None and group.replicas is None}
    if not open_ones:
        return given
    groups = {n: _with_count(known.get(n), group) if n in open_ones else group for n, group in given.groups.items()}
    return replace(given, groups=groups)


def _with_count(stored: Group | None, given: Group) -> Group:
    scaling = given.autoscale
    if scaling is None:
        return replace(given, replicas=stored.replicas) if given.replicas is None and stored is not None else given
    if stored is None or (stored.autoscale is None and given.replicas is not None):
        return replace(given, replicas=given.count)
    return replace(given, replicas=scaling.clamp(stored.count))


def check_counts(before: Object | None, after: Object) -> None:
    """Raise `Conflict` if the count of a group with `autoscale` is set."""
    if not isinstance(before, Workload) or not isinstance(after, Workload):
        return
    for name, group in after.spec.groups.items():
        old, scaling = before.spec.groups.get(name), group.autoscale
        if old is None or old.autoscale is None or scaling is None or group.count == scaling.clamp(old.count):
            continue
        of = after.meta.name if len(after.spec.groups) == 1 else f"the group {name} of {after.meta.name}"
        raise Conflict(
            f"the count of {of} is set by `autoscale`: it is {old.count}, between {scaling.min} and {scaling.max}",
            hint="change `min` and `max` of `autoscale` in the manifest and apply it, or remove `autoscale`",
            path=f"spec.groups.{name}.replicas",
        )


def check_targets(workload: Workload) -> None:
    """Raise `Invalid` for a utilisation target of a resource that the group does not request."""
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
                    f"`autoscale` has the target {target} of the requested {what}, but the group requests none",
                    hint=f"add `resources: {{{what}: …}}`",
                    path=f"spec.groups.{name}.autoscale.{what}",
                )
