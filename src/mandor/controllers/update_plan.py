"""Plan for one group during an update: which new instances to create and which old ones to stop.

There are never more than `count + max_surge` instances, stopping ones included, and an old instance is stopped only
while at least `count - max_unavailable` others are available. So an unhealthy release spreads no further than that, and
old instances that crash meanwhile are replaced with their own release.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from mandor.controllers import replicas
from mandor.controllers.draft import Draft
from mandor.controllers.move_plan import Leaving, extra, find_leaving, plan_moves
from mandor.controllers.replicas import ClusterView
from mandor.lib.steps import FEW, WRITTEN, Steps, chosen, ordered, pieces
from mandor.model.group import Group
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.phase import Phase
from mandor.model.workload import Release, Workload
from mandor.store.base import Put, Write


@dataclass(frozen=True, slots=True)
class Step:
    """Limits of the update of one group at this moment."""

    target: Release
    """The release that its instances are updated to."""
    releases: Mapping[str, Release] = field(default_factory=dict)
    proven: Sequence[str] = ()
    """Releases that were healthy, the latest last."""
    canaries: int = 0
    """Number of canaries beside the old instances until the update is promoted; 0: no canaries."""
    frozen: bool = False
    """No instance is created or stopped for the update."""

    @property
    def held(self) -> bool:
        return self.frozen or self.canaries > 0

    @property
    def base(self) -> Release:
        """Return the release that replacements have while the update is held: the last healthy one."""
        return next((self.releases[name] for name in reversed(self.proven) if name in self.releases), self.target)


@dataclass(slots=True)
class _Sides:
    """The instances of a group, sorted into new, old and ended ones."""

    new: list[Instance] = field(default_factory=list)
    old: list[Instance] = field(default_factory=list)
    """Instances of other releases that have not ended."""
    over: list[Instance] = field(default_factory=list)
    """Ended or lost instances of other releases; their names are free."""
    free: Iterator[int] = field(default_factory=lambda: iter(()))
    """Unused indices."""
    coming: int = 0
    """Instances created by this plan."""
    back: int = 0
    """Ended old instances that this plan replaces with their own release."""

    @property
    def used(self) -> int:
        return len(self.new) + len(self.old) + self.coming + self.back

    @property
    def staying(self) -> int:
        return sum(each.spec.stop is None for each in self.old) + self.back


def plan_update(
    draft: Draft, workload: Workload, name: str, members: Sequence[Instance], step: Step, cluster: ClusterView
) -> Steps[None]:
    group = workload.spec.groups[name]
    surge, away = group.update_room()
    leaving = yield from find_leaving(members)
    both = yield from extra(leaving, members)
    most = group.count + both + (step.canaries or surge)
    sides = yield from _sorted(members, group, step, cluster)
    used = yield from replicas.used_indices(members)
    sides.free = replicas.free_indices(workload.meta.name, name, used, cluster)
    if len(members) > group.count:
        yield from _trim(draft, sides, group.count + both, most, group, step, cluster)
    moving: set[str] = set()
    if leaving:
        moving = yield from _move(draft, workload, name, sides, leaving, step, cluster)
        # A move that was just cancelled no longer allows an extra instance.
        left = [*sides.new, *sides.old]
        still = yield from find_leaving(left)
        most -= both - (yield from extra(still, left))
    yield from replicas.renew_all(draft, sides.new, group, step.target, cluster, but=moving)
    healthy = yield from _healthy(draft, sides.new, group, moving, cluster)
    if not step.held:
        yield from _stop_old(draft, sides, group, healthy, group.count - away, moving, step, cluster)
    yield from _make_good(draft, sides, group, healthy, group.count - away, most, step, cluster)
    wanted = len(sides.new) if step.frozen else step.canaries or group.count
    yield from _fill(draft, workload, name, sides, min(wanted - len(sides.new), most - sides.used), step.target)
    if step.held and not (step.canaries and step.base is step.target):  # canaries of the target exist already
        lacking = group.count - (sides.staying if step.canaries else sides.used)
        yield from _fill(draft, workload, name, sides, min(lacking, most - sides.used), step.base)
    for piece in pieces(sides.over, FEW):
        for each in piece:
            draft.delete(each)
        yield WRITTEN * len(piece)


def _sorted(members: Sequence[Instance], group: Group, step: Step, cluster: ClusterView) -> Steps[_Sides]:
    sides, target = _Sides(), step.target.meta.name
    for piece in pieces(members):
        for each in piece:
            if each.spec.release == target:
                sides.new.append(each)
            elif replicas.ended(each) or replicas.replaceable(each, group, cluster):
                sides.over.append(each)
            else:
                sides.old.append(each)
        yield 3 * len(piece)
    return sides


def _healthy(
    draft: Draft, members: Sequence[Instance], group: Group, moving: Set[str], cluster: ClusterView
) -> Steps[int]:
    found = 0
    for piece in pieces(members, FEW):
        found += sum(replicas.healthy(draft, each, group, cluster) for each in piece if each.meta.uid not in moving)
        yield WRITTEN * len(piece)
    return found


def _trim(
    draft: Draft, sides: _Sides, count: int, most: int, group: Group, step: Step, cluster: ClusterView
) -> Steps[None]:
    """Stop the least valuable instances beyond the limits, after a scale-down or a promotion."""
    young: set[str] = set()
    for piece in pieces(sides.new, FEW):
        young.update([each.meta.uid for each in piece if not replicas.healthy(draft, each, group, cluster)])
        yield WRITTEN * len(piece)

    def rank(each: Instance) -> tuple[object, ...]:
        return -replicas.worth(each), each.meta.uid in young, *replicas.rank(each, step.target.meta.name)

    going = yield from _worst(sides.new, count, rank)
    if step.canaries:
        going += yield from _worst(sides.old, count, rank)
    left = {each.meta.uid for each in going}
    rest = yield from chosen(
        [*sides.new, *sides.old], lambda piece: [each for each in piece if each.meta.uid not in left]
    )
    going += yield from _worst(rest, most, rank)
    if going:
        ends = {each.meta.uid for each in going}
        sides.new = yield from _without(draft, sides.new, ends, replicas.SCALED_DOWN, cluster)
        reason = replicas.SCALED_DOWN if step.held else replicas.updated_to(step.target)
        sides.old = yield from _without(draft, sides.old, ends, reason, cluster)


def _without(
    draft: Draft, side: Sequence[Instance], ends: Set[str], reason: str, cluster: ClusterView
) -> Steps[list[Instance]]:
    """Stop the instances with these uids; return the others and the stopping ones."""
    left = []
    for piece in pieces(side, FEW):
        for each in piece:
            if each.meta.uid not in ends:
                left.append(each)
            elif not replicas.lose(draft, each, reason, cluster.now):
                left.append(each.stopping(reason))
        yield WRITTEN * len(piece)
    return left


def _worst(
    members: Sequence[Instance], most: int, rank: Callable[[Instance], tuple[object, ...]]
) -> Steps[list[Instance]]:
    """Return the instances beyond the `most` most valuable ones."""
    if len(members) <= most:
        return []
    by_worth = yield from ordered(members, rank)
    return by_worth[most:]


def _move(
    draft: Draft, workload: Workload, name: str, sides: _Sides, leaving: Leaving, step: Step, cluster: ClusterView
) -> Steps[set[str]]:
    """Plan the moves of the group; return the uids that the update leaves alone. An old instance that must leave its
    node is not moved if the update replaces it anyway."""
    members = [*sides.new, *sides.old]
    followed = {each.spec.instead_of for each in members}
    rest = {uid: each for uid, each in leaving.items() if uid in followed or not _updated_instead(each, step)}
    start = len(draft.writes)
    moving = yield from plan_moves(draft, workload, name, rest, members, step.target, sides.free, cluster)
    written = {write.key: write for write in draft.writes[start:]}
    sides.new, sides.old = (_as_written(side, written) for side in (sides.new, sides.old))
    return moving


def _updated_instead(each: Instance, step: Step) -> bool:
    order = each.spec.move
    anywhere = order is not None and not order.to and order.first != "stop"
    return anywhere and not step.held and each.spec.release != step.target.meta.name


def _as_written(side: Sequence[Instance], written: Mapping[Key, Write]) -> list[Instance]:
    left = []
    for each in side:
        write = written.get(each.key)
        if write is None:
            left.append(each)
        elif isinstance(write, Put) and isinstance(write.value, Instance):
            left.append(write.value)
    return left


def _stop_old(
    draft: Draft,
    sides: _Sides,
    group: Group,
    healthy: int,
    least: int,
    moving: Set[str],
    step: Step,
    cluster: ClusterView,
) -> Steps[None]:
    """Stop old instances within the budget, not serving ones first. Old instances that do not serve, of a release
    that was never healthy, are stopped regardless of the budget."""
    serving, recovering, going = list[Instance](), list[Instance](), list[Instance]()
    for piece in pieces(sides.old):
        for each in piece:
            if each.spec.stop is not None or each.meta.uid in moving:
                continue
            if each.phase is Phase.LOST:
                # A lost instance may still run: it is given up only when enough new ones are healthy.
                going += [each] if healthy >= group.count else []
            elif replicas.serving(each):
                serving.append(each)
            else:
                (recovering if each.spec.release in step.proven else going).append(each)
        yield 5 * len(piece)
    room = max(0, len(serving) + len(recovering) + healthy - least)
    idle = yield from ordered(recovering, replicas.rank)
    idle = idle[: -room - 1 : -1]  # the last first
    room = min(room - len(idle), len(serving) + healthy - least)
    going += idle
    if room > 0:
        first = yield from ordered(serving, lambda each: (each.spec.move is None, each.spec.index))
        going += first[:room]
    sides.over += [each for each in going if not each.spec.node]  # their names can be used immediately
    unplaced = {each.meta.uid for each in going if not each.spec.node}
    placed = {each.meta.uid for each in going if each.spec.node}
    left = yield from chosen(sides.old, lambda piece: [each for each in piece if each.meta.uid not in unplaced])
    sides.old = yield from _without(draft, left, placed, replicas.updated_to(step.target), cluster)


def _make_good(
    draft: Draft, sides: _Sides, group: Group, healthy: int, least: int, most: int, step: Step, cluster: ClusterView
) -> Steps[None]:
    """Replace old instances that ended by themselves with their own release, while they are needed."""
    lacking = least - healthy - sides.staying
    if step.held:
        lacking = max(lacking, group.count - (sides.staying if step.canaries else sides.used))
    lacking = min(lacking, most - sides.used)
    over, sides.over = sides.over, []
    for piece in pieces(over, FEW):
        for each in piece:
            own = step.releases.get(each.spec.release)
            if lacking > 0 and own is not None and _ended_by_itself(each, step):
                lacking -= 1
                sides.back += 1
                replicas.renew(draft, each, group, own, cluster)
            else:
                sides.over.append(each)
        yield WRITTEN * len(piece)


def _ended_by_itself(each: Instance, step: Step) -> bool:
    unplaced = not replicas.ended(each) and each.phase is not Phase.LOST
    return not unplaced and not replicas.updated_away(each) and (step.held or each.spec.release in step.proven)


def _fill(
    draft: Draft,
    workload: Workload,
    name: str,
    sides: _Sides,
    count: int,
    release: Release,
) -> Steps[None]:
    """Create `count` instances of a release, first under the names of ended ones, then under new indices."""
    if count <= 0:
        return
    sides.coming += count
    reused = min(count, len(sides.over))
    for piece in pieces(sides.over[:reused], FEW):
        for each in piece:
            replicas.replace(draft, each, release)
        yield WRITTEN * len(piece)
    del sides.over[:reused]
    if count > reused:
        replicas.create_some(draft, workload, name, sides.free, count - reused, sides.used, release)
