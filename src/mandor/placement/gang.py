"""Decisions about gangs: instances that are placed together or not at all, tried on the table before they count."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from msgspec import structs

from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.workload import Workload
from mandor.placement.decision import NOMINATED, NOW, Decision, Moment, broken_off
from mandor.placement.framework.identity import names_shown
from mandor.placement.framework.occupancy import PlacedInstance
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import GangMembership, PlacementRequest
from mandor.placement.framework.runtime import PluginFault
from mandor.placement.framework.victim_selection import by_budget, within_budgets
from mandor.placement.framework.watch import Overrun, Unwatched, Watch
from mandor.placement.gang_domains import Domain, tied_to
from mandor.placement.gang_stage import Stage, StageKind, stages
from mandor.placement.gang_stage_trial import NO_KEY, GangContext, Guard, StageTrial, T
from mandor.placement.table import Table

BESIDE_MOST = 256
"""Members of other gangs that a domain should have room for."""
_STARTS_MOST = 4
"""Starts of one decision, each after a change of the table; the last one runs in one turn."""
_BUDGETED_MOST = 24
"""Protected instances up to which the decision searches for victims that keep every disruption budget."""
_CHOICES_MOST = 512
"""Members decided in that search."""


@dataclass(frozen=True, slots=True)
class GangDecision:
    """The nodes of enough members, or of none."""

    placed: tuple[Decision, ...] = ()
    """Placed members in the order of their decisions."""
    fitted: int = 0
    """The number of members that fit, whether it was enough or not."""
    refused: Decision | None = None
    """The first member that did not fit with all soft rules given up, which explains why no member is placed."""
    nominated: tuple[Decision, ...] = ()
    """Members for which room is held, with their victims; no member is placed then."""
    how: str = ""
    """Explanation of the nominations, for users."""
    fault: str = ""
    message: str = ""
    """The error of a plugin that failed."""
    domain: Domain | None = None
    """The domain with the most room, if all members have to be in one domain."""


def refusal(decision: GangDecision, needed: int, bound: int) -> str:
    """Explain why no member gets a node."""
    worst = decision.refused
    assert worst is not None, "a plugin refused each member that did not fit"
    if decision.domain is not None:
        kind = decision.domain.kind
        room = f"the largest {kind}, {', '.join(decision.domain.values)}, has room for {decision.fitted} of {needed}"
        return f"the gang needs {needed} in one {kind}: {room}; {worst.key.name} does not fit: {worst.message}"
    have = f"{bound} have a node, {decision.fitted} more would fit" if bound else ""
    would = have or f"{decision.fitted} would fit"
    return f"the gang needs {needed}: {would}; {worst.key.name} does not: {worst.message}"


def nomination(decision: GangDecision, needed: int, bound: int) -> str:
    """Explain why the gang has no nodes yet, and where it will have them."""
    return f"{refusal(decision, needed, bound)}; {decision.how}" if decision.refused is not None else decision.how


def membership(instance: Instance, workload: Workload) -> GangMembership | None:
    """Return the gang of an instance; None: it is in no gang."""
    group = workload.spec.groups.get(instance.spec.group)
    if group is None or group.gang is None:
        return None
    gang = (instance.meta.namespace, instance.spec.workload, instance.spec.group)
    return GangMembership(gang, workload.spec.gang_of(instance.spec.group), float(group.gang.timeout))


def unguarded(work: Callable[[], T]) -> T:
    return work()


class GangTrial:
    """Decides members together: as the cluster is, with fewer rules, and by preemption.

    Between two steps the table is unchanged for others. When it has changed meanwhile, the trial starts again, so the
    result is the one of a single step.
    """

    def __init__(
        self,
        profile: Profile,
        requests: Sequence[PlacementRequest],
        table: Table,
        *,
        least: int,
        consulted: Mapping[Key, Mapping[str, object]] | None = None,
        watch: Watch | None = None,
        guard: Guard = unguarded,  # type: ignore[type-arg]
        moment: Moment = NOW,
        beside: Sequence[PlacementRequest] = (),
    ) -> None:
        """`least`: number of members that have to fit. `guard` runs code that calls plugins. `beside`: pending members
        of other gangs of the workload."""
        self._profile = profile
        # Ordered by name, not by the queue: equal members give equal results.
        self._asks = tuple(
            sorted(requests, key=lambda request: (request.key.namespace, len(request.key.name), request.key.name))
        )
        self._table = table
        self._context = GangContext(
            *(profile, table, least, consulted or {}, watch or Unwatched(), guard, moment, {}),
            tuple(tied_to(beside, self._asks)[:BESIDE_MOST]),
        )
        self._version = table.version
        self._starts = 0
        self._begin()

    def _begin(self) -> None:
        self._starts += 1
        allocations = ((request.key, self._table.allocation(request.key)) for request in self._asks)
        held = {
            key: allocation.node for key, allocation in allocations if allocation is not None and allocation.terms.held
        }
        self._context = replace(self._context, held=held)
        moment, nodes = self._context.moment, self._table.snapshot()
        self._stages = deque(stages(self._profile, self._asks, nodes, moment, held))
        self._found_trials: dict[int, StageTrial] = {}
        """Finished FIND trials by the id of their relaxation step."""
        self._found: GangDecision | None = None
        """A result that violates a disruption budget."""
        self._start_stage()

    def _start_stage(self) -> None:
        stage = self._stages[0]
        start = self._found_trials.get(id(stage.relaxation)) if stage.kind is StageKind.PREEMPT else None
        self._trial = StageTrial(self._context, stage, start)

    @property
    def holds(self) -> bool:
        """Return whether the table is unchanged since the last step; if not, the next step starts again."""
        return self._table.version == self._version

    @property
    def hurried(self) -> bool:
        """Return whether the table changed so often that the decision was made in one step."""
        return self._starts >= _STARTS_MOST

    def step(self, most: int) -> GangDecision | None:
        """Decide up to `most` members; None: not all are decided yet."""
        if self._table.version != self._version:
            self._version = self._table.version
            self._begin()
        if not self.hurried:
            return self._run(most)
        found = None
        while found is None:
            found = self._run(len(self._asks))
        return found

    def _run(self, most: int) -> GangDecision | None:
        watch = self._context.watch
        try:
            over = self._trial.step(most)
        except PluginFault as fault:
            return GangDecision(fault=fault.plugin, message=str(fault))
        except Overrun:
            return GangDecision(fault=watch.current, message=broken_off(NO_KEY, watch.current).message)
        finally:
            watch.end()
        return self._end_stage() if over else None

    def _end_stage(self) -> GangDecision | None:
        trial, stage = self._trial, self._stages.popleft()
        if stage.kind is StageKind.FIND:
            self._last = trial
            self._found_trials[id(stage.relaxation)] = trial
            if trial.enough:
                return GangDecision(tuple(trial.placed), len(trial.placed), trial.refused)
        elif trial.enough and (stage.kind is not StageKind.HELD or trial.going):
            found = self._nominated(trial)
            if not self._violations(trial):
                return found
            if self._found is None:
                self._found = found
                self._stages.extendleft(reversed(list(self._choices(stage))))
        if self._found is not None and not (self._stages and self._stages[0].spared):
            return self._found
        if not self._stages:
            return GangDecision((), len(self._last.placed), self._last.refused, domain=self._last.domain)
        self._start_stage()
        return None

    def _nominated(self, trial: StageTrial) -> GangDecision:
        moment, last = self._context.moment, self._last
        again = moment.patience if moment.patience > 0 else None
        by_node: dict[str, list[Key]] = {}
        for key, victim in trial.victims.items():
            by_node.setdefault(victim.node, []).append(key)
        how = _how(trial, by_node)
        made = []
        for each in trial.placed:
            victims = tuple(sorted(by_node.pop(each.node, ())))
            facts = {"reason": NOMINATED, "message": how, "nominated": each.node, "victims": victims, "again": again}
            made.append(structs.replace(each, node="", request=None, **facts))
        return GangDecision((), len(last.placed), last.refused, tuple(made), how, domain=last.domain)

    # Budgets.

    def _violations(self, trial: StageTrial) -> int:
        victims = [each.placed_instance for each in trial.victims.values()]
        return len(by_budget(self._table.allocation_state, victims)[0])

    def _choices(self, stage: Stage) -> Iterator[Stage]:
        """Yield stages with protected instances chosen so that no disruption budget is violated, up to a limit."""
        occupancy, priority = self._table.allocation_state, max(request.priority for request in self._asks)
        budgeted = [
            PlacedInstance(key, allocation.shape, allocation.identity, allocation.terms)
            for key, allocation in self._table.allocations.items()
            if allocation.terms.settled
            and allocation.terms.rank.priority < priority
            and not allocation.terms.rank.spared
            if occupancy.allowed(allocation.identity) is not None
        ]
        if len(budgeted) > _BUDGETED_MOST:
            return
        most = _CHOICES_MOST // self._context.least
        for stay in islice(within_budgets(occupancy, sorted(budgeted, key=lambda each: each.importance)), most):
            yield Stage(StageKind.PREEMPT, stage.relaxation, frozenset(each.key for each in stay))


def _how(trial: StageTrial, victims: Mapping[str, Sequence[Key]]) -> str:
    nodes = sorted({each.node for each in trial.placed})
    namespace = trial.placed[0].key.namespace if trial.placed else ""
    if trial.stage.kind is StageKind.WAIT:
        names = names_shown((key for node in nodes for key in trial.going.get(node, ())), namespace)
        because = f": {names} will be gone" if names else ""
        return f"waits for room on {', '.join(nodes)} rather than give up `{trial.stage.relaxation.next_up}`{because}"
    if not victims:
        return f"there will be room on {', '.join(nodes)}"
    places = [f"{names_shown(sorted(victims[node]), namespace)} on {node}" for node in sorted(victims)]
    return f"takes the place of {' and '.join(places)}"
