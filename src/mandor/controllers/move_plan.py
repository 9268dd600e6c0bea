"""Plan for an instance that moves: another one first, where it was sent; then the old one stops."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from mandor.controllers import slot
from mandor.controllers.draft import Draft
from mandor.model.instance import Instance, InstanceSpec, instance_name
from mandor.model.meta import Meta
from mandor.model.phase import Phase
from mandor.model.workload import Release

MOVE_SECONDS = 300.0
"""Whoever does not serve by then was sent in vain."""


def extra(members: Sequence[Instance]) -> int:
    """So many more than wanted there may be: both ends of a move."""
    leaving = _leaving(members)
    return len(_pairs(leaving, members)) if leaving else 0


def _leaving(members: Sequence[Instance]) -> dict[str, Instance]:
    """By uid."""
    return {each.meta.uid: each for each in members if each.spec.move is not None and not slot.ended(each)}


def _pairs(leaving: Mapping[str, Instance], members: Sequence[Instance]) -> list[tuple[Instance, Instance]]:
    """Who leaves, and who takes his place."""
    heirs = [each for each in members if each.spec.instead_of in leaving]
    return [(leaving[heir.spec.instead_of], heir) for heir in heirs]


def plan_moves(draft: Draft, members: Sequence[Instance], release: Release, count: int, now: float) -> set[str]:
    """One after another; the uids of those who are on the move. `count`: how many are wanted."""
    leaving = _leaving(members)
    if not leaving:
        return set()
    for old, heir in _pairs(leaving, members):
        if old.spec.stop is None:
            _follow(draft, old, heir, release, now)
        return {old.meta.uid, heir.meta.uid}
    for each in leaving.values():
        if each.spec.stop is None:
            _begin(draft, each, members, release, count)
            return {each.meta.uid}
    return set()


def _begin(draft: Draft, each: Instance, members: Sequence[Instance], release: Release, count: int) -> None:
    assert each.spec.move is not None
    newest = all(one.spec.release == release.meta.name for one in members)
    if len(members) != count or not newest or not all(slot.serving(one) for one in members):
        _call_off(draft, each, "its group is not whole")
        return
    spec, used = each.spec, {one.spec.index for one in members}
    index = next(number for number in range(len(used) + 1) if number not in used)
    draft.put(
        Instance(
            meta=Meta(name=instance_name(spec.workload, spec.group, index), namespace=each.meta.namespace),
            spec=InstanceSpec(
                workload=spec.workload,
                group=spec.group,
                release=release.meta.name,
                index=index,
                pin=each.spec.move.to,
                instead_of=each.meta.uid,
            ),
        )
    )


def _follow(draft: Draft, leaving: Instance, heir: Instance, release: Release, now: float) -> None:
    assert leaving.spec.move is not None
    if slot.serving(heir) and not _no_better(leaving, heir):
        slot.stop(draft, leaving, f"moved to {heir.spec.node}", now)
        draft.note(leaving, "Moved", f"{heir.meta.name} has taken its place on {heir.spec.node}")
        return
    why = _in_vain(leaving, heir, release, now)
    if why:
        _call_off(draft, leaving, why)
    else:
        draft.again(max(0.0, leaving.spec.move.at + MOVE_SECONDS - now))


def _in_vain(leaving: Instance, heir: Instance, release: Release, now: float) -> str:
    assert leaving.spec.move is not None
    if leaving.spec.release != release.meta.name:
        return f"{release.meta.name} is wanted now"
    if not slot.serving(leaving):
        return "it does not serve any more itself"
    if slot.ended(heir) or heir.phase is Phase.LOST or heir.spec.stop is not None:
        return f"{heir.meta.name} ended on {heir.spec.node or leaving.spec.move.to}"
    if heir.spec.node and (why := _no_better(leaving, heir)):
        return why
    if now >= leaving.spec.move.at + MOVE_SECONDS:
        return f"{heir.meta.name} did not serve in time"
    return ""


def _no_better(leaving: Instance, heir: Instance) -> str:
    """Why nothing is won; empty: something is."""
    if heir.spec.relaxed:
        return f"{heir.meta.name} could not keep its rules either"
    same_form = heir.spec.variant and heir.spec.variant >= leaving.spec.variant
    return f"{heir.meta.name} has no better form either" if same_form and not leaving.spec.relaxed else ""


def _call_off(draft: Draft, each: Instance, why: str) -> None:
    """There is one too many then, and the one that is worth least goes."""
    draft.put(each.changed(spec=replace(each.spec, move=None)))
    draft.note(each, "MoveCalledOff", f"it stays where it is: {why}", warning=True)
