"""Plan for one group of a batch: run each index to completion, with limited parallelism and retries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mandor.controllers import replicas
from mandor.controllers.draft import Draft
from mandor.controllers.replicas import ClusterView
from mandor.lib.quantity import Seconds
from mandor.lib.ranges import parse
from mandor.lib.steps import FEW, PIECE, WRITTEN, Steps, chosen, ordered, pieces
from mandor.model.batch import Batch
from mandor.model.instance import Instance, instance_name
from mandor.model.phase import Phase
from mandor.model.workload import Release, Workload


@dataclass(frozen=True, slots=True)
class Ending:
    """Result of a batch; valid until the template changes or a restart is requested."""

    phase: str
    message: str = ""
    final: bool = True
    """Whether nothing runs any more; false for a batch on every node, which continues when a node joins."""


def batch_of(workload: Workload, group: str) -> Batch:
    """Return the batch settings; without them, all replicas of the group run once and in parallel."""
    count = workload.spec.groups[group].count
    return workload.spec.batch or Batch(completions=count, parallelism=max(count, 1))


def ending(
    workload: Workload, members: Mapping[str, Sequence[Instance]], release: Release, cluster: ClusterView
) -> Steps[Ending | None]:
    status = workload.status
    if status.release == release.meta.name and status.phase in {"Succeeded", "Failed"}:
        return Ending(status.phase, status.message)
    for group, instances in members.items():
        failed = yield from chosen(instances, lambda piece: [each for each in piece if each.phase is Phase.FAILED])
        for each in failed:
            if failed_for_good(workload, group, each, release):
                tries = each.spec.attempt + 1
                return Ending("Failed", f"{each.meta.name} failed {tries} times: {replicas.shown_end(each)}")
    late = seconds_left(workload, release, cluster.now)
    if late is not None and late <= 0:
        return Ending("Failed", f"not done within its deadline of {_deadline(workload)}")
    for group in workload.spec.groups:
        over = yield from done(workload, group, members[group], release)
        if not over:
            return None
    return Ending("Succeeded")


def done(workload: Workload, group: str, members: Sequence[Instance], release: Release) -> Steps[bool]:
    wanted = batch_of(workload, group).completions
    over = yield from succeeded_indices(workload, group, members, release)
    return len(over) >= wanted


def succeeded_indices(workload: Workload, group: str, members: Sequence[Instance], release: Release) -> Steps[set[int]]:
    """Return the completed indices, for an indexed batch including those in its status."""
    batch = batch_of(workload, group)
    indices = yield from chosen(members, lambda piece: [each.spec.index for each in piece if succeeded(each, release)])
    found = set(indices)
    if batch.indexed and workload.status.release == release.meta.name:
        found |= parse(workload.status.indices.get(group, ""))
    return {index for index in found if index < batch.completions}


def succeeded(instance: Instance, release: Release) -> bool:
    return instance.phase is Phase.SUCCEEDED and instance.spec.release == release.meta.name


def failed_for_good(workload: Workload, group: str, instance: Instance, release: Release) -> bool:
    return (
        instance.phase is Phase.FAILED
        and not replicas.refused(instance)
        and instance.spec.stop is None
        and instance.spec.release == release.meta.name
        and instance.spec.attempt >= batch_of(workload, group).retries
    )


def plan_ended(draft: Draft, members: Sequence[Instance], reason: str, now: float) -> Steps[None]:
    """Stop the running instances; keep ended ones as history."""
    left = yield from chosen(members, lambda piece: [each for each in piece if not each.phase.over])
    yield from replicas.lose_all(draft, left, reason, now)


def plan_batch(
    draft: Draft, workload: Workload, name: str, members: Sequence[Instance], release: Release, cluster: ClusterView
) -> Steps[None]:
    batch = batch_of(workload, name)
    left = seconds_left(workload, release, cluster.now)
    if left is not None:
        draft.again(left)
    surplus = yield from chosen(members, lambda piece: [each for each in piece if each.spec.index >= batch.completions])
    if surplus:
        yield from replicas.lose_all(draft, surplus, "the number of completions was reduced", cluster.now)
        members = [each for each in members if each.spec.index < batch.completions]
    held = yield from chosen(members, lambda piece: [each for each in piece if not replicas.ended(each)])
    current = yield from _stop_outdated(draft, held, release, cluster)
    # When the parallelism was lowered, the instances that lost least work stop and run again later.
    by_worth = yield from ordered(current, lambda each: (-replicas.worth(each), each.spec.index))
    for piece in pieces(by_worth[batch.together :], FEW):
        for each in piece:
            replicas.stop(draft, each, "the parallelism was reduced", cluster.now)
        yield WRITTEN * len(piece)
    for piece in pieces(by_worth[: batch.together]):
        for each in piece:
            if replicas.replaceable(each, workload.spec.groups[name], cluster):
                draft.note(each, "Replaced", f"replaced, because node {each.spec.node} is lost", warning=True)
                replicas.replace(draft, each, release, attempt=each.spec.attempt, avoid=each.spec.avoid)
        yield 5 * len(piece)
    yield from _fill(draft, workload, name, members, batch.together - len(held), release, cluster)


def _stop_outdated(
    draft: Draft, held: Sequence[Instance], release: Release, cluster: ClusterView
) -> Steps[list[Instance]]:
    """Stop instances of other releases; return the current ones that are not stopping."""
    current = []
    for piece in pieces(held):
        for each in piece:
            if each.spec.release != release.meta.name:
                replicas.stop(draft, each, f"updated to {release.meta.name}", cluster.now)
            elif each.spec.stop is None:
                current.append(each)
        yield 3 * len(piece)
    return current


def _fill(
    draft: Draft,
    workload: Workload,
    name: str,
    members: Sequence[Instance],
    room: int,
    release: Release,
    cluster: ClusterView,
) -> Steps[None]:
    """Create instances, lowest index first; an index in back-off after a failure does not block the next one."""
    by_index = dict((yield from chosen(members, lambda piece: [(each.spec.index, each) for each in piece])))
    over = yield from succeeded_indices(workload, name, members, release)
    left = replicas.at_once(len(members))
    for index in range(batch_of(workload, name).completions):
        if room <= 0:
            return
        if index % PIECE == 0:
            yield 3 * PIECE
        if index in over:
            continue
        if not left:
            draft.again(0.0)
            return
        each = by_index.get(index)
        if each is None:
            if not cluster.taken(instance_name(workload.meta.name, name, index)):
                replicas.create(draft, workload, name, index, release)
                room -= 1
                left -= 1
        elif start_again(draft, workload, name, each, release, cluster):
            room -= 1


def start_again(
    draft: Draft, workload: Workload, name: str, each: Instance, release: Release, cluster: ClusterView
) -> bool:
    """Replace an ended instance that has not succeeded, after its back-off; return whether it was replaced."""
    group = workload.spec.groups[name]
    if succeeded(each, release) or not replicas.ended(each):
        return False
    if each.spec.release != release.meta.name:
        replicas.replace(draft, each, release)
    elif each.phase is Phase.FAILED and each.spec.stop is None:
        left = replicas.wait_seconds(each, group, cluster.now, each.spec.attempt)
        if left > 0:
            draft.again(left)
            return False
        draft.note(
            each, "Retried", f"retried after it failed on {each.spec.node} ({replicas.shown_end(each)})", warning=True
        )
        replicas.retry(draft, each, release, each.spec.attempt)
    else:
        replicas.replace(draft, each, release, attempt=each.spec.attempt, avoid=each.spec.avoid)
    return True


def _deadline(workload: Workload) -> Seconds | None:
    return workload.spec.batch.deadline if workload.spec.batch else None


def seconds_left(workload: Workload, release: Release, now: float) -> float | None:
    """Return the seconds until the deadline, counted from the creation of the release; None without a deadline."""
    deadline = _deadline(workload)
    begun = release.meta.created_at or now
    return None if deadline is None else begun + deadline - now
