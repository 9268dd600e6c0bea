"""A gang: instances that are placed together or not at all, tried out on the table before any of it counts."""

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
from mandor.placement.framework.victim_selection import by_budget, kept_budgets
from mandor.placement.framework.watch import Overrun, Unwatched, Watch
from mandor.placement.gang_stage import Stage, StageKind, stages
from mandor.placement.gang_stage_trial import NOBODY, GangContext, Guard, StageTrial, T
from mandor.placement.table import Table

_BEGINNINGS_MOST = 4
"""So often the table may have changed under it; then it is decided in one go."""
_BUDGETED_MOST = 24
"""Where a budget would be broken, ways to keep all are looked for among so many whom budgets protect,"""
_CHOICES_MOST = 512
"""and so many members are decided for that in all."""


@dataclass(frozen=True, slots=True)
class GangDecision:
    """Nodes for enough of the members, or for none of them."""

    placed: tuple[Decision, ...] = ()
    """In the order in which they were decided."""
    fitted: int = 0
    """So many found a node on the scratch table, whether it was enough or not."""
    refused: Decision | None = None
    """The first that found none when all soft rules were given up: why the others do not get theirs."""
    nominated: tuple[Decision, ...] = ()
    """Nobody is placed, but there will be room for these on the nodes they name; with those who must go for it."""
    how: str = ""
    """How that comes, for people."""
    fault: str = ""
    message: str = ""
    """What went wrong, if a plugin did."""


def refusal(decision: GangDecision, needed: int, bound: int) -> str:
    """Why nobody of the gang gets a node."""
    worst = decision.refused
    assert worst is not None, "each that did not fit was refused by somebody"
    have = f"{bound} have a node, {decision.fitted} more would fit" if bound else ""
    would = have or f"{decision.fitted} would fit"
    return f"the gang needs {needed}: {would}; {worst.key.name} does not: {worst.message}"


def nomination(decision: GangDecision, needed: int, bound: int) -> str:
    """Why it has no nodes yet, and where it will."""
    return f"{refusal(decision, needed, bound)}; {decision.how}" if decision.refused is not None else decision.how


def membership(instance: Instance, workload: Workload) -> GangMembership | None:
    """The gang an instance belongs to; None: it is placed by itself."""
    group = workload.spec.groups.get(instance.spec.group)
    if group is None or group.gang is None:
        return None
    gang = (instance.meta.namespace, instance.spec.workload, instance.spec.group)
    return GangMembership(gang, workload.spec.gang_of(instance.spec.group), float(group.gang.timeout))


def unguarded(work: Callable[[], T]) -> T:
    return work()


class GangTrial:
    """Decides the members together: as things stand, with ever fewer rules, and by having others make room.

    Between two steps the table is as it was; whoever looks at it then does not see the trial. When it has changed
    meanwhile, the trial begins anew: what comes out is what one step for all of them would have given.
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
    ) -> None:
        """`least`: so many of these have to fit. `guard` calls what calls plugins."""
        self._profile = profile
        # By name, whatever their order in the queue was: equal members give equal outcomes.
        self._asks = tuple(
            sorted(requests, key=lambda request: (request.key.namespace, len(request.key.name), request.key.name))
        )
        self._table = table
        self._context = GangContext(profile, table, least, consulted or {}, watch or Unwatched(), guard, moment, {})
        self._version = table.version
        self._beginnings = 0
        self._begin()

    def _begin(self) -> None:
        self._beginnings += 1
        allocations = ((request.key, self._table.allocation(request.key)) for request in self._asks)
        held = {
            key: allocation.node for key, allocation in allocations if allocation is not None and allocation.terms.held
        }
        self._context = replace(self._context, held=held)
        moment, nodes = self._context.moment, self._table.snapshot()
        self._stages = deque(stages(self._profile, self._asks, nodes, moment, held))
        self._as_it_stands: dict[int, StageTrial] = {}
        """By the id of their relaxation."""
        self._found: GangDecision | None = None
        """Something that is enough, but breaks a budget."""
        self._start_stage()

    def _start_stage(self) -> None:
        stage = self._stages[0]
        start = self._as_it_stands.get(id(stage.relaxation)) if stage.kind is StageKind.ROOM else None
        self._trial = StageTrial(self._context, stage, start)

    @property
    def holds(self) -> bool:
        """The table is as it was at the last step; if not, the next begins anew."""
        return self._table.version == self._version

    @property
    def hurried(self) -> bool:
        """The table has changed so often that it was decided in one go."""
        return self._beginnings >= _BEGINNINGS_MOST

    def step(self, most: int) -> GangDecision | None:
        """Decide so many; None: it is not decided yet."""
        if self._table.version != self._version:
            self._version = self._table.version
            self._begin()
        if not self.hurried:
            return self._walk(most)
        found = None
        while found is None:
            found = self._walk(len(self._asks))
        return found

    def _walk(self, most: int) -> GangDecision | None:
        watch = self._context.watch
        try:
            over = self._trial.step(most)
        except PluginFault as fault:
            return GangDecision(fault=fault.plugin, message=str(fault))
        except Overrun:
            return GangDecision(fault=watch.current, message=broken_off(NOBODY, watch.current).message)
        finally:
            watch.end()
        return self._stage_is_over() if over else None

    def _stage_is_over(self) -> GangDecision | None:
        trial, stage = self._trial, self._stages.popleft()
        if stage.kind is StageKind.FIND:
            self._last = trial
            self._as_it_stands[id(stage.relaxation)] = trial
            if trial.enough:
                return GangDecision(tuple(trial.placed), len(trial.placed), trial.refused)
        elif trial.enough and (stage.kind is not StageKind.STILL or trial.going):
            found = self._nominated(trial)
            if not self._broken(trial):
                return found
            if self._found is None:
                self._found = found
                self._stages.extendleft(reversed(list(self._choices(stage))))
        if self._found is not None and not (self._stages and self._stages[0].spared):
            return self._found
        if not self._stages:
            return GangDecision((), len(self._last.placed), self._last.refused)
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
        return GangDecision((), len(last.placed), last.refused, tuple(made), how)

    # Budgets.

    def _broken(self, trial: StageTrial) -> int:
        victims = [each.placed_instance for each in trial.victims.values()]
        return len(by_budget(self._table.lodgings, victims)[0])

    def _choices(self, stage: Stage) -> Iterator[Stage]:
        """Ways in which no budget is broken; too many of them are not tried."""
        occupancy, priority = self._table.lodgings, max(request.priority for request in self._asks)
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
        for stay in islice(kept_budgets(occupancy, sorted(budgeted, key=lambda each: each.importance)), most):
            yield Stage(StageKind.ROOM, stage.relaxation, frozenset(each.key for each in stay))


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
