"""Decides a gang on a cluster model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.phase import Phase
from mandor.model.workload import Workload
from mandor.placement.cluster_model import ClusterModel
from mandor.placement.consult import Consult
from mandor.placement.conversion import PlacementState, placement_state
from mandor.placement.decision import NOW, Decision, Moment
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.watch import Watch
from mandor.placement.gang import GangTrial, nomination, refusal


@dataclass(frozen=True, slots=True)
class GangOutcome:
    """The decision about the pending members of a gang."""

    requests: Sequence[PlacementRequest]
    placed: tuple[Decision, ...] = ()
    message: str = ""
    """Why no member is placed."""
    nominated: tuple[Decision, ...] = ()
    """Members for which room would be held."""

    def about(self, key: Key) -> Decision:
        """Return the decision about one member."""
        for each in (*self.placed, *self.nominated):
            if each.key == key:
                return each
        return Decision(key, message=self.message)

    @property
    def victims(self) -> tuple[Key, ...]:
        return tuple(key for each in self.nominated for key in each.victims)


def decide_gang(
    model: ClusterModel,
    profile: Profile,
    request: PlacementRequest,
    consult: Consult,
    watch: Watch,
    moment: Moment = NOW,
) -> GangOutcome | None:
    """Decide the gang of a request; None: the request is in no gang, or its gang is complete without it."""
    if request.member is None or not profile.gangs:
        return None
    namespace, name, group = request.member.gang
    workload = model.workloads[Key(Workload.kind, namespace, name)]
    members = [each for each in model.of(workload.key) if each.spec.group == group]
    needed, bound = _needed(workload, group, members), sum(_bound(each) for each in members)
    if bound >= needed:
        return None
    found = (model.request(each) for each in members if placement_state(each) is PlacementState.WAITING)
    requests = [each for each in found if each is not None and each.profile == request.profile]
    there = bound + len(requests)
    if there < needed:
        return GangOutcome(requests, message=f"the gang has {there} of {needed} members")
    consulted: dict[Key, Mapping[str, object]] = {}
    if profile.consults:
        consulted = {each.key: consult(profile, each, model.table.snapshot()) for each in requests}
    others = (each for each in model.of(workload.key) if each.spec.group != group)
    waiting = (model.request(each) for each in others if placement_state(each) is PlacementState.WAITING)
    trial = GangTrial(
        profile,
        requests,
        model.table,
        least=needed - bound,
        consulted=consulted,
        watch=watch,
        moment=moment,
        beside=[each for each in waiting if each is not None and each.member is not None],
    )
    decision = None
    while decision is None:
        decision = trial.step(len(requests))
    if decision.placed:
        return GangOutcome(requests, decision.placed)
    if decision.nominated:
        return GangOutcome(requests, message=nomination(decision, needed, bound), nominated=decision.nominated)
    return GangOutcome(requests, message=decision.message if decision.fault else refusal(decision, needed, bound))


def _bound(instance: Instance) -> bool:
    return placement_state(instance) is PlacementState.PLACED and instance.spec.stop is None


def _needed(workload: Workload, group: str, members: Sequence[Instance]) -> int:
    """Return the number of members that have to be bound; finished members of a batch do not count."""
    spec = workload.spec
    least = spec.gang_of(group)
    if spec.type != "batch":
        return least
    whole = spec.batch.completions if spec.batch is not None else spec.groups[group].count
    return min(least, whole - sum(each.phase is Phase.SUCCEEDED for each in members))
