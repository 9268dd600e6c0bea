"""One instance of a workload among others: what it is worth, when its name is free, what comes after it."""

import math
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import count as numbers
from itertools import filterfalse, islice
from operator import attrgetter
from typing import NamedTuple

from mandor.controllers.draft import Draft
from mandor.lib.backoff import Backoff
from mandor.lib.steps import FEW, WRITTEN, Steps, chosen, pieces
from mandor.model.instance import EVICTED, PORT_TAKEN, REFUSED, Instance, InstanceSpec, daemon_name, instance_name
from mandor.model.meta import Meta
from mandor.model.phase import OVER, Phase
from mandor.model.workload import Group, Release, Workload
from mandor.placement.home import Site
from mandor.store.base import Put

AVOID_MOST = 5
"""So many nodes where earlier copies failed are remembered."""


_CALM = frozenset({Phase.PENDING, Phase.RESERVED, Phase.STARTING, Phase.RUNNING})
_INDEX = attrgetter("spec.index")
_ENDS = OVER | {Phase.LOST}
CREATED_LEAST = 500
RESTING_LEAST = 8_000
"""So many more a plan may leave to be created after it, or as many as there are already: what plans cost grows with
the group, and so they become fewer."""
REFUSED_SECONDS = 2.0
"""So long after its node refused it, an instance is placed again."""
SOON_SECONDS = 0.05
"""Nobody is looked at again sooner, for a rest that rounding left."""
SCALED_DOWN = "scaled down"
_UPDATED = "updated to "


def nobody_has(name: str) -> bool:
    return False


def goes_anywhere(instance: Instance) -> bool:
    return False


def nowhere(release: Release, group: str) -> Site:
    return Site(release.spec.groups[group])


class Other(NamedTuple):
    """A workload that others wait for."""

    workload: Workload
    current: bool
    """Its status is about its template as it is now."""


def nobody(name: str) -> Other | None:
    return None


def always_was(instance: Instance) -> float:
    return math.inf


@dataclass(frozen=True, slots=True)
class World:
    """What a plan knows of the rest of the cluster."""

    now: float
    """Wall time."""
    ready_nodes: Set[str] = frozenset()
    taken: Callable[[str], bool] = nobody_has
    """Whether an instance name of the namespace belongs to another workload: `a-b` and group `b` of `a` can meet."""
    rooted: Callable[[Instance], bool] = goes_anywhere
    """Whether its data is on its node: it is not begun elsewhere without it."""
    ready_seconds: Callable[[Instance], float] = always_was
    """For how long an instance that is ready has been seen so, without a break."""
    site: Callable[[Release, str], Site] = nowhere
    """Which nodes are home to a group of daemons of a release."""
    other: Callable[[str], Other | None] = nobody
    """Another workload of the namespace."""
    rehearsed: bool = False
    """Nobody waits for anybody's approval."""
    heeded: bool = True
    """Somebody reads what is told of the workload; else only what could change a plan is written."""


def ended(instance: Instance) -> bool:
    """It runs nowhere, as far as anybody can know, and its name can be used again."""
    if instance.phase.over:
        return True
    # Told to stop: without a node there is nobody else to end it, and a lost node will not.
    return instance.spec.stop is not None and (not instance.spec.node or instance.phase is Phase.LOST)


def unsettled(members: Sequence[Instance], release: str) -> Steps[list[Instance]]:
    """But for those who wait or run, and nobody wants anything else of them: that is nearly all, nearly always, and
    there may be a hundred thousand of them."""
    calm = _CALM
    return chosen(
        members,
        lambda piece: [
            each
            for each in piece
            if (spec := each.spec).stop is not None or spec.release != release or each.status.phase not in calm
        ],
        each=3,
    )


def any_stirs(members: Sequence[Instance], release: str) -> bool:
    """As `unsettled`; one that is to go elsewhere, or waits for others, stirs as well."""
    calm = _CALM
    return bool(
        [
            each
            for each in members
            if (spec := each.spec).stop is not None
            or spec.release != release
            or spec.move is not None
            or spec.waits
            or each.status.phase not in calm
        ]
    )


def at_once(members: int) -> int:
    """How many of a batch are created by one plan, of a group that has so many already: the next plan goes on at once,
    and others get their turn in between. With the group grows what a plan costs anyway, and so they become fewer."""
    return max(CREATED_LEAST, members // 8)


def replaceable(instance: Instance, group: Group, world: World) -> bool:
    """Lost, and better replaced: its node is not back, and there is another one to go to."""
    return (
        instance.phase is Phase.LOST
        and group.disconnect.replace
        and instance.spec.node not in world.ready_nodes
        and bool(world.ready_nodes)
        and not world.rooted(instance)
    )


def serving(instance: Instance) -> bool:
    return instance.phase is Phase.RUNNING and instance.status.ready and instance.spec.stop is None


def healthy(draft: Draft, instance: Instance, group: Group, world: World) -> bool:
    """It has served for long enough; one that will soon have done so is looked at again then."""
    if not serving(instance):
        return False
    left = group.update.min_healthy - world.ready_seconds(instance)
    if left > 0:
        draft.again(max(left, SOON_SECONDS))
    return left <= 0


def updated_to(release: Release) -> str:
    """Why an old one is stopped."""
    return f"{_UPDATED}{release.meta.name}"


def updated_away(instance: Instance) -> bool:
    """It was stopped to be replaced by another release: nothing happened to it."""
    return instance.spec.stop is not None and instance.spec.stop.reason.startswith(_UPDATED)


def rank(instance: Instance, release: str = "") -> tuple[int, bool, bool, float, int]:
    """Those most worth keeping come first; among equals who need not leave, those of the release, the older ones."""
    return (
        -worth(instance),
        instance.spec.move is not None,
        bool(release) and instance.spec.release != release,
        instance.meta.created_at,
        instance.spec.index,
    )


def worth(instance: Instance) -> int:
    """What losing it costs: the cheapest has the lowest number."""
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
    """Of each piece of them: the worst of these is the worst of all."""
    return chosen(members, lambda piece: [worst(piece)], each=4)


def worst(members: Sequence[Instance]) -> Instance:
    """Of the lowest worth, then of the lowest index: there is at least one. To ask each what it is worth would say so,
    too; but there may be very many of them, nearly all alike."""
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
    """Have it end; once it has, its object goes. True: it is gone at once."""
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
    """A daemon: it belongs to its node, and is called after it."""
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
    """No more than one plan should make, of a group that has so many members; the rest is left for later."""
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


def free_indices(workload: str, group: str, used: Set[int], world: World) -> Iterator[int]:
    """The lowest first, without end."""
    for index in filterfalse(used.__contains__, numbers()):
        if not world.taken(instance_name(workload, group, index)):
            yield index


def replace(draft: Draft, old: Instance, release: Release, *, attempt: int = 0, avoid: tuple[str, ...] = ()) -> None:
    """Another one of the same name in its place, in one write: no uid, and the old one's version."""
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
    draft: Draft, members: Sequence[Instance], group: Group, release: Release, world: World, *, but: Set[str]
) -> Steps[None]:
    """Whoever needs it; `but`: by their uids, those who are left alone."""
    troubled = yield from unsettled(members, release.meta.name)
    for piece in pieces(troubled, FEW):
        for each in piece:
            if each.meta.uid not in but:
                renew(draft, each, group, release, world)
        yield WRITTEN * len(piece)


def renew(draft: Draft, each: Instance, group: Group, release: Release, world: World) -> None:
    """What ended or is lost makes place for another one of its name and release."""
    if each.phase in {Phase.FAILED, Phase.SUCCEEDED} and each.spec.stop is None:
        _after_failure(draft, each, group, release, world)
    elif ended(each):
        replace(draft, each, release)
    elif replaceable(each, group, world):
        draft.note(each, "Replaced", f"its node {each.spec.node} is lost", warning=True)
        replace(draft, each, release, attempt=each.spec.attempt, avoid=each.spec.avoid)


def _after_failure(draft: Draft, each: Instance, group: Group, release: Release, world: World) -> None:
    earlier = _earlier_failures(each, group)
    left = wait_seconds(each, group, world.now, earlier)
    if left > 0:
        draft.again(left)
        return
    draft.note(each, "Replaced", f"it ended on {each.spec.node} ({shown_end(each)})", warning=True)
    retry(draft, each, release, earlier)


def _earlier_failures(each: Instance, group: Group) -> int:
    """How many copies before it failed; none, if it ran so long that they say nothing any more."""
    status = each.status
    ran_long = status.started_at > 0 and status.since - status.started_at >= group.reschedule.max_delay
    return 0 if ran_long else each.spec.attempt


def retry(draft: Draft, old: Instance, release: Release, earlier: int) -> None:
    """A replacement after it ended by itself: that counts, and the node where it failed comes last."""
    attempt = earlier if refused(old) else earlier + 1
    replace(draft, old, release, attempt=attempt, avoid=avoiding(old))


def refused(instance: Instance) -> bool:
    """Its node did not take it, and it never began: no failure of its own, only to be placed again."""
    return instance.phase is Phase.FAILED and instance.status.reason in {REFUSED, PORT_TAKEN, EVICTED}


def avoiding(old: Instance) -> tuple[str, ...]:
    """The nodes its successor keeps away from, the latest last."""
    if old.phase is not Phase.FAILED or not old.spec.node:
        return old.spec.avoid
    return (*(name for name in old.spec.avoid if name != old.spec.node), old.spec.node)[-AVOID_MOST:]


def wait_seconds(instance: Instance, group: Group, now: float, earlier: int) -> float:
    """How long one that failed, as so many before it, still waits for its replacement; 0 or less: no more.

    `since` is the agent's wall clock: where that runs ahead, nothing waits longer than the pause itself.
    """
    times = group.reschedule
    pause = REFUSED_SECONDS if refused(instance) else Backoff(times.delay, times.max_delay).pause(earlier + 1)
    return min(instance.status.since + pause - now, pause)


def shown_end(instance: Instance) -> str:
    status = instance.status
    words = [status.reason or status.phase.value]
    if status.exit_code is not None:
        words.append(f"exit code {status.exit_code}")
    if status.message:
        words.append(status.message)
    return ", ".join(words)
