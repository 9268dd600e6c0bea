"""Plan for a workload: its releases, its instances, its status, and its end."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from mandor.controllers import slot
from mandor.controllers.batch_plan import Ending, batch_of, ending, plan_batch, plan_ended, succeeded
from mandor.controllers.draft import Draft
from mandor.controllers.service_plan import plan_service
from mandor.controllers.slot import World
from mandor.model.instance import Instance
from mandor.model.phase import Phase
from mandor.model.workload import Release, Workload, WorkloadStatus, make_release, template_hash

RELEASES_KEPT = 10
"""Besides those in use."""


@dataclass(frozen=True, slots=True)
class Seen:
    workload: Workload | None
    """None: it is gone, and what is left of it goes, too."""
    releases: Sequence[Release]
    instances: Sequence[Instance]


def plan(seen: Seen, world: World) -> Draft:
    draft = Draft()
    if seen.workload is None:
        _plan_end(draft, seen, world)
        return draft
    workload = seen.workload
    release = _newest(draft, workload, seen.releases)
    members = {name: [each for each in seen.instances if each.spec.group == name] for name in workload.spec.groups}
    for each in seen.instances:
        if each.spec.group not in workload.spec.groups:
            slot.lose(draft, each, f"there is no group {each.spec.group} any more", world.now)
    end: Ending | None = None
    if workload.spec.type == "batch":
        end = ending(workload, members, release, world)
        for name, instances in members.items():
            if end is not None:
                plan_ended(draft, instances, f"the batch has {end.phase.lower()}", world.now)
            else:
                plan_batch(draft, workload, name, instances, release, world)
    else:
        for name, instances in members.items():
            plan_service(draft, workload, name, instances, release, world)
    _forget_releases(draft, seen, release)
    _tell_status(draft, seen, workload, release, end)
    return draft


def _newest(draft: Draft, workload: Workload, releases: Sequence[Release]) -> Release:
    """The release of the template as it is now, made if it is not the newest: A, B, A are 1, 2, 3."""
    newest = max(releases, key=lambda each: each.spec.sequence, default=None)
    if newest is not None and newest.spec.hash == template_hash(workload.spec.template, workload.spec.restarted):
        return newest
    made = make_release(workload, newest.spec.sequence + 1 if newest else 1)
    draft.put(made)
    if newest is not None:
        draft.note(workload, "Updated", f"{made.meta.name} follows {newest.meta.name}")
    return made


def _forget_releases(draft: Draft, seen: Seen, newest: Release) -> None:
    used = {each.spec.release for each in seen.instances} | {newest.meta.name}
    old = sorted(seen.releases, key=lambda each: -each.spec.sequence)[RELEASES_KEPT:]
    for each in old:
        if each.meta.name not in used:
            draft.delete(each)


def _plan_end(draft: Draft, seen: Seen, world: World) -> None:
    """Its instances stop; the releases, which agents still read, go last."""
    for each in seen.instances:
        slot.lose(draft, each, "its workload was deleted", world.now)
    if not seen.instances:
        for release in seen.releases:
            draft.delete(release)


# Status.


def _tell_status(draft: Draft, seen: Seen, workload: Workload, release: Release, end: Ending | None) -> None:
    """Written only when it says something new."""
    status = _status(seen, workload, release, end)
    if status == workload.status:
        return
    draft.put(workload.changed(status=status))
    if end is not None and workload.status.phase != end.phase:
        draft.note(workload, end.phase, end.message or "all completions are done", warning=end.phase == "Failed")


def _status(seen: Seen, workload: Workload, release: Release, end: Ending | None) -> WorkloadStatus:
    instances = seen.instances
    running = sum(each.phase is Phase.RUNNING for each in instances)
    if end is not None and end.phase == workload.status.phase and workload.status.release == release.meta.name:
        # Its history may have been cleared away: the counts of the end stay.
        return msgspec.structs.replace(workload.status, running=running, ready=0, pending=0)
    batch = workload.spec.type == "batch"
    groups = workload.spec.groups
    wanted = sum(batch_of(workload, name).completions if batch else group.count for name, group in groups.items())
    return WorkloadStatus(
        phase=end.phase if end else _phase(instances, release, wanted, running),
        release=release.meta.name,
        wanted=wanted,
        running=running,
        ready=sum(slot.serving(each) for each in instances),
        pending=sum(not each.phase.over and each.phase is not Phase.RUNNING for each in instances),
        succeeded=sum(succeeded(each, release) for each in instances),
        failed=sum(each.phase is Phase.FAILED for each in instances),
        message=end.message if end else _trouble(instances),
    )


def _phase(instances: Sequence[Instance], release: Release, wanted: int, running: int) -> str:
    live = [each for each in instances if not slot.ended(each)]
    if any(each.spec.release != release.meta.name for each in live):
        return "Updating"
    return "Running" if running or not wanted else "Pending"


def _trouble(instances: Sequence[Instance]) -> str:
    """What the first instance that has something to say about itself says."""
    for each in sorted(instances, key=lambda each: (each.spec.group, each.spec.index)):
        if each.phase is Phase.PENDING and each.status.message:
            return f"{each.meta.name}: {each.status.message}"
        if each.phase in {Phase.FAILED, Phase.LOST}:
            return f"{each.meta.name}: {slot.shown_end(each)}"
    return ""
