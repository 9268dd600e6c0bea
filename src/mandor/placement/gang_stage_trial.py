"""The trial of one stage of a gang's decision: members are decided in order, each with those before it counted."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
from msgspec import structs

from mandor.lib.steps import at_once
from mandor.model.meta import Key
from mandor.placement.cycle import Cycle, find_plain, going_soon, retry_on
from mandor.placement.decision import Decision, Moment
from mandor.placement.fast import FAST
from mandor.placement.framework.column import Mask
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.dry_run import OVERDUE_SECONDS, DryRun
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.occupancy import AllocationTerms, PlacedInstance, Rank
from mandor.placement.framework.points import Nomination
from mandor.placement.framework.post_filters import ProfileFilters, run_post_filters
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.replayable_steps import ReplayableSteps, Step
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.runtime import Verdict
from mandor.placement.framework.snapshot import Amounts, Snapshot
from mandor.placement.framework.victim_selection import by_budget, goes_anyway
from mandor.placement.framework.watch import Watch
from mandor.placement.gang_domains import ClassPlaces, Domain, common_facts, domains, follows, places_by_node
from mandor.placement.gang_stage import Stage, StageKind
from mandor.placement.table import Table

T = TypeVar("T")
Guard = Callable[[Callable[[], T]], T]

NO_KEY = Key("", "", "")
PREEMPTION_COST = 16
"""Cost of a preemption, in ordinary decisions."""
CHECKS = 4
"""Checks whether a victim is needless that cost as much as an ordinary decision."""
VICTIMS_MOST = 4096
"""Instances that may be preempted for one gang; this limits the work of one decision."""
VICTIMS_OF_NODE_MOST = 64
"""Instances that may be preempted on one node: they are written in one commit."""


@dataclass(frozen=True, slots=True)
class GangContext:
    """The inputs of a gang's decision, shared by its stages."""

    profile: Profile
    table: Table
    least: int
    """The number of members that have to fit."""
    consulted: Mapping[Key, Mapping[str, object]]
    watch: Watch
    guard: Guard  # type: ignore[type-arg]
    moment: Moment
    held: Mapping[Key, str]
    """Nodes where room is held for members, which may use it."""
    beside: tuple[PlacementRequest, ...] = ()
    """Pending members of other gangs that have to be in the domain of this gang. A domain with room for them, too, is
    preferred."""


@dataclass(frozen=True, slots=True)
class Victim:
    """An instance to be preempted."""

    node: str
    placed_instance: PlacedInstance


class DomainResult(NamedTuple):
    """The members placed in one domain, and the first that did not fit."""

    domain: Domain
    placed: list[Decision]
    refused: Decision | None


class StageTrial:
    """Decides members step by step; between two steps the table is unchanged."""

    def __init__(self, context: GangContext, stage: Stage, start: "StageTrial | None" = None) -> None:
        """`start`: a finished FIND trial of the same step; its placed members are kept, unless it searched domains."""
        if start is not None and start.domain is not None:
            start = None
        self.stage = stage
        self.domain: Domain | None = None
        """The domain of the members, if all of them have to be in one."""
        self._domains: deque[Domain] = deque()
        """Domains that are tried if the members do not fit in the current one."""
        self._best: DomainResult | None = None
        """The domain with the most members so far: not enough, or without room for the gangs beside this one."""
        self.placed: list[Decision] = list(start.placed) if start is not None else []
        self.refused: Decision | None = None
        """The first member that did not fit."""
        self.victims: dict[Key, Victim] = {}
        self.going: dict[str, list[Key]] = {}
        """Stopping instances that the stage waits for, by node."""
        self._context = context
        self._table = context.table
        there = {each.key for each in self.placed}
        self._todo = deque(request for request in stage.relaxation.requests if request.key not in there)
        self._identities: set[Identity] = set()
        """Identities of the placed members."""
        self._at_start: Sequence[Step] = ()
        """The changes of the stage itself, before any member was placed."""
        self._refused_classes: dict[PlacementRequest, None] = {}
        """Requests refused since the last placed member, which hold for all members of a class."""
        self._scratch = ReplayableSteps(start.scratch.steps if start is not None else ())
        self._prepared = False
        self._sparable: deque[Key] | None = None
        """Victims that may turn out to be needless, in the order of the checks; None: not all members are decided."""

    @property
    def scratch(self) -> ReplayableSteps:
        return self._scratch

    @property
    def enough(self) -> bool:
        return len(self.placed) >= self._context.least

    @property
    def _decided(self) -> bool:
        """Return whether no further member is decided."""
        if self.stage.kind is StageKind.FIND:
            return not self._todo
        return not self._todo or self.enough or len(self.placed) + len(self._todo) < self._context.least

    def step(self, most: int) -> bool:
        """Decide up to `most` members, fewer with preemptions; return whether the stage is over.

        Once all are decided, the victims that may turn out to be needless are checked."""
        with self._table.trial():
            for key in self._context.held:
                self._table.drop_allocation(key)
            self._scratch.again()
            if not self._prepared:
                self._prepare()
                self._search_domains()
            while most > 0 and not self._decided:
                most -= self._decide(self._todo.popleft())
            if self._decided:
                self._spare_some(most * CHECKS)
            if self.domain is not None and self._decided and not self._sparable and not self._whole:
                return self._end_domain(self.domain)
        return self._decided and not self._sparable

    @property
    def _agreed(self) -> bool:
        """Return whether a plugin agreed to the victims with a service outside; the choice is final then."""
        return any(each.agrees_to_victims for each in self._context.profile.consults)

    def _prepare(self) -> None:
        """Remove the instances that the stage assumes to be gone, and protect the spared ones."""
        self._prepared = True
        occupancy = self._table.allocation_state
        if self.stage.kind is StageKind.WAIT:
            self._remove(going_soon(occupancy, self._context.moment))
        elif self.stage.kind is StageKind.HELD:
            late = self._context.moment.now - OVERDUE_SECONDS
            where = set(self._context.held.values())
            self._remove(each for each in occupancy.stopping(among=where) if (each[1].terms.until or 0.0) >= late)
        for key in sorted(self.stage.spared):
            allocation = self._table.allocations[key]
            terms = structs.replace(allocation.terms, rank=replace(allocation.terms.rank, spared=True))
            self._scratch.do(
                partial(self._table.set_allocation, key, allocation.node, allocation.shape, allocation.identity, terms)
            )

    # Domains.

    def _search_domains(self) -> None:
        """Find the domains to try, if rules of the members demand a common one."""
        requests, nodes, context = self.stage.relaxation.requests, self._table.snapshot(), self._context
        facts = common_facts(requests, nodes) if self.stage.kind is not StageKind.HELD else ()
        if not facts:
            return
        preempts = self.stage.kind is StageKind.PREEMPT
        classes, beside = _by_class(requests), _by_class(() if preempts else context.beside)
        with self._table.trial():
            self._drop_lower_held(max(each.priority for each in requests))
            places = [self._places(each, preempts=preempts) for each in (*classes.values(), *beside.values())]
            now = [self._places(each, preempts=False) for each in classes.values()] if preempts else None
            self._domains.extend(
                domains(facts, nodes, context.least, places[: len(classes)], places[len(classes) :], now)
            )
        self._at_start = self._scratch.steps
        self.domain = self._domains.popleft() if self._domains else None

    def _drop_lower_held(self, priority: int) -> None:
        """Free the room that is held for pending instances of lower priority, which members may use."""
        for _, each in self._table.allocation_state.held():
            if each.priority < priority:
                self._table.drop_allocation(each.key)

    def _places(self, members: Sequence[PlacementRequest], *, preempts: bool) -> ClassPlaces:
        """Count the places of equal members on each node. `preempts`: instances of lower priority are gone."""
        request, nodes = members[0], self._table.snapshot()
        gone: list[Amounts] = []
        if preempts and request.preempts:
            occupancy = self._table.allocation_state
            gone = [occupancy.going().taken, *(each.taken for each in occupancy.levels(request.priority))]
        possible: Mask = self._context.guard(lambda: self._filters(request, nodes).possible)
        return ClassPlaces(len(members), np.where(possible, places_by_node(request, nodes, gone, len(members)), 0))

    @property
    def _whole(self) -> bool:
        """Return whether enough members fit in the domain, and all members of the gangs beside this one."""
        if not self.enough or self.stage.kind is not StageKind.FIND:
            return self.enough
        with self._table.trial():
            for request in self._context.beside:
                node = self._anywhere(request, "")
                if not node:
                    return False
                self._come(request, node)
        return True

    def _end_domain(self, domain: Domain) -> bool:
        """Start the trial in the next domain; after the last one, keep the result of the best. Return whether that was
        the last one."""
        if self._best is None or len(self.placed) > len(self._best.placed):
            self._best = DomainResult(domain, self.placed, self.refused)
        if not self._domains:
            self.domain, self.placed, self.refused = self._best
            return True
        self.domain, self.placed, self.refused = self._domains.popleft(), [], None
        self.victims, self._sparable = {}, None
        self._todo = deque(self.stage.relaxation.requests)
        self._refused_classes.clear()
        self._identities.clear()
        self._scratch = ReplayableSteps(self._at_start)
        return False

    def _within(self, request: PlacementRequest) -> Mask | None:
        """Return the nodes of the domain for the first member, and for members whose own rules do not keep them there;
        None: all nodes."""
        if self.domain is None or follows(request, self.domain.facts, self._identities):
            return None
        return self.domain.nodes

    def _remove(self, placed_instances: Iterable[tuple[str, PlacedInstance]]) -> None:
        for node, each in placed_instances:
            self.going.setdefault(node, []).append(each.key)
            self._scratch.do(partial(self._table.drop_allocation, each.key))

    def _decide(self, request: PlacementRequest) -> int:
        """Decide one member; return its cost in ordinary decisions."""
        context, kind = self._context, self.stage.kind
        held = context.held.get(request.key, "")
        class_request = structs.replace(request, key=NO_KEY)
        if class_request in self._refused_classes or (kind is StageKind.HELD and not held):
            return 1
        consulted, nodes = context.consulted.get(request.key), self._table.snapshot()
        within = self._within(request)
        cycle = Cycle(context.profile, nodes, context.watch, consulted, held, context.moment, within=within)
        state = cycle.state_of(request)
        node, displaces = context.guard(lambda: at_once(cycle.find(state, request)))
        if isinstance(node, str):
            if kind is not StageKind.HELD or node == held:
                self._place(request, node, state, displaces=displaces)
            return 1
        if kind is StageKind.PREEMPT and self._preempt(request, state, nodes):
            return PREEMPTION_COST
        if context.profile.by_class and not request.shape.volumes:
            self._refused_classes[class_request] = None
        if self.refused is None:
            self.refused = context.guard(lambda: _refusal(node, request, nodes))
        return PREEMPTION_COST if kind is StageKind.PREEMPT else 1

    def _place(self, request: PlacementRequest, node: str, state: CycleState, *, displaces: bool = False) -> None:
        self._refused_classes.clear()
        self._identities.add(request.identity)
        for where, each in self._table.allocation_state.held() if displaces else ():
            if where == node and each.priority < request.priority:
                self._scratch.do(partial(self._table.drop_allocation, each.key))
        relaxed = self.stage.relaxation.relaxed
        self.placed.append(
            Decision(request.key, node, relaxed=relaxed, request=request, state=state, displaces=displaces)
        )
        self._scratch.do(partial(self._come, request, node))

    def _come(self, request: PlacementRequest, node: str) -> None:
        terms = AllocationTerms(Rank(request.priority, request.preempts, profile=request.profile))
        self._table.set_allocation(request.key, node, request.shape, request.identity, terms)

    # Preemption.

    def _preempt(self, request: PlacementRequest, state: CycleState, nodes: Snapshot) -> bool:
        context = self._context
        filters, moment = self._filters(request, nodes, self._within(request)), context.moment
        dry_run = DryRun(request, nodes, filters, now=moment.now, patience=moment.patience)
        made: Nomination | None = context.guard(
            lambda: at_once(run_post_filters(context.profile, state, dry_run, context.watch))
        )
        if made is None or not self._within_limits(made):
            return False
        placed_instances = self._table.allocation_state.placed_instances(made.node)
        victims = [each for each in placed_instances if each.key in made.victims]
        if len(victims) < len(made.victims):
            return False
        for each in placed_instances:
            if each.key in made.victims or goes_anyway(each, dry_run):
                self._scratch.do(partial(self._table.drop_allocation, each.key))
        for each in victims:
            self.victims[each.key] = Victim(made.node, each)
            self._scratch.do(partial(self._table.allocation_state.spend, each.identity))
        self._place(request, made.node, state)
        return True

    def _filters(self, request: PlacementRequest, nodes: Snapshot, within: Mask | None = None) -> ProfileFilters:
        context = self._context
        consulted = context.consulted.get(request.key)
        return ProfileFilters(
            context.profile, request, nodes, context.watch, consulted=consulted, quick=FAST.first, within=within
        )

    def _within_limits(self, made: Nomination) -> bool:
        here = sum(each.node == made.node for each in self.victims.values()) + len(made.victims)
        return here <= VICTIMS_OF_NODE_MOST and len(self.victims) + len(made.victims) <= VICTIMS_MOST

    def _spare_some(self, most: int) -> None:
        """Check up to `most` victims, and keep those that need not go."""
        if self._sparable is None:
            self._sparable = deque(self._checked_victims() if self.enough and not self._agreed else ())
        for _ in range(min(len(self._sparable), most)):
            self._spare(self._sparable.popleft())

    def _checked_victims(self) -> list[Key]:
        """Return the victims in the order in which they are spared, if they need not go.

        Members were decided one by one, so a later victim may have made an earlier one needless. Instances protected
        by a disruption budget come first, then the most important.
        """
        occupancy = self._table.allocation_state
        victims = sorted((each.placed_instance for each in self.victims.values()), key=lambda each: each.importance)
        with self._table.trial():
            for each in victims:
                occupancy.spend(each.identity, -1)
            protected, others = by_budget(occupancy, victims)
        return [each.key for each in (*protected, *others)]

    def _spare(self, key: Key) -> None:
        """Keep a victim if all members fit while it stays; members on its node may move."""
        victim = self.victims[key]
        moved = self._moves(victim)
        if moved is None:
            return
        del self.victims[key]
        self._scratch.do(partial(self._stay, victim))
        for at, each in enumerate(self.placed):
            node = moved.get(each.key, each.node)
            if node != each.node:
                assert each.request is not None
                self._scratch.do(partial(self._come, each.request, node))
                self.placed[at] = structs.replace(each, node=node)

    def _moves(self, victim: Victim) -> dict[Key, str] | None:
        """Return the nodes of the members on a victim's node if the victim stays; None: not all of them fit."""
        moved: dict[Key, str] = {}
        here = [each.request for each in self.placed if each.node == victim.node and each.request is not None]
        with self._table.trial():
            self._stay(victim)
            for request in here:
                self._table.drop_allocation(request.key)
            for request in here:
                node = self._anywhere(request, victim.node)
                if not node:
                    return None
                self._come(request, node)
                moved[request.key] = node
        return moved

    def _stay(self, victim: Victim) -> None:
        placed_instance = victim.placed_instance
        self._table.set_allocation(
            placed_instance.key, victim.node, placed_instance.shape, placed_instance.identity, placed_instance.terms
        )

    def _anywhere(self, request: PlacementRequest, first: str) -> str:
        """Return the node `first` if the request fits there, else the best node; empty: no node fits."""
        context = self._context
        state, nodes = CycleState(context.consulted.get(request.key)), self._table.snapshot()

        def find() -> str:
            profile, watch = context.profile, context.watch
            found = FAST.find(profile, state, request, nodes, watch, nominated=first)
            if found is not None:
                return found
            plain = find_plain(profile, state, request, nodes, watch, nominated=first)
            return plain if isinstance(plain, str) else ""

        node: str = context.guard(find)
        context.watch.end()
        return node


def _by_class(requests: Iterable[PlacementRequest]) -> dict[Hashable, list[PlacementRequest]]:
    classes: dict[Hashable, list[PlacementRequest]] = {}
    for each in requests:
        classes.setdefault(each.class_key, []).append(each)
    return classes


def _refusal(verdict: Verdict, request: PlacementRequest, nodes: Snapshot) -> Decision:
    blamed = tuple(plugin for plugin, _ in verdict.refusals)
    return Decision(request.key, message=verdict.explain(request, nodes), retry_on=retry_on(blamed), blamed=blamed)
