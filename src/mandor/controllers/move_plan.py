"""Plan for moves: start a replacement first, then stop the old instance within the disruption budget."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from mandor.controllers import replicas
from mandor.controllers.draft import Draft
from mandor.controllers.replicas import ClusterView
from mandor.lib.steps import FEW, WRITTEN, Steps, chosen, pieces
from mandor.model.instance import Instance, InstanceSpec, Move, instance_name
from mandor.model.meta import Meta
from mandor.model.phase import Phase
from mandor.model.workload import Release, Workload
from mandor.placement.budgets import may_stop

MOVE_SECONDS = 300.0
"""Seconds until a move to a given node is cancelled if the replacement does not serve; `min_healthy` is added."""
AT_ONCE_PERCENT = 10
"""Share of a group that moves at the same time; at least one instance."""
AT_ONCE_MOST = 50


Leaving = Mapping[str, Instance]
"""Instances with an order to move, by uid."""


def find_leaving(members: Sequence[Instance]) -> Steps[Leaving]:
    found = yield from chosen(
        members, lambda piece: [each for each in piece if each.spec.move is not None and not replicas.ended(each)]
    )
    return {each.meta.uid: each for each in found}


def extra(leaving: Leaving, members: Sequence[Instance]) -> Steps[int]:
    """Return how many instances beyond the count are allowed: one for each replacement that exists."""
    pairs = yield from _pairs(leaving, members)
    return len(pairs)


def _pairs(leaving: Leaving, members: Sequence[Instance]) -> Steps[list[tuple[Instance, Instance]]]:
    """Return pairs of an instance that moves and its replacement."""
    if not leaving:
        return []
    replacements = yield from chosen(members, lambda piece: [each for each in piece if each.spec.instead_of in leaving])
    return [(leaving[replacement.spec.instead_of], replacement) for replacement in replacements]


def plan_moves(
    draft: Draft,
    workload: Workload,
    group: str,
    leaving: Leaving,
    members: Sequence[Instance],
    release: Release,
    free: Iterator[int],
    cluster: ClusterView,
) -> Steps[set[str]]:
    """Return the uids of moving instances, which the update leaves alone. `free` yields indices for replacements."""
    if not leaving:
        return set()
    pairs = yield from _pairs(leaving, members)
    moves = _Moves(draft, workload, group, len(members), release, free, cluster)
    yield from moves.look(members)
    busy: set[str] = set()
    for old, replacement in pairs:
        moves.follow(old, replacement)
        busy.add(old.meta.uid)
        if _order(old).to or not (replicas.ended(replacement) or replacement.phase is Phase.LOST):
            busy.add(replacement.meta.uid)  # otherwise the update replaces it like any other ended instance
    under_way = len(pairs)
    for each in _waiting(leaving, pairs):
        if moves.ends_first(each):
            moves.stop(each, _order(each).reason, young=moves.young)
        elif under_way < moves.at_once and (not under_way or not _order(each).to):
            under_way += moves.begin(each)
            busy.add(each.meta.uid)
    return busy


def _waiting(leaving: Leaving, pairs: Sequence[tuple[Instance, Instance]]) -> list[Instance]:
    """Return the instances without a replacement yet, oldest order first."""
    followed = {old.meta.uid for old, _ in pairs}
    found = [each for uid, each in leaving.items() if each.spec.stop is None and uid not in followed]
    return sorted(found, key=lambda each: (_order(each).at, each.spec.index))


def _order(instance: Instance) -> Move:
    assert instance.spec.move is not None
    return instance.spec.move


@dataclass
class _Moves:
    """The moves of one group in one plan; they share the disruption budget."""

    draft: Draft
    workload: Workload
    group: str
    members: int
    """Number of instances of the group."""
    release: Release
    free: Iterator[int]
    cluster: ClusterView
    taken: int = 0
    serving: int = 0
    current: int = 0
    """Serving instances of the target release."""
    young: int = 0
    """Serving instances that are not healthy for `min_healthy` yet."""

    def look(self, members: Sequence[Instance]) -> Steps[None]:
        newest = self.release.meta.name
        for piece in pieces(members, FEW):
            serving = [each for each in piece if replicas.serving(each)]
            self.serving += len(serving)
            self.current += sum(each.spec.release == newest for each in serving)
            self.young += sum(not self._healthy(each) for each in serving)
            yield WRITTEN * len(piece)

    @property
    def at_once(self) -> int:
        count = self.workload.spec.groups[self.group].count
        return min(AT_ONCE_MOST, max(1, count * AT_ONCE_PERCENT // 100))

    def _healthy(self, each: Instance) -> bool:
        return replicas.healthy(self.draft, each, self.workload.spec.groups[self.group], self.cluster)

    @property
    def _patience(self) -> float:
        return MOVE_SECONDS + self.workload.spec.groups[self.group].update.min_healthy

    def stop(self, each: Instance, reason: str, *, young: int = 0) -> bool:
        """Stop the instance if the budget allows it; return whether it did. An instance that does not serve costs no
        budget; `young` serving instances are not counted as available."""
        if replicas.serving(each):
            left = may_stop(self.workload.spec, self.group, self.serving)
            if left is not None and left - young <= self.taken:
                return False
            self.taken += 1
        replicas.lose(self.draft, each, reason, self.cluster.now)
        return True

    def ends_first(self, each: Instance) -> bool:
        """Return whether the instance stops before its replacement starts."""
        return not _order(each).to and (_order(each).first == "stop" or not replicas.serving(each))

    def begin(self, each: Instance) -> int:
        """Create the replacement, or cancel the move; return the number of instances created."""
        order = _order(each)
        if order.to and not self._whole:
            self._cancel(each, "not all instances of the group serve")
            return 0
        self._create_replacement(each, pin=order.to)
        return 1

    @property
    def _whole(self) -> bool:
        """Whether all instances serve with the target release; only then an instance moves to a better node."""
        return self.current == self.members == self.workload.spec.groups[self.group].count

    def _create_replacement(self, each: Instance, *, pin: str) -> None:
        """Create an instance of the same release: a move is no update."""
        made = InstanceSpec(
            workload=each.spec.workload,
            group=each.spec.group,
            release=each.spec.release,
            index=next(self.free),
            pin=pin,
            instead_of=each.meta.uid,
        )
        name = instance_name(made.workload, made.group, made.index)
        self.draft.put(Instance(meta=Meta(name=name, namespace=each.meta.namespace), spec=made))

    def follow(self, leaving: Instance, replacement: Instance) -> None:
        if leaving.spec.stop is not None:
            return
        order = _order(leaving)
        if self._healthy(replacement) and not (order.to and _no_improvement(leaving, replacement)):
            if self.stop(leaving, f"moved to {replacement.spec.node}: {order.reason}"):
                self.draft.note(leaving, "Moved", f"replaced by {replacement.meta.name} on {replacement.spec.node}")
        elif not order.to:
            if not replicas.serving(leaving):
                self.stop(leaving, order.reason)
        elif why := self._cancel_reason(leaving, replacement):
            self._cancel(leaving, why)
        else:
            self.draft.again(max(0.0, order.at + self._patience - self.cluster.now))

    def _cancel_reason(self, leaving: Instance, replacement: Instance) -> str:
        order = _order(leaving)
        if leaving.spec.release != self.release.meta.name:
            return f"{self.release.meta.name} is wanted now"
        if not replicas.serving(leaving):
            return "it no longer serves"
        if replicas.ended(replacement) or replacement.phase is Phase.LOST or replacement.spec.stop is not None:
            return f"{replacement.meta.name} ended on {replacement.spec.node or order.to}"
        if replacement.spec.node and (why := _no_improvement(leaving, replacement)):
            return why
        if self.cluster.now >= order.at + self._patience:
            return f"{replacement.meta.name} did not serve in time"
        return ""

    def _cancel(self, each: Instance, why: str) -> None:
        """Cancel the move; the plan then stops the less valuable of the two instances."""
        self.draft.put(each.changed(spec=replace(each.spec, move=None)))
        self.draft.note(each, "MoveCancelled", f"move cancelled: {why}", warning=True)


def _no_improvement(leaving: Instance, replacement: Instance) -> str:
    """Return why the move would bring no improvement; empty: it would."""
    if replacement.spec.relaxed:
        return f"{replacement.meta.name} could not keep its rules either"
    same_form = replacement.spec.variant and replacement.spec.variant >= leaving.spec.variant
    return f"{replacement.meta.name} has no better form either" if same_form and not leaving.spec.relaxed else ""
