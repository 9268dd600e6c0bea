"""Plan for one group of daemons: one instance of the target release on every matching node.

An old instance stops before its replacement starts. A serving instance is stopped only while at least
(wanted - max_unavailable) others are available. An instance that crashes during a roll-out is replaced with its old
release, so an unhealthy target release spreads no further.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from mandor.controllers import replicas
from mandor.controllers.draft import Draft
from mandor.controllers.replicas import ClusterView
from mandor.controllers.update_plan import Step
from mandor.lib.steps import FEW, WRITTEN, Steps, pieces
from mandor.model.group import Group
from mandor.model.instance import UNSCHEDULABLE, Instance, daemon_name
from mandor.model.phase import Phase
from mandor.model.workload import Release, Workload


def at_home(
    release: Release, group: str, members: Sequence[Instance], cluster: ClusterView
) -> tuple[int, list[Instance]]:
    """Return the number of matching nodes, and the instances on them."""
    eligible = cluster.site(release, group).eligible
    return len(eligible), [each for each in members if each.spec.home in eligible]


def no_room(instance: Instance) -> bool:
    """Return whether its node has no room; such an instance does not block the roll-out."""
    return not instance.spec.node and not replicas.ended(instance) and instance.status.reason == UNSCHEDULABLE


def plan_daemon(
    draft: Draft, workload: Workload, name: str, members: Sequence[Instance], step: Step, cluster: ClusterView
) -> Steps[None]:
    site = cluster.site(step.target, name)
    here: dict[str, Instance] = {}
    for piece in pieces(members, FEW):
        for each in piece:
            home = each.spec.home
            if home in site.eligible:
                here[home] = each
            elif home not in site.retained:
                why = f"node {home} no longer matches" if home in site.refusals else f"node {home} no longer exists"
                replicas.lose(draft, each, why, cluster.now)
            elif replicas.ended(each) and each.phase is not Phase.LOST and not replicas.evicted_daemon(each):
                draft.delete(each)  # an evicted one is kept, because its attempts count for the back-off
        yield WRITTEN * len(piece)
    daemons = _Daemons(draft, workload.spec.groups[name], step, cluster, wanted=len(site.eligible))
    for eligible in pieces(sorted(here), FEW):
        for home in eligible:
            daemons.sort(here[home])
        yield WRITTEN * len(eligible)
    daemons.plan_old()
    yield WRITTEN * len(daemons.ended)
    _fill(workload, name, sorted(site.eligible - here.keys()), len(members), daemons)


def _fill(workload: Workload, name: str, nodes: Sequence[str], members: int, daemons: "_Daemons") -> None:
    """Create an instance on every node without one, of the target release while the roll-out may proceed."""
    left = replicas.at_once(members)
    for node in nodes:
        if daemons.cluster.taken(daemon_name(workload.meta.name, name, node)):
            continue
        if not left:
            daemons.draft.again(0.0)
            return
        release = daemons.step.target if daemons.quota > 0 else daemons.step.base
        replicas.create_at(daemons.draft, workload, name, node, release)
        daemons.turned += release is daemons.step.target
        left -= 1


@dataclass(slots=True)
class _Daemons:
    """The daemons of a group on matching nodes, sorted by what the plan does with them."""

    draft: Draft
    group: Group
    step: Step
    cluster: ClusterView
    wanted: int
    healthy: int = 0
    turned: int = 0
    """Instances of the target release, and old ones that are stopping for it."""
    turning: int = 0
    """Instances of `turned` that are not healthy yet."""
    ended: list[Instance] = field(default_factory=list)
    """Ended instances of older releases; the lists below contain older releases too."""
    unschedulable: list[Instance] = field(default_factory=list)
    """Instances whose nodes have no room for them."""
    serving: list[Instance] = field(default_factory=list)
    recovering: list[Instance] = field(default_factory=list)
    """Instances that do not serve now, of a release that was healthy before."""
    unproven: list[Instance] = field(default_factory=list)
    """Instances that do not serve, of a release that was never healthy."""

    def sort(self, each: Instance) -> None:
        if each.spec.release == self.step.target.meta.name:
            self._sort_new(each)
        elif each.phase is Phase.LOST:
            self.recovering.append(each)  # its node sends heartbeats again, and will report it soon
        elif replicas.ended(each):
            self.ended.append(each)
        elif each.spec.stop is not None:
            self.turning += 1
            self.turned += replicas.updated_away(each)
        elif no_room(each):
            self.unschedulable.append(each)
        elif replicas.serving(each):
            self.serving.append(each)
        else:
            (self.recovering if each.spec.release in self.step.proven else self.unproven).append(each)

    def _sort_new(self, each: Instance) -> None:
        self.turned += 1
        if replicas.healthy(self.draft, each, self.group, self.cluster):
            self.healthy += 1
            return
        self.turning += 1
        if replicas.ended(each) and each.phase is not Phase.LOST:
            replicas.renew(self.draft, each, self.group, self.step.target, self.cluster)

    @property
    def quota(self) -> float:
        """Number of further instances that may be replaced with the target release."""
        if self.step.frozen:
            return 0
        return max(0, self.step.canaries - self.turned) if self.step.canaries else inf

    def plan_old(self) -> None:
        away = self.group.update.room(self.wanted, apart=True)[1]
        least = self.wanted - len(self.unschedulable) - away
        for each in self.ended:
            self._succeed(each, away)
        for each in self.unproven:
            if self.quota > 0:
                self._turn(each)
        available = len(self.serving) + self.healthy
        room = max(0, available + len(self.recovering) - least)
        idle = [each for each in self.recovering if each.phase is not Phase.LOST][:room]
        for each in idle:
            if self.quota > 0:
                self._turn(each)
        room = min(room - len(idle), available - least)
        for each in self.serving[: max(room, 0)]:
            if self.quota > 0:
                self._turn(each)
        if not self.serving and not self.recovering:
            for each in self.unschedulable:
                if self.quota > 0:
                    self._turn(each)

    def _succeed(self, each: Instance, away: int) -> None:
        """Replace an ended instance with the target release if the roll-out may proceed, else with its own release."""
        own = self.step.releases.get(each.spec.release)
        by_itself = not replicas.updated_away(each)
        spread = not by_itself or self.turning < away or each.spec.release not in self.step.proven or own is None
        if self.quota > 0 and spread:
            self.turned += 1
            self.turning += 1
            replicas.replace(self.draft, each, self.step.target)
        elif own is not None and by_itself:
            replicas.renew(self.draft, each, self.group, own, self.cluster)
        else:
            replicas.replace(self.draft, each, self.step.base)

    def _turn(self, each: Instance) -> None:
        self.turned += 1
        self.turning += 1
        if each.spec.node:
            replicas.stop(self.draft, each, replicas.updated_to(self.step.target), self.cluster.now)
        else:
            replicas.replace(self.draft, each, self.step.target)
