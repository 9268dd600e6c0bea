"""Orders about a rollout (pause, resume, promote, abort, undo) as changes of the workload's spec."""

from collections.abc import Sequence
from typing import Literal, get_args

import msgspec
from msgspec.structs import replace

from mandor.errors import Conflict, Invalid, NotFound
from mandor.model.group import Group, GroupTemplate
from mandor.model.release import is_release_of
from mandor.model.rollout import NO_ORDERS, Rollout, RolloutOrders
from mandor.model.workload import Release, Workload, WorkloadSpec

OrderWord = Literal["pause", "resume", "promote", "abort", "undo"]
ORDERS: tuple[str, ...] = get_args(OrderWord)


def ordered(workload: Workload, releases: Sequence[Release], word: OrderWord, to: int | None) -> WorkloadSpec:
    """Return the spec that carries out the order; raise `Conflict` if it does not apply now."""
    name, spec = workload.meta.name, workload.spec
    if spec.type == "batch":
        raise Invalid(f"{name} is a {spec.type}, which has no rollouts", hint="`mandor restart` runs it again")
    if to is not None and word != "undo":
        raise Invalid(f"`to` is only valid with undo, not with {word}", path="to")
    if word in {"pause", "resume"}:
        return replace(spec, rollout=replace(spec.rollout, paused=word == "pause"))
    rollout = _current_rollout(workload, releases)
    if word == "undo":
        back = _numbered(workload, releases, to) if to is not None else _last_healthy(workload, rollout, releases)
        return _with_template_of(workload, back)
    if word == "promote":
        if rollout.phase != "Waiting":
            raise Conflict(
                f"no rollout of {name} waits for a promotion: it is {rollout.phase}", hint=_status_hint(name)
            )
        return replace(spec, rollout=replace(spec.rollout, promoted=rollout.release))
    if rollout.phase not in {"Progressing", "Waiting", "Paused"}:
        raise Conflict(f"no rollout of {name} is in progress: it is {rollout.phase}", hint=_status_hint(name))
    if not any(each != rollout.release for each in rollout.proven):
        raise Conflict(f"{rollout.release} is the first release of {name}: there is none to go back to")
    return replace(spec, rollout=replace(spec.rollout, aborted=rollout.release))


def _current_rollout(workload: Workload, releases: Sequence[Release]) -> Rollout:
    """Return the rollout of the current template; raise `Conflict` if the controller has not started it yet."""
    rollout, name = workload.status.rollout, workload.meta.name
    if rollout is None or not any(
        each.meta.name == rollout.release and is_release_of(each, workload) for each in releases
    ):
        raise Conflict(
            f"the rollout of the newest template of {name} has not started yet", hint="try again in a few seconds"
        )
    return rollout


def _last_healthy(workload: Workload, rollout: Rollout, releases: Sequence[Release]) -> Release:
    """Return the last healthy release before the current one."""
    by_name = {each.meta.name: each for each in releases}
    for name in reversed(rollout.proven):
        if name != rollout.release and name in by_name:
            return by_name[name]
    raise Conflict(
        f"no earlier release of {workload.meta.name} was healthy",
        hint=f"`mandor rollout history {workload.meta.name}` lists all releases; `--to N` selects one",
    )


def _numbered(workload: Workload, releases: Sequence[Release], to: int) -> Release:
    found = next((each for each in releases if each.spec.sequence == to), None)
    if found is None:
        there = ", ".join(str(number) for number in sorted(each.spec.sequence for each in releases))
        raise NotFound(f"{workload.meta.name} has no release {to}", hint=f"there are: {there or 'none'}")
    return found


def _with_template_of(workload: Workload, release: Release) -> WorkloadSpec:
    """Return the spec with the template of a release."""
    spec = workload.spec
    if release.spec.groups == spec.template:
        raise Conflict(
            f"{release.meta.name} has the current template of {workload.meta.name}",
            hint=f"`mandor rollout abort {workload.meta.name}` ends a rollout in progress",
        )
    if release.spec.groups.keys() != spec.groups.keys():
        raise Conflict(
            f"{release.meta.name} has the groups {', '.join(sorted(release.spec.groups))}, "
            f"and {workload.meta.name} has {', '.join(sorted(spec.groups))} now",
            hint="apply its manifest instead: a release does not contain the counts of its groups",
        )
    groups = {name: _group(spec.groups[name], template) for name, template in release.spec.groups.items()}
    return replace(spec, groups=groups, rollout=RolloutOrders(paused=True) if spec.rollout.paused else NO_ORDERS)


def _group(group: Group, template: GroupTemplate) -> Group:
    fields = {each.name: getattr(template, each.name) for each in msgspec.structs.fields(GroupTemplate)}
    return replace(group, **fields)


def _status_hint(name: str) -> str:
    return f"`mandor rollout status {name}` shows it"
