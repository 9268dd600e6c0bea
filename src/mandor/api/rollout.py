"""What somebody orders about a roll-out, as a change of the workload's spec."""

from collections.abc import Sequence
from typing import Literal, get_args

import msgspec
from msgspec.structs import replace

from mandor.errors import Conflict, Invalid, NotFound
from mandor.model.release import is_release_of
from mandor.model.rollout import NO_ORDERS, Rollout, RolloutOrders
from mandor.model.workload import Group, GroupTemplate, Release, Workload, WorkloadSpec

OrderWord = Literal["pause", "resume", "promote", "abort", "undo"]
ORDERS: tuple[str, ...] = get_args(OrderWord)


def ordered(workload: Workload, releases: Sequence[Release], word: OrderWord, to: int | None) -> WorkloadSpec:
    """The spec that carries the order out; `Conflict`: there is nothing that it could mean now."""
    name, spec = workload.meta.name, workload.spec
    if spec.type == "batch":
        raise Invalid(f"{name} is a {spec.type}: it is not rolled out", hint="`mandor restart` begins it anew")
    if to is not None and word != "undo":
        raise Invalid(f"`to` belongs to an undo, not to a {word}", path="to")
    if word in {"pause", "resume"}:
        return replace(spec, rollout=replace(spec.rollout, paused=word == "pause"))
    rollout = _known(workload, releases)
    if word == "undo":
        back = _named(workload, releases, to) if to is not None else _before(workload, rollout, releases)
        return _as_in(workload, back)
    if word == "promote":
        if rollout.phase != "Waiting":
            raise Conflict(f"no roll-out of {name} waits to be promoted: it is {rollout.phase}", hint=_look(name))
        return replace(spec, rollout=replace(spec.rollout, promoted=rollout.release))
    if rollout.phase not in {"Progressing", "Waiting", "Paused"}:
        raise Conflict(f"no roll-out of {name} is under way: it is {rollout.phase}", hint=_look(name))
    if not any(each != rollout.release for each in rollout.proven):
        raise Conflict(f"{rollout.release} is the first release of {name}: there is none to go back to")
    return replace(spec, rollout=replace(spec.rollout, aborted=rollout.release))


def _known(workload: Workload, releases: Sequence[Release]) -> Rollout:
    """The roll-out of the template as it is, not of one before."""
    rollout, name = workload.status.rollout, workload.meta.name
    if rollout is None or not any(
        each.meta.name == rollout.release and is_release_of(each, workload) for each in releases
    ):
        raise Conflict(f"the newest template of {name} is not taken up yet", hint="try again in a moment")
    return rollout


def _before(workload: Workload, rollout: Rollout, releases: Sequence[Release]) -> Release:
    """The last one that was healthy before the one that is, or was to be."""
    by_name = {each.meta.name: each for each in releases}
    for name in reversed(rollout.proven):
        if name != rollout.release and name in by_name:
            return by_name[name]
    raise Conflict(
        f"no earlier release of {workload.meta.name} was healthy",
        hint=f"`mandor rollout history {workload.meta.name}` shows all; `--to N` takes any",
    )


def _named(workload: Workload, releases: Sequence[Release], to: int) -> Release:
    found = next((each for each in releases if each.spec.sequence == to), None)
    if found is None:
        there = ", ".join(str(number) for number in sorted(each.spec.sequence for each in releases))
        raise NotFound(f"{workload.meta.name} has no release {to}", hint=f"there are: {there or 'none'}")
    return found


def _as_in(workload: Workload, release: Release) -> WorkloadSpec:
    """The template of a release, with everything else as it is now."""
    spec = workload.spec
    if release.spec.groups == spec.template:
        raise Conflict(
            f"{release.meta.name} has the template that {workload.meta.name} has now",
            hint=f"`mandor rollout abort {workload.meta.name}` ends a roll-out that is under way",
        )
    if release.spec.groups.keys() != spec.groups.keys():
        raise Conflict(
            f"{release.meta.name} has the groups {', '.join(sorted(release.spec.groups))}, "
            f"and {workload.meta.name} has {', '.join(sorted(spec.groups))} now",
            hint="apply its manifest instead: a release does not say how many instances a group has",
        )
    groups = {name: _group(spec.groups[name], template) for name, template in release.spec.groups.items()}
    return replace(spec, groups=groups, rollout=RolloutOrders(paused=True) if spec.rollout.paused else NO_ORDERS)


def _group(group: Group, template: GroupTemplate) -> Group:
    fields = {each.name: getattr(template, each.name) for each in msgspec.structs.fields(GroupTemplate)}
    return replace(group, **fields)


def _look(name: str) -> str:
    return f"`mandor rollout status {name}` shows it"
