"""Instances of a workload: their value when one must go, when a name is free, and how ended ones are replaced."""

import math
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import count as numbers
from itertools import filterfalse, islice
from operator import attrgetter
from typing import NamedTuple

from mandor.controllers.draft import Draft
from mandor.lib.delay import Delay
from mandor.lib.steps import FEW, WRITTEN, Steps, chosen, pieces
from mandor.model.group import Group
from mandor.model.instance import EVICTED, PORT_TAKEN, REFUSED, Instance, InstanceSpec, daemon_name, instance_name
from mandor.model.meta import Meta
from mandor.model.phase import OVER, Phase
from mandor.model.workload import Release, Workload
from mandor.placement.daemon_nodes import DaemonNodes
from mandor.store.base import Put

AVOID_MOST = 5
"""Nodes where earlier copies failed that an instance avoids."""


_ACTIVE = frozenset({Phase.PENDING, Phase.RESERVED, Phase.STARTING, Phase.RUNNING})
_INDEX = attrgetter("spec.index")
_ENDS = OVER | {Phase.LOST}
CREATED_LEAST = 500
RESTING_LEAST = 8_000
"""Instances that a plan may leave to be created after it, or as many as the group has: the cost of a plan grows with
the group, so large groups need fewer plans."""
REFUSED_SECONDS = 2.0
"""Seconds until an instance is placed again after its node refused it."""
SOON_SECONDS = 0.05
"""Minimum seconds until the next plan, against rounding errors."""
SCALED_DOWN = "scaled down"
_UPDATED = "updated to "


def never_taken(name: str) -> bool:
    return False


def never_bound(instance: Instance) -> bool:
    return False


def nowhere(release: Release, group: str) -> DaemonNodes:
    return DaemonNodes(release.spec.groups[group])


class Other(NamedTuple):
    """A workload that another one depends on."""

    workload: Workload
    current: bool
    """Whether the status of the workload describes its current template."""


def no_dependency(name: str) -> Other | None:
    return None


def ready_forever(instance: Instance) -> float:
    return math.inf


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Facts about the cluster that a plan of one workload needs."""

    now: float
    """Wall time."""
    ready_nodes: Set[str] = frozenset()
    taken: Callable[[str], bool] = never_taken
    """Whether an instance name of the namespace belongs to another workload: `a-b` and group `b` of `a` can meet."""
    bound_to_node: Callable[[Instance], bool] = never_bound
    """Whether its volumes bind an instance to its node."""
    ready_seconds: Callable[[Instance], float] = ready_forever
    """Seconds since a ready instance became ready."""
    site: Callable[[Release, str], DaemonNodes] = nowhere
    """The nodes that match a group of daemons of a release."""
    other: Callable[[str], Other | None] = no_dependency
    """Looks up another workload of the namespace."""
    rehearsed: bool = False
    """The plan is a rehearsal: dependencies and promotions count as given."""


def ended(instance: Instance) -> bool:
    """Return whether the instance runs nowhere, so that its name can be used again."""
    if instance.phase.over:
        return True
    # A stopping instance without a node, or on a lost one, has no agent that would report its end.
    return instance.spec.stop is not None and (not instance.spec.node or instance.phase is Phase.LOST)


def unsettled(members: Sequence[Instance], release: str) -> Steps[list[Instance]]:
    """Return the instances that a plan must look at: stopping, ended, or of another release. Nearly always these are
    few of up to a hundred thousand."""
    active = _ACTIVE
    return chosen(
        members,
        lambda piece: [
            each
            for each in piece
            if (spec := each.spec).stop is not None or spec.release != release or each.status.phase not in active
        ],
        each=3,
    )


def any_unsettled(members: Sequence[Instance], release: str) -> bool:
    """Return whether a plan must look at an instance: as `unsettled`, or it moves or waits for a dependency."""
    active = _ACTIVE
    return bool(
        [
            each
            for each in members
            if (spec := each.spec).stop is not None
            or spec.release != release
            or spec.move is not None
            or spec.waits
            or each.status.phase not in active
        ]
    )


def at_once(members: int) -> int:
    """Return how many instances of a batch one plan creates; the next plan continues immediately, and other workloads
    run in between. The number grows with the group, because the cost of a plan does."""
    return max(CREATED_LEAST, members // 8)


def replaceable(instance: Instance, group: Group, cluster: ClusterView) -> bool:
    """Return whether a lost instance should be replaced: its node is not back, and another node is ready."""
    return (
        instance.phase is Phase.LOST
        and group.disconnect.replace
        and instance.spec.node not in cluster.ready_nodes
        and bool(cluster.ready_nodes)
        and not cluster.bound_to_node(instance)
    )


def serving(instance: Instance) -> bool:
    return instance.phase is Phase.RUNNING and instance.status.ready and instance.spec.stop is None


def healthy(draft: Draft, instance: Instance, group: Group, cluster: ClusterView) -> bool:
    """Return whether the instance has been ready for `min_healthy`; plan again when that time is reached."""
    if not serving(instance):
        return False
    left = group.update.min_healthy - cluster.ready_seconds(instance)
    if left > 0:
        draft.again(max(left, SOON_SECONDS))
    return left <= 0


def updated_to(release: Release) -> str:
    """Return the stop reason of an instance that an update replaces."""
    return f"{_UPDATED}{release.meta.name}"


def updated_away(instance: Instance) -> bool:
    """Return whether the instance was stopped by an update, not by a failure."""
    return instance.spec.stop is not None and instance.spec.stop.reason.startswith(_UPDATED)


def rank(instance: Instance, release: str = "") -> tuple[int, bool, bool, float, int]:
    """Sort key: most valuable first; ties by not moving, of the release, older."""
    return (
        -worth(instance),
        instance.spec.move is not None,
        bool(release) and instance.spec.release != release,
        instance.meta.created_at,
        instance.spec.index,
    )


def worth(instance: Instance) -> int:
    """Return the cost of losing the instance; 0 for one that ended, 6 for one that serves."""
    if ended(instance):
        return 0
    if instance.phase is Phase.LOST:
        return 1
    if instance.spec.stop is not None:
        return 2
    if not instance.spec.node:
        return 3
    if instance.phase is not Phase.RUNNING:
        return 4
    return 6 if instance.status.ready else 5


def worst_of_each(members: Sequence[Instance]) -> Steps[list[Instance]]:
    """Return the least valuable instance of each piece; the overall worst is among them."""
    return chosen(members, lambda piece: [worst(piece)], each=4)


def worst(members: Sequence[Instance]) -> Instance:
    """Return the instance with the lowest worth, then the lowest index; `members` is not empty. Equal to calling
    `worth` on each, but faster for many similar instances."""
    ends, running = _ENDS, Phase.RUNNING
    if over := [each for each in members if each.spec.stop is not None or each.status.phase in ends]:
        return min(over, key=lambda each: (worth(each), each.spec.index))
    alike = (
        [each for each in members if not each.spec.node]
        or [each for each in members if each.status.phase is not running]
        or [each for each in members if not each.status.ready]
    )
    return min(alike or members, key=_INDEX)


def lose(draft: Draft, instance: Instance, reason: str, now: float) -> bool:
    """Stop the instance, or delete its object if nothing runs; return whether it was deleted."""
    if ended(instance) or not instance.spec.node or instance.phase is Phase.LOST:
        draft.delete(instance)
        return True
    stop(draft, instance, reason, now)
    return False


def lose_all(draft: Draft, members: Sequence[Instance], reason: str, now: float) -> Steps[None]:
    for piece in pieces(members, FEW):
        for each in piece:
            lose(draft, each, reason, now)
        yield WRITTEN * len(piece)


def stop(draft: Draft, instance: Instance, reason: str, now: float) -> None:
    if instance.spec.stop is None:
        draft.put(instance.stopping(reason, at=now))


def create(draft: Draft, workload: Workload, group: str, index: int, release: Release) -> None:
    draft.put(made(workload, group, index, release))


def made(workload: Workload, group: str, index: int, release: Release) -> Instance:
    return Instance(
        meta=Meta(name=instance_name(workload.meta.name, group, index), namespace=workload.meta.namespace),
        spec=InstanceSpec(workload=workload.meta.name, group=group, release=release.meta.name, index=index),
    )


def create_at(draft: Draft, workload: Workload, group: str, node: str, release: Release) -> None:
    """Create a daemon, pinned to and named after its node."""
    name = daemon_name(workload.meta.name, group, node)
    draft.put(
        Instance(
            meta=Meta(name=name, namespace=workload.meta.namespace),
            spec=InstanceSpec(workload=workload.meta.name, group=group, release=release.meta.name, index=0, pin=node),
        )
    )


def create_some(
    draft: Draft, workload: Workload, group: str, free: Iterator[int], count: int, members: int, release: Release
) -> None:
    """Create up to `count` instances; those beyond the limit of one plan are left to `draft.rest`."""
    now = min(count, CREATED_LEAST)
    for index in islice(free, now):
        create(draft, workload, group, index, release)
    if count > now:
        later = islice(free, min(count - now, max(RESTING_LEAST, members)))
        draft.go_on(Put(made(workload, group, index, release)) for index in later)


def used_indices(members: Sequence[Instance]) -> Steps[set[int]]:
    used: set[int] = set()
    for piece in pieces(members):
        used.update([each.spec.index for each in piece])
        yield len(piece)
    return used


def free_indices(workload: str, group: str, used: Set[int], cluster: ClusterView) -> Iterator[int]:
    """Yield unused indices in ascending order, without end."""
    for index in filterfalse(used.__contains__, numbers()):
        if not cluster.taken(instance_name(workload, group, index)):
            yield index


def replace(draft: Draft, old: Instance, release: Release, *, attempt: int = 0, avoid: tuple[str, ...] = ()) -> None:
    """Replace an instance with a new one of the same name in one write: no uid, and the version of the old one."""
    spec = old.spec
    draft.put(
        Instance(
            meta=Meta(name=old.meta.name, namespace=old.meta.namespace, version=old.meta.version),
            spec=InstanceSpec(
                workload=spec.workload,
                group=spec.group,
                release=release.meta.name,
                index=spec.index,
                attempt=attempt,
                avoid=() if spec.home else avoid,
                pin=spec.home,
                instead_of=spec.instead_of,
            ),
        )
    )


def renew_all(
    draft: Draft, members: Sequence[Instance], group: Group, release: Release, cluster: ClusterView, *, but: Set[str]
) -> Steps[None]:
    """Renew every instance that ended or is lost, except the uids in `but`."""
    troubled = yield from unsettled(members, release.meta.name)
    for piece in pieces(troubled, FEW):
        for each in piece:
            if each.meta.uid not in but:
                renew(draft, each, group, release, cluster)
        yield WRITTEN * len(piece)


def renew(draft: Draft, each: Instance, group: Group, release: Release, cluster: ClusterView) -> None:
    """Replace an ended or lost instance with one of the same name and release, after its back-off."""
    if each.phase in {Phase.FAILED, Phase.SUCCEEDED} and each.spec.stop is None:
        _after_failure(draft, each, group, release, cluster)
    elif ended(each):
        replace(draft, each, release)
    elif replaceable(each, group, cluster):
        draft.note(each, "Replaced", f"replaced, because node {each.spec.node} is lost", warning=True)
        replace(draft, each, release, attempt=each.spec.attempt, avoid=each.spec.avoid)


def _after_failure(draft: Draft, each: Instance, group: Group, release: Release, cluster: ClusterView) -> None:
    earlier = _earlier_failures(each, group)
    most = group.reschedule.attempts
    if most is not None and earlier >= most and not refused(each):
        return  # it stays ended
    left = wait_seconds(each, group, cluster.now, earlier)
    if left > 0:
        draft.again(left)
        return
    draft.note(each, "Replaced", f"replaced after it ended on {each.spec.node} ({shown_end(each)})", warning=True)
    retry(draft, each, release, earlier)


def _earlier_failures(each: Instance, group: Group) -> int:
    """Return how many copies before it failed; 0 if it ran longer than the maximum back-off."""
    status = each.status
    ran_long = status.started_at > 0 and status.since - status.started_at >= group.reschedule.max_delay
    return 0 if ran_long else each.spec.attempt


def retry(draft: Draft, old: Instance, release: Release, earlier: int) -> None:
    """Replace an instance that ended by itself: the attempt counts, and its node is avoided."""
    attempt = earlier if refused(old) and not evicted_daemon(old) else earlier + 1
    replace(draft, old, release, attempt=attempt, avoid=avoiding(old))


def refused(instance: Instance) -> bool:
    """Return whether its node refused or evicted the instance, which is no failure of its own."""
    return instance.phase is Phase.FAILED and instance.status.reason in {REFUSED, PORT_TAKEN, EVICTED}


def evicted_daemon(instance: Instance) -> bool:
    """Return whether its node evicted a daemon: the replacement has to run there again, so the back-off grows."""
    return instance.phase is Phase.FAILED and instance.status.reason == EVICTED and bool(instance.spec.home)


def avoiding(old: Instance) -> tuple[str, ...]:
    """Return the nodes that its replacement avoids, the latest last."""
    if old.phase is not Phase.FAILED or not old.spec.node:
        return old.spec.avoid
    return (*(name for name in old.spec.avoid if name != old.spec.node), old.spec.node)[-AVOID_MOST:]


def wait_seconds(instance: Instance, group: Group, now: float, earlier: int) -> float:
    """Return the remaining back-off of a failed instance after `earlier` failures; 0 or less: replace it now.

    `since` is from the agent's wall clock; if that runs ahead, the wait is still at most the back-off itself.
    """
    times = group.reschedule
    at_once = refused(instance) and not evicted_daemon(instance)
    pause = REFUSED_SECONDS if at_once else Delay(times.delay, times.max_delay).after(earlier + 1)
    return min(instance.status.since + pause - now, pause)


def shown_end(instance: Instance) -> str:
    status = instance.status
    words = [status.reason or status.phase.value]
    if status.exit_code is not None:
        words.append(f"exit code {status.exit_code}")
    if status.message:
        words.append(status.message)
    return ", ".join(words)
