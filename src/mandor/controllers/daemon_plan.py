"""Plan for one group of daemons: one on every node that is home to it, of the release that is wanted.

An old one stops before a new one takes its place, and none that serves is stopped unless so many less those that may be
away are available without it. What crashes meanwhile is made good with the release it had, so a new release that is
not healthy gets no further than that.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from mandor.controllers import slot
from mandor.controllers.draft import Draft
from mandor.controllers.slot import World
from mandor.controllers.update_plan import Step
from mandor.lib.steps import FEW, WRITTEN, Steps, pieces
from mandor.model.instance import UNSCHEDULABLE, Instance, daemon_name
from mandor.model.phase import Phase
from mandor.model.workload import Group, Release, Workload


def at_home(release: Release, group: str, members: Sequence[Instance], world: World) -> tuple[int, list[Instance]]:
    """How many of a group are wanted, and those of them that there are."""
    homes = world.site(release, group).homes
    return len(homes), [each for each in members if each.spec.home in homes]


def no_room(instance: Instance) -> bool:
    """Its node was asked, and has none: that is nobody's fault, and holds up nobody else."""
    return not instance.spec.node and not slot.ended(instance) and instance.status.reason == UNSCHEDULABLE


def plan_daemon(
    draft: Draft, workload: Workload, name: str, members: Sequence[Instance], step: Step, world: World
) -> Steps[None]:
    site = world.site(step.target, name)
    here: dict[str, Instance] = {}
    for piece in pieces(members, FEW):
        for each in piece:
            home = each.spec.home
            if home in site.homes:
                here[home] = each
            elif home not in site.kept:
                why = f"{home} does not match any more" if home in site.refusals else f"its node {home} is gone"
                slot.lose(draft, each, why, world.now)
            elif slot.ended(each) and each.phase is not Phase.LOST:
                draft.delete(each)
        yield WRITTEN * len(piece)
    crew = _Crew(draft, workload.spec.groups[name], step, world, wanted=len(site.homes))
    for homes in pieces(sorted(here), FEW):
        for home in homes:
            crew.sort(here[home])
        yield WRITTEN * len(homes)
    crew.plan_old()
    yield WRITTEN * len(crew.ended)
    _fill(workload, name, sorted(site.homes - here.keys()), len(members), crew)


def _fill(workload: Workload, name: str, nodes: Sequence[str], members: int, crew: "_Crew") -> None:
    """Nodes that have none: they take nothing away from anybody, so all of them get one; of the target, if it may."""
    left = slot.at_once(members)
    for node in nodes:
        if crew.world.taken(daemon_name(workload.meta.name, name, node)):
            continue
        if not left:
            crew.draft.again(0.0)
            return
        release = crew.step.target if crew.quota > 0 else crew.step.base
        slot.create_at(crew.draft, workload, name, node, release)
        crew.turned += release is crew.step.target
        left -= 1


@dataclass(slots=True)
class _Crew:
    """The daemons of a group that are at home, by what becomes of them."""

    draft: Draft
    group: Group
    step: Step
    world: World
    wanted: int
    healthy: int = 0
    turned: int = 0
    """So many are of the target, or are stopping for it."""
    turning: int = 0
    """So many of them are not healthy yet."""
    ended: list[Instance] = field(default_factory=list)
    """Old ones, as all of these."""
    crowded_out: list[Instance] = field(default_factory=list)
    """Their nodes have no room for them."""
    serving: list[Instance] = field(default_factory=list)
    hoped_for: list[Instance] = field(default_factory=list)
    """They do not serve now, and may again: their release was healthy."""
    hopeless: list[Instance] = field(default_factory=list)

    def sort(self, each: Instance) -> None:
        if each.spec.release == self.step.target.meta.name:
            self._sort_new(each)
        elif each.phase is Phase.LOST:
            self.hoped_for.append(each)  # its node is heard again: so will be what it says about it
        elif slot.ended(each):
            self.ended.append(each)
        elif each.spec.stop is not None:
            self.turning += 1
            self.turned += slot.updated_away(each)
        elif no_room(each):
            self.crowded_out.append(each)
        elif slot.serving(each):
            self.serving.append(each)
        else:
            (self.hoped_for if each.spec.release in self.step.proven else self.hopeless).append(each)

    def _sort_new(self, each: Instance) -> None:
        self.turned += 1
        if slot.healthy(self.draft, each, self.group, self.world):
            self.healthy += 1
            return
        self.turning += 1
        if slot.ended(each) and each.phase is not Phase.LOST:
            slot.renew(self.draft, each, self.group, self.step.target, self.world)

    @property
    def quota(self) -> float:
        """So many more may turn to the target."""
        if self.step.frozen:
            return 0
        return max(0, self.step.canaries - self.turned) if self.step.canaries else inf

    def plan_old(self) -> None:
        away = self.group.update.room(self.wanted, apart=True)[1]
        least = self.wanted - len(self.crowded_out) - away
        for each in self.ended:
            self._succeed(each, away)
        for each in self.hopeless:
            if self.quota > 0:
                self._turn(each)
        available = len(self.serving) + self.healthy
        room = max(0, available + len(self.hoped_for) - least)
        idle = [each for each in self.hoped_for if each.phase is not Phase.LOST][:room]
        for each in idle:
            if self.quota > 0:
                self._turn(each)
        room = min(room - len(idle), available - least)
        for each in self.serving[: max(room, 0)]:
            if self.quota > 0:
                self._turn(each)
        if not self.serving and not self.hoped_for:
            for each in self.crowded_out:
                if self.quota > 0:
                    self._turn(each)

    def _succeed(self, each: Instance, away: int) -> None:
        """It has ended: the target takes its place, as far as it may go; else it comes back as it was."""
        own = self.step.releases.get(each.spec.release)
        by_itself = not slot.updated_away(each)
        spread = not by_itself or self.turning < away or each.spec.release not in self.step.proven or own is None
        if self.quota > 0 and spread:
            self.turned += 1
            self.turning += 1
            slot.replace(self.draft, each, self.step.target)
        elif own is not None and by_itself:
            slot.renew(self.draft, each, self.group, own, self.world)
        else:
            slot.replace(self.draft, each, self.step.base)

    def _turn(self, each: Instance) -> None:
        self.turned += 1
        self.turning += 1
        if each.spec.node:
            slot.stop(self.draft, each, slot.updated_to(self.step.target), self.world.now)
        else:
            slot.replace(self.draft, each, self.step.target)
