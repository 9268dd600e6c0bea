"""Plan for instances that move: another one first, then the old one stops, as far as the group's budget lets it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from mandor.controllers import slot
from mandor.controllers.draft import Draft
from mandor.controllers.slot import World
from mandor.lib.steps import FEW, WRITTEN, Steps, chosen, pieces
from mandor.model.instance import Instance, InstanceSpec, Move, instance_name
from mandor.model.meta import Meta
from mandor.model.phase import Phase
from mandor.model.workload import Release, Workload
from mandor.placement.budgets import may_stop

MOVE_SECONDS = 300.0
"""Whoever was sent to a certain node and does not serve by then was sent in vain; `min_healthy` comes on top."""
AT_ONCE_PERCENT = 10
"""So much of a group is on its way at the same time when it has to leave; at least one."""
AT_ONCE_MOST = 50


Leaving = Mapping[str, Instance]
"""Those who are to leave their place, by uid."""


def who_leave(members: Sequence[Instance]) -> Steps[Leaving]:
    found = yield from chosen(
        members, lambda piece: [each for each in piece if each.spec.move is not None and not slot.ended(each)]
    )
    return {each.meta.uid: each for each in found}


def extra(leaving: Leaving, members: Sequence[Instance]) -> Steps[int]:
    """So many more than wanted there may be: both ends of a move."""
    pairs = yield from _pairs(leaving, members)
    return len(pairs)


def _pairs(leaving: Leaving, members: Sequence[Instance]) -> Steps[list[tuple[Instance, Instance]]]:
    """Who leaves, and who takes his place."""
    if not leaving:
        return []
    heirs = yield from chosen(members, lambda piece: [each for each in piece if each.spec.instead_of in leaving])
    return [(leaving[heir.spec.instead_of], heir) for heir in heirs]


def plan_moves(
    draft: Draft,
    workload: Workload,
    group: str,
    leaving: Leaving,
    members: Sequence[Instance],
    release: Release,
    free: Iterator[int],
    world: World,
) -> Steps[set[str]]:
    """The uids of those who are on the move: nobody else replaces or updates them meanwhile. `free`: indices for new
    ones, from which each is taken once."""
    if not leaving:
        return set()
    pairs = yield from _pairs(leaving, members)
    moves = _Moves(draft, workload, group, len(members), release, free, world)
    yield from moves.look(members)
    busy: set[str] = set()
    for old, heir in pairs:
        moves.follow(old, heir)
        busy.add(old.meta.uid)
        if _order(old).to or not (slot.ended(heir) or heir.phase is Phase.LOST):
            busy.add(heir.meta.uid)  # else another one is made in its place, as in that of any other
    under_way = len(pairs)
    for each in _waiting(leaving, pairs):
        if moves.ends_first(each):
            moves.stop(each, _order(each).reason, young=moves.young)
        elif under_way < moves.at_once and (not under_way or not _order(each).to):
            under_way += moves.begin(each)
            busy.add(each.meta.uid)
    return busy


def _waiting(leaving: Leaving, pairs: Sequence[tuple[Instance, Instance]]) -> list[Instance]:
    """Those for whom there is nobody else yet: the oldest order first."""
    followed = {old.meta.uid for old, _ in pairs}
    found = [each for uid, each in leaving.items() if each.spec.stop is None and uid not in followed]
    return sorted(found, key=lambda each: (_order(each).at, each.spec.index))


def _order(instance: Instance) -> Move:
    assert instance.spec.move is not None
    return instance.spec.move


@dataclass
class _Moves:
    """The moves of one group, in one plan: what one of them takes of the budget, the next one does not have."""

    draft: Draft
    workload: Workload
    group: str
    members: int
    """So many are of the group."""
    release: Release
    free: Iterator[int]
    world: World
    taken: int = 0
    serving: int = 0
    current: int = 0
    """So many of those that serve are of the release."""
    young: int = 0
    """So many serve, and have not done so for long enough to be counted on."""

    def look(self, members: Sequence[Instance]) -> Steps[None]:
        newest = self.release.meta.name
        for piece in pieces(members, FEW):
            serving = [each for each in piece if slot.serving(each)]
            self.serving += len(serving)
            self.current += sum(each.spec.release == newest for each in serving)
            self.young += sum(not self._healthy(each) for each in serving)
            yield WRITTEN * len(piece)

    @property
    def at_once(self) -> int:
        count = self.workload.spec.groups[self.group].count
        return min(AT_ONCE_MOST, max(1, count * AT_ONCE_PERCENT // 100))

    def _healthy(self, each: Instance) -> bool:
        return slot.healthy(self.draft, each, self.workload.spec.groups[self.group], self.world)

    @property
    def _patience(self) -> float:
        return MOVE_SECONDS + self.workload.spec.groups[self.group].update.min_healthy

    def stop(self, each: Instance, reason: str, *, young: int = 0) -> bool:
        """If the budget lets it go; one that does not serve costs nothing. `young`: so many do not count for it."""
        if slot.serving(each):
            left = may_stop(self.workload.spec, self.group, self.serving)
            if left is not None and left - young <= self.taken:
                return False
            self.taken += 1
        slot.lose(self.draft, each, reason, self.world.now)
        return True

    def ends_first(self, each: Instance) -> bool:
        """It has to go, and nobody can or need be there before."""
        return not _order(each).to and (_order(each).first == "stop" or not slot.serving(each))

    def begin(self, each: Instance) -> int:
        """How many more there are for it: one, or none."""
        order = _order(each)
        if order.to and not self._whole:
            self._call_off(each, "its group is not whole")
            return 0
        self._heir(each, pin=order.to)
        return 1

    @property
    def _whole(self) -> bool:
        """Only then one leaves for a better place."""
        return self.current == self.members == self.workload.spec.groups[self.group].count

    def _heir(self, each: Instance, *, pin: str) -> None:
        """Of the same release: a move is no update."""
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

    def follow(self, leaving: Instance, heir: Instance) -> None:
        if leaving.spec.stop is not None:
            return
        order = _order(leaving)
        if self._healthy(heir) and not (order.to and _no_better(leaving, heir)):
            if self.stop(leaving, f"moved to {heir.spec.node}: {order.reason}"):
                self.draft.note(leaving, "Moved", f"{heir.meta.name} has taken its place on {heir.spec.node}")
        elif not order.to:
            if not slot.serving(leaving):
                self.stop(leaving, order.reason)
        elif why := self._in_vain(leaving, heir):
            self._call_off(leaving, why)
        else:
            self.draft.again(max(0.0, order.at + self._patience - self.world.now))

    def _in_vain(self, leaving: Instance, heir: Instance) -> str:
        order = _order(leaving)
        if leaving.spec.release != self.release.meta.name:
            return f"{self.release.meta.name} is wanted now"
        if not slot.serving(leaving):
            return "it does not serve any more itself"
        if slot.ended(heir) or heir.phase is Phase.LOST or heir.spec.stop is not None:
            return f"{heir.meta.name} ended on {heir.spec.node or order.to}"
        if heir.spec.node and (why := _no_better(leaving, heir)):
            return why
        if self.world.now >= order.at + self._patience:
            return f"{heir.meta.name} did not serve in time"
        return ""

    def _call_off(self, each: Instance, why: str) -> None:
        """There is one too many then, and the one that is worth least goes."""
        self.draft.put(each.changed(spec=replace(each.spec, move=None)))
        self.draft.note(each, "MoveCalledOff", f"it stays where it is: {why}", warning=True)


def _no_better(leaving: Instance, heir: Instance) -> str:
    """Why nothing is won; empty: something is."""
    if heir.spec.relaxed:
        return f"{heir.meta.name} could not keep its rules either"
    same_form = heir.spec.variant and heir.spec.variant >= leaving.spec.variant
    return f"{heir.meta.name} has no better form either" if same_form and not leaving.spec.relaxed else ""
