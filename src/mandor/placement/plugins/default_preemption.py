"""DefaultPreemption: if no node fits, stops instances of lower priority and holds their room for the request."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Annotated

import numpy as np
from msgspec import Meta as Bounds
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from mandor.lib.steps import TURN, WRITTEN, Steps
from mandor.placement.framework.column import Mask
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.dry_run import DryRun
from mandor.placement.framework.incremental import SteppedPostFilter
from mandor.placement.framework.occupancy import AllocationTerms, GroupAllocations, PlacedInstance, PriorityUsage, Rank
from mandor.placement.framework.points import CAPACITY_EVENTS, Agreed, Nomination, Offer
from mandor.placement.framework.replayable_steps import ReplayableSteps
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.framework.snapshot import Amounts
from mandor.placement.framework.victim_selection import (
    NO_VICTIMS,
    PreemptionCandidate,
    agreed,
    candidate,
    goes_anyway,
    may_go,
)

TIES = 10
"""Number of equally cheap nodes whose victims are computed."""
STARTED_MOST = 4
"""Number of the best candidates whose cascade is simulated before the preemption is given up."""
VICTIMS_MOST = 64
"""Victims of one preemption; they are stopped in one commit."""
DEPTH_MOST = 4
"""Depth of a cascade: victims that preempt others, which preempt others again."""
CASCADE_MOST = 128
"""Victims of a whole cascade."""
PLAYED = 2 * TURN
"""Work units of a simulation that run in one step; the next step repeats all changes before it."""
_FEW = 64
_NEVER = np.iinfo(np.int64).max

Bound = tuple[int, int]
Percent = Annotated[int, Bounds(ge=0, le=100)]


class DefaultPreemptionArgs(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    min_candidate_nodes_percentage: Percent = 10
    """Percentage of nodes whose victims are computed at most;"""
    min_candidate_nodes_absolute: Annotated[int, Bounds(ge=1, le=100_000)] = 100
    """or this number of nodes, if that is more."""


class DefaultPreemption(SteppedPostFilter):
    """Chooses victims as Kubernetes does: fewest violated budgets, lowest highest priority, smallest sum of priorities,
    fewest victims, youngest victims. The first two are compared over all nodes, the others among the cheapest nodes."""

    name = "DefaultPreemption"
    Args = DefaultPreemptionArgs
    retry_on = CAPACITY_EVENTS
    by_class = True

    def __init__(self, args: DefaultPreemptionArgs | None = None) -> None:
        self._args = args or DefaultPreemptionArgs()

    def making_room(self, state: CycleState, dry_run: DryRun) -> Steps[Nomination | None]:
        if not _can(dry_run):
            return None
        yield 0  # From here on, it takes longer than other decisions.
        known = yield from self._candidates(dry_run)
        elsewhere = state.find(self.name, Agreed)
        if elsewhere is not None and known and known[0].victims:
            wanted = (agreed(dry_run, each) for each in elsewhere.offers)
            known = sorted((each for each in wanted if each is not None), key=_cost)
        for found in known[:STARTED_MOST]:
            if len(found.victims) > VICTIMS_MOST:
                continue
            ends_well = yield from self._ends_well(dry_run, found)
            if ends_well:
                return Nomination(found.node, tuple(each.key for each in found.victims))
        return None

    def offers(self, dry_run: DryRun) -> Iterator[Offer]:
        if not _can(dry_run):
            return
        slots = islice((slot for _, slot in _promising(dry_run)), self._most(dry_run))
        for found in (candidate(dry_run, slot) for slot in slots):
            if found is not None and found.victims:
                placed_instances = dry_run.occupancy.placed_instances(found.node)
                others = tuple(each for each in placed_instances if each not in found.victims and may_go(each, dry_run))
                yield Offer(found.node, found.victims, found.violations, others)

    def _most(self, dry_run: DryRun) -> int:
        share = len(dry_run.nodes) * self._args.min_candidate_nodes_percentage // 100
        return max(share, self._args.min_candidate_nodes_absolute)

    def _candidates(self, dry_run: DryRun, ties: int = TIES) -> Steps[list[PreemptionCandidate]]:
        """Return candidates, the cheapest first."""
        most = self._most(dry_run)
        found: list[PreemptionCandidate] = []
        best: Bound = (_NEVER, _NEVER)
        for seen, (bound, slot) in enumerate(_promising(dry_run)):
            if seen >= most or bound > best or (bound == best and len(found) >= ties):
                break
            each = candidate(dry_run, slot)
            if each is not None:
                found.append(each)
                best = min(best, each.bound)
            yield _looks(dry_run, slot) + (0 if seen else _look_at_all(dry_run))
        return sorted(found, key=_cost)

    def _ends_well(self, dry_run: DryRun, first: PreemptionCandidate) -> Steps[bool]:
        """Return whether the simulated cascade ends with a placement; it runs in steps that repeat earlier changes."""
        scratch = ReplayableSteps()
        steps = self._played(dry_run, first, scratch)
        while True:
            looks = 0
            with dry_run.trial():
                scratch.again()
                try:
                    while looks < PLAYED:
                        looks += next(steps)
                except StopIteration as end:
                    ended: bool = end.value
                    return ended
            yield looks

    def _played(self, dry_run: DryRun, first: PreemptionCandidate, scratch: ReplayableSteps) -> Steps[bool]:
        """Simulate the cascade: each victim is placed elsewhere, preempts others or waits. Return whether it ends
        within the limits and the request still fits."""
        _carry_out(dry_run, first, scratch)
        displaced = deque((each, 1) for each in first.victims)
        count = len(displaced)
        waiting: list[PlacedInstance] = []
        while displaced:
            placed_instance, depth = displaced.popleft()
            if any(_alike(placed_instance, each) for each in waiting):
                continue
            theirs = dry_run.of(_ask(placed_instance))
            node = theirs.place()
            yield _look_at_all(dry_run)
            if node:
                scratch.do(partial(theirs.come, node, placed_instance))
                continue
            best = yield from self._best(theirs)
            if best is None:
                waiting.append(placed_instance)
                continue
            count += len(best.victims)
            if depth == DEPTH_MOST or count > CASCADE_MOST:
                return False
            _carry_out(theirs, best, scratch)
            displaced.extend((each, depth + 1) for each in best.victims)
        if count == len(first.victims):
            return True
        dry_run.drop(dry_run.request.key)
        return dry_run.of(dry_run.request).fits(first.slot)

    def _best(self, dry_run: DryRun) -> Steps[PreemptionCandidate | None]:
        if not _can(dry_run):
            return None
        found = yield from self._candidates(dry_run, ties=1)
        return next(iter(found), None)


def _looks(dry_run: DryRun, slot: int) -> int:
    """Return the work units to find the victims of a node; more if all filters run for each removed instance."""
    there = int(dry_run.nodes.instances[slot])
    return there * WRITTEN * (2 if dry_run.by_amounts else 12)


def _look_at_all(dry_run: DryRun) -> int:
    """Return the work units of an operation on all nodes."""
    return 10 * WRITTEN + len(dry_run.nodes) // 10


def _can(dry_run: DryRun) -> bool:
    """Return whether the request may preempt and there are instances of lower priority."""
    lowest = dry_run.occupancy.lowest()
    return dry_run.request.preempts and lowest is not None and lowest < dry_run.request.priority


def _promising(dry_run: DryRun) -> Iterator[tuple[Bound, int]]:
    """Yield the nodes where the request could fit by amounts, with a lower bound of the cost; the cheapest first."""
    occupancy = dry_run.occupancy
    if not len(dry_run.nodes):
        return
    anyway = _taken(dry_run)
    levels = occupancy.levels(dry_run.request.priority)
    tight = occupancy.tight()
    # The smallest shortage first, then by tie break.
    rank = dry_run.nodes.order() * (2.0**-32 * 1e-6) + _shortage(dry_run, anyway)
    left = dry_run.possible.copy()
    for broken, of in enumerate((_without(dry_run, levels, tight), levels) if tight else (levels,)):
        for value, found in _level_by_level(dry_run, anyway, of, left):
            for slot in _in_turn(np.where(found, rank, np.inf)):
                yield (broken, value), slot


def _level_by_level(
    dry_run: DryRun, anyway: Amounts | None, levels: Sequence[PriorityUsage], left: Mask
) -> Iterator[tuple[int, Mask]]:
    """Yield priorities with the nodes where enough is free once all instances up to that priority are removed. Nodes
    are removed from `left` as they are found."""
    nodes = dry_run.nodes
    needs = [(nodes.stored_row(name), need) for name, need in dry_run.needs.items()]
    free = [nodes.free[nodes.rows[name]] + 0 for name in dry_run.needs]
    if anyway is not None:
        for (row, _), amounts in zip(needs, free, strict=True):
            amounts += anyway[row]
    gone = np.zeros(len(nodes), dtype=np.int64) if anyway is None else anyway[-1].copy()
    steps = levels if anyway is None else (PriorityUsage(NO_VICTIMS, np.zeros_like(anyway)), *levels)
    for value, taken in steps:
        gone += taken[-1]
        found = left & (gone > 0)
        for (row, need), amounts in zip(needs, free, strict=True):
            amounts += taken[row]
            found &= amounts >= need
        left ^= found
        yield value, found


def _taken(dry_run: DryRun) -> Amounts | None:
    """Return what instances that end anyway take; None: there are none. If all stopping instances of a node end in
    time, they are not checked one by one."""
    nodes, occupancy = dry_run.nodes, dry_run.occupancy
    going, lowest = occupancy.going(), occupancy.lowest_held()
    held = occupancy.held() if lowest is not None and lowest < dry_run.request.priority else ()
    if not held and not going.taken[-1].any():
        return None
    late = going.latest > dry_run.soon
    taken = np.where(late, 0, going.taken)
    where = {nodes.nodes[slot].meta.name for slot in late.nonzero()[0].tolist()}
    gone = occupancy.stopping(by=dry_run.soon, among=where) if where else ()
    for node, placed_instance in (*gone, *held):
        if node in nodes.slots and goes_anyway(placed_instance, dry_run):
            _add(taken, dry_run, placed_instance.shape, [nodes.slots[node]], [1])
    return taken


def _without(
    dry_run: DryRun, levels: Sequence[PriorityUsage], placed_instances: Iterable[GroupAllocations]
) -> list[PriorityUsage]:
    copies = {level.priority: level.taken.copy() for level in levels}
    slots = dry_run.nodes.slots
    for each in placed_instances:
        # If levels hold several priorities, use the highest level that is not above this priority.
        level = max((priority for priority in copies if priority <= each.priority), default=None)
        if level is not None and each.priority < dry_run.request.priority:
            at = [slots[node] for node in each.counts]
            _add(copies[level], dry_run, each.shape, at, [-count for count in each.counts.values()])
    return [PriorityUsage(priority, taken) for priority, taken in copies.items()]


def _add(taken: Amounts, dry_run: DryRun, shape: Shape, slots: Sequence[int], counts: Sequence[int]) -> None:
    """Add a number of instances of a shape to each of these distinct slots."""
    many = np.array(counts, dtype=np.int64)
    for resource, amount in shape.wanted:
        taken[dry_run.nodes.stored_row(resource), slots] += amount * many
    taken[-1, slots] += many


def _shortage(dry_run: DryRun, anyway: Amounts | None) -> NDArray[np.float64]:
    """Return the missing amounts of each node as shares of the request; nodes with less need fewer victims."""
    nodes = dry_run.nodes
    short = np.zeros(len(nodes), dtype=np.float64)
    for resource, amount in dry_run.request.shape.wanted:
        row = nodes.rows.get(resource)
        if row is not None:
            missing = amount - nodes.free[row]
            if anyway is not None:
                missing -= anyway[nodes.stored_row(resource)]
            np.maximum(missing, 0, out=missing)
            short += missing / amount
    return short


def _in_turn(rank: NDArray[np.float64]) -> Iterator[int]:
    """Yield slots by rank, the lowest first, without infinite ranks. Sorted in parts, because few are used."""
    best = int(rank.argmin())
    if rank[best] == np.inf:
        return
    yield best
    rank[best] = np.inf
    few = min(_FEW, len(rank))
    first = np.argpartition(rank, few - 1)[:few]
    first = first[np.argsort(rank[first])]
    yield from first[rank[first] < np.inf].tolist()
    rank[first] = np.inf
    rest = (rank < np.inf).nonzero()[0]
    yield from rest[np.argsort(rank[rest])].tolist()


def _carry_out(dry_run: DryRun, chosen: PreemptionCandidate, scratch: ReplayableSteps) -> None:
    placed_instances = dry_run.occupancy.placed_instances(chosen.node)
    gone = [each for each in placed_instances if goes_anyway(each, dry_run)]
    scratch.do(partial(dry_run.leave, [*gone, *chosen.victims]))
    request = dry_run.request
    rank = Rank(request.priority, request.preempts, profile=request.profile)
    scratch.do(
        partial(
            dry_run.come,
            chosen.node,
            PlacedInstance(request.key, request.shape, request.identity, AllocationTerms(rank)),
        )
    )


def _ask(placed_instance: PlacedInstance) -> PlacementRequest:
    rank = placed_instance.terms.rank
    request = PlacementRequest(
        placed_instance.key,
        placed_instance.shape,
        rank.priority,
        rank.profile,
        identity=placed_instance.identity,
        preempts=rank.preempts,
    )
    # All soft rules are relaxed: the simulation checks whether the instance fits anywhere.
    return replace(request, dropped=len(placed_instance.shape.should), lenient=True)


def _alike(one: PlacedInstance, other: PlacedInstance) -> bool:
    return one.shape is other.shape and one.identity == other.identity and one.terms.rank == other.terms.rank


def _cost(each: PreemptionCandidate) -> tuple[int, int, int, int, float, int]:
    return each.cost
