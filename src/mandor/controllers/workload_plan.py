"""Plan for a workload: its releases, its instances, its status, and its end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from mandor.controllers import replicas
from mandor.controllers.batch_plan import Ending, batch_of, ending, plan_batch, plan_ended, succeeded_indices
from mandor.controllers.daemon_plan import at_home, plan_daemon
from mandor.controllers.draft import Draft
from mandor.controllers.gate_plan import Waits, describe_waits, find_waits, hold, opened
from mandor.controllers.in_place_plan import in_place
from mandor.controllers.node_batch_plan import NodeProgress, ending_per_node, plan_per_node, progress
from mandor.controllers.release_plan import current_release, forget_releases
from mandor.controllers.replicas import ClusterView
from mandor.controllers.rollout_plan import plan_rollout
from mandor.controllers.service_plan import plan_service
from mandor.lib.ranges import shown
from mandor.lib.steps import Steps, at_once, pieces
from mandor.model.instance import Instance
from mandor.model.phase import Phase
from mandor.model.rollout import Rollout
from mandor.model.workload import Release, Workload, WorkloadStatus
from mandor.placement.daemon_nodes import NO_MATCH


@dataclass(frozen=True, slots=True)
class WorkloadInputs:
    workload: Workload | None
    """None: the workload was deleted, so its instances and releases are deleted too."""
    releases: Sequence[Release]
    instances: Sequence[Instance]


def plan(seen: WorkloadInputs, cluster: ClusterView) -> Draft:
    return at_once(plan_in_steps(seen, cluster))


def plan_in_steps(seen: WorkloadInputs, cluster: ClusterView) -> Steps[Draft]:
    """Plan in small steps, because a workload may have a hundred thousand instances."""
    draft = Draft()
    if seen.workload is None:
        yield from _plan_end(draft, seen, "the workload was deleted", cluster)
        return draft
    workload = seen.workload
    if workload.spec.schedule is not None:
        yield from _plan_end(
            draft, seen, "the workload runs on a schedule now", cluster
        )  # Only its runs have instances.
        return draft
    release = current_release(draft, workload, seen.releases)
    draft.in_place = yield from in_place(workload, release, seen.releases, seen.instances, cluster)
    rollout = workload.status.rollout
    if draft.in_place and rollout is not None and rollout.settled_on:
        yield from _plan_status(draft, seen, workload, release, rollout, cluster)
        return draft
    members = yield from _members(draft, workload, seen.instances, cluster)
    waits = yield from find_waits(workload, members, release, cluster)
    if workload.spec.type == "batch":
        decide = ending_per_node if workload.spec.per_node else ending
        end = yield from decide(workload, members, release, cluster)
        yield from _plan_batch(draft, workload, members, release, end, cluster)
        status = yield from _batch_status(draft, seen, workload, members, release, end, cluster)
    else:
        rollout = yield from _plan_service(draft, seen, workload, members, release, waits, cluster)
        status = yield from _service_status(draft, seen, workload, members, release, rollout, cluster)
        end = None
    yield from hold(draft, members, waits, release)
    message = describe_waits(draft, workload, waits, release) or status.message
    status = replace(status, opened=opened(workload, waits), message=message)
    yield from forget_releases(draft, workload, seen.releases, seen.instances)
    if not draft.unfinished or _turned(workload.status.rollout, status.rollout):
        _write_status(draft, workload, status, end)
    return draft


def _plan_status(
    draft: Draft, seen: WorkloadInputs, workload: Workload, release: Release, rollout: Rollout, cluster: ClusterView
) -> Steps[None]:
    """Plan a workload that is in place: only its status can change."""
    members: Mapping[str, Sequence[Instance]] = {}
    if workload.spec.type == "daemon":
        members = yield from _members(draft, workload, seen.instances, cluster)
    status = yield from _service_status(draft, seen, workload, members, release, rollout, cluster)
    _write_status(draft, workload, replace(status, opened=opened(workload, {})), None)


def _members(
    draft: Draft, workload: Workload, instances: Sequence[Instance], cluster: ClusterView
) -> Steps[dict[str, list[Instance]]]:
    """Return the instances by group; those without a group, or of another workload type, are stopped."""
    members: dict[str, list[Instance]] = {name: [] for name in workload.spec.groups}
    per_node = workload.spec.per_node
    for piece in pieces(instances):
        for each in piece:
            spec = each.spec
            group = members.get(spec.group)
            if group is None:
                replicas.lose(draft, each, f"the workload has no group {spec.group} any more", cluster.now)
            elif per_node != (spec.pin != "" and spec.home != ""):
                what = "runs once on every node" if per_node and workload.spec.type == "batch" else ""
                why = what or f"is of type {workload.spec.type}"
                replicas.lose(draft, each, f"the workload {why} now", cluster.now)
            else:
                group.append(each)
        yield 3 * len(piece)
    return members


def _plan_batch(
    draft: Draft,
    workload: Workload,
    members: Mapping[str, Sequence[Instance]],
    release: Release,
    end: Ending | None,
    cluster: ClusterView,
) -> Steps[None]:
    for name, instances in members.items():
        if workload.spec.per_node and (end is None or not end.final):
            yield from plan_per_node(draft, workload, name, instances, release, cluster)
        elif end is not None:
            yield from plan_ended(draft, instances, f"the batch {end.phase.lower()}", cluster.now)
        else:
            yield from plan_batch(draft, workload, name, instances, release, cluster)


def _plan_service(
    draft: Draft,
    seen: WorkloadInputs,
    workload: Workload,
    members: Mapping[str, Sequence[Instance]],
    release: Release,
    waits: Waits,
    cluster: ClusterView,
) -> Steps[Rollout]:
    releases = {each.meta.name: each for each in (*seen.releases, release)}
    rollout, steps = yield from plan_rollout(draft, workload, release, releases, members, waits.keys(), cluster)
    before = workload.status.rollout
    if draft.in_place and before is not None and rollout.target == before.target:
        return rollout
    for name, instances in members.items():
        if name not in steps:
            yield from replicas.lose_all(
                draft, instances, f"the release {rollout.target} has no group {name}", cluster.now
            )
        elif workload.spec.type == "daemon":
            yield from plan_daemon(draft, workload, name, instances, steps[name], cluster)
        else:
            yield from plan_service(draft, workload, name, instances, steps[name], cluster)
    return rollout


def _plan_end(draft: Draft, seen: WorkloadInputs, reason: str, cluster: ClusterView) -> Steps[None]:
    """Stop all instances; delete the releases, which agents still read, after them."""
    yield from replicas.lose_all(draft, seen.instances, reason, cluster.now)
    if not seen.instances:
        for release in seen.releases:
            draft.delete(release)


# Status.


def _write_status(draft: Draft, workload: Workload, status: WorkloadStatus, end: Ending | None) -> None:
    """Write the status and its event if the status differs from the stored one."""
    if status == workload.status:
        return
    draft.put(workload.changed(status=status))
    if end is not None and workload.status.phase != end.phase:
        draft.note(workload, end.phase, end.message or "all completions succeeded", warning=end.phase == "Failed")


def _turned(before: Rollout | None, after: Rollout | None) -> bool:
    """Return whether the release, target or phase changed, which is written even if the plan is unfinished."""
    if before is None or after is None:
        return False
    return (before.release, before.target, before.phase) != (after.release, after.target, after.phase)


def _batch_status(
    draft: Draft,
    seen: WorkloadInputs,
    workload: Workload,
    members: Mapping[str, Sequence[Instance]],
    release: Release,
    end: Ending | None,
    cluster: ClusterView,
) -> Steps[WorkloadStatus]:
    counts = yield from _count(seen.instances, release.meta.name)
    known = end is not None and end.phase == workload.status.phase and workload.status.release == release.meta.name
    if known and end is not None and end.final:
        # Finished instances may have been deleted already: keep the final counts.
        return replace(workload.status, running=counts.running, ready=0, pending=0)
    wanted, message = sum(batch_of(workload, name).completions for name in workload.spec.groups), ""
    if workload.spec.per_node:
        total = NodeProgress()
        for name, instances in members.items():
            found = yield from progress(workload, name, instances, release, cluster)
            total = total.plus(found)
        wanted, counts.succeeded = total.wanted, total.succeeded
        message = _nowhere(draft, workload, release, cluster) if not wanted else ""
    indices: dict[str, str] = {}
    if workload.spec.batch is not None and workload.spec.batch.indexed:
        over = {}
        for name, each in members.items():
            over[name] = yield from succeeded_indices(workload, name, each, release)
        counts.succeeded = sum(map(len, over.values()))
        indices = {name: shown(each) for name, each in over.items() if each}
    return WorkloadStatus(
        phase=end.phase if end else _phase(counts, wanted or bool(message)),
        release=release.meta.name,
        wanted=wanted,
        running=counts.running,
        ready=counts.ready,
        pending=counts.pending,
        succeeded=counts.succeeded,
        failed=counts.failed,
        indices=indices,
        message=end.message if end else message or _trouble(counts.troubled),
    )


def _service_status(
    draft: Draft,
    seen: WorkloadInputs,
    workload: Workload,
    members: Mapping[str, Sequence[Instance]],
    release: Release,
    rollout: Rollout,
    cluster: ClusterView,
) -> Steps[WorkloadStatus]:
    wanted, counted, nowhere = sum(group.count for group in workload.spec.groups.values()), seen.instances, ""
    if workload.spec.type == "daemon":
        target = next(each for each in (*seen.releases, release) if each.meta.name == rollout.target)
        found = [at_home(target, name, members[name], cluster) for name in members if name in target.spec.groups]
        wanted, counted = sum(count for count, _ in found), [each for _, here in found for each in here]
        nowhere = _nowhere(draft, workload, target, cluster)
    counts = yield from _count(counted, rollout.target)
    # The first release updates nothing: its status shows the state of its instances.
    first = not rollout.proven and not counts.outdated and rollout.phase != "Failed"
    return WorkloadStatus(
        phase="Updating" if rollout.ongoing and not first else _phase(counts, wanted or bool(nowhere)),
        release=release.meta.name,
        wanted=wanted,
        running=counts.running,
        ready=counts.ready,
        pending=counts.pending,
        failed=counts.failed,
        message=nowhere or (not first and rollout.message) or _trouble(counts.troubled),
        rollout=rollout,
        autoscale=workload.status.autoscale,
    )


def _nowhere(draft: Draft, workload: Workload, target: Release, cluster: ClusterView) -> str:
    """Return why no node matches the daemons; record an event once."""
    sites = {name: cluster.site(target, name) for name in workload.spec.groups if name in target.spec.groups}
    prefix = "{}: " if len(sites) > 1 else ""
    message = "; ".join(prefix.format(name) + site.refusal for name, site in sites.items() if not site.eligible)
    if message and NO_MATCH not in workload.status.message:
        draft.note(workload, "NoNodeMatches", message, warning=True)
    return message


@dataclass(slots=True)
class _Counts:
    running: int = 0
    ready: int = 0
    pending: int = 0
    succeeded: int = 0
    failed: int = 0
    outdated: bool = False
    """Whether an instance of an older release has not ended."""
    troubled: list[Instance] = field(default_factory=list)
    """Instances with a status message; the one with the lowest index is among them."""


def _count(instances: Sequence[Instance], newest: str) -> Steps[_Counts]:
    counts = _Counts()
    for piece in pieces(instances):
        _count_some(counts, piece, newest)
        yield 5 * len(piece)
    return counts


def _count_some(counts: _Counts, instances: Sequence[Instance], newest: str) -> None:
    # Attribute access of enum members is slow in Python 3.11.
    running, failed, succeeded, stopped = Phase.RUNNING, Phase.FAILED, Phase.SUCCEEDED, Phase.STOPPED
    pending, lost = Phase.PENDING, Phase.LOST
    troubled: list[Instance] = []
    for each in instances:
        spec, status = each.spec, each.status
        phase = status.phase
        if spec.release != newest and not counts.outdated:
            counts.outdated = not replicas.ended(each)
        if phase is running:
            counts.running += 1
            counts.ready += status.ready and spec.stop is None
        elif phase is failed:
            counts.failed += 1
            troubled.append(each)
        elif phase is succeeded:
            counts.succeeded += spec.release == newest
        elif phase is not stopped:
            counts.pending += 1
            if phase is lost or (phase is pending and status.message):
                troubled.append(each)
    if troubled:
        counts.troubled.append(_first(troubled))


def _phase(counts: _Counts, wanted: int) -> str:
    if counts.outdated:
        return "Updating"
    return "Running" if counts.running or not wanted else "Pending"


def _trouble(instances: Sequence[Instance]) -> str:
    """Return the message of the first instance that has one."""
    if not instances:
        return ""
    first = _first(instances)
    return f"{first.meta.name}: {first.status.message if first.phase is Phase.PENDING else replicas.shown_end(first)}"


def _first(instances: Sequence[Instance]) -> Instance:
    return min(instances, key=lambda each: (each.spec.group, each.spec.index))
