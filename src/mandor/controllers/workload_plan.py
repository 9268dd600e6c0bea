"""Plan for a workload: its releases, its instances, its status, and its end."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from mandor.controllers import slot
from mandor.controllers.batch_plan import Ending, batch_of, ending, plan_batch, plan_ended
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
        _plan_end(draft, seen, "its workload was deleted", world)
        return draft
    workload = seen.workload
    if workload.spec.schedule is not None:
        _plan_end(draft, seen, "it runs by a schedule now", world)  # Only its runs have instances.
        return draft
    release = _newest(draft, workload, seen.releases)
    members: dict[str, list[Instance]] = {name: [] for name in workload.spec.groups}
    for each in seen.instances:
        group = members.get(each.spec.group)
        if group is None:
            slot.lose(draft, each, f"there is no group {each.spec.group} any more", world.now)
        else:
            group.append(each)
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
    if not draft.unfinished:
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


def _plan_end(draft: Draft, seen: Seen, reason: str, world: World) -> None:
    """Its instances stop; the releases, which agents still read, go last."""
    for each in seen.instances:
        slot.lose(draft, each, reason, world.now)
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
    counts = _count(seen.instances, release)
    if end is not None and end.phase == workload.status.phase and workload.status.release == release.meta.name:
        # Its history may have been cleared away: the counts of the end stay.
        return msgspec.structs.replace(workload.status, running=counts.running, ready=0, pending=0)
    batch = workload.spec.type == "batch"
    groups = workload.spec.groups
    wanted = sum(batch_of(workload, name).completions if batch else group.count for name, group in groups.items())
    return WorkloadStatus(
        phase=end.phase if end else _phase(counts, wanted),
        release=release.meta.name,
        wanted=wanted,
        running=counts.running,
        ready=counts.ready,
        pending=counts.pending,
        succeeded=counts.succeeded,
        failed=counts.failed,
        message=end.message if end else _trouble(counts.troubled),
    )


@dataclass(slots=True)
class _Counts:
    running: int = 0
    ready: int = 0
    pending: int = 0
    succeeded: int = 0
    failed: int = 0
    outdated: bool = False
    """One that has not ended is of an older release."""
    troubled: list[Instance] = field(default_factory=list)
    """Those that have something to say about themselves."""


def _count(instances: Sequence[Instance], release: Release) -> _Counts:
    """In one pass: there may be a hundred thousand of them."""
    counts = _Counts()
    newest = release.meta.name
    # Python 3.11 looks a member of an enum up in a function of its own each time.
    running, failed, succeeded, stopped = Phase.RUNNING, Phase.FAILED, Phase.SUCCEEDED, Phase.STOPPED
    pending, lost = Phase.PENDING, Phase.LOST
    for each in instances:
        spec, status = each.spec, each.status
        phase = status.phase
        if spec.release != newest and not counts.outdated:
            counts.outdated = not slot.ended(each)
        if phase is running:
            counts.running += 1
            counts.ready += status.ready and spec.stop is None
        elif phase is failed:
            counts.failed += 1
            counts.troubled.append(each)
        elif phase is succeeded:
            counts.succeeded += spec.release == newest
        elif phase is not stopped:
            counts.pending += 1
            if phase is lost or (phase is pending and status.message):
                counts.troubled.append(each)
    return counts


def _phase(counts: _Counts, wanted: int) -> str:
    if counts.outdated:
        return "Updating"
    return "Running" if counts.running or not wanted else "Pending"


def _trouble(instances: Sequence[Instance]) -> str:
    """What the first instance that has something to say about itself says."""
    if not instances:
        return ""
    first = min(instances, key=lambda each: (each.spec.group, each.spec.index))
    return f"{first.meta.name}: {first.status.message if first.phase is Phase.PENDING else slot.shown_end(first)}"
