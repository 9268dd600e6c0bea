"""State of a cluster at the end of a phase, computed without the scheduler's code."""

from collections.abc import Sequence
from dataclasses import dataclass

from mandor.model.group import GroupTemplate
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Node, NodePhase
from mandor.model.phase import Phase
from mandor.model.placement import EVERY, Apart, Near, Where
from mandor.model.priority import PriorityClass
from mandor.model.resources import Resources
from mandor.model.workload import Release, Workload
from mandor.sim.world import World


@dataclass(frozen=True, slots=True)
class InstanceDemand:
    """An instance with its request and its priority."""

    instance: Instance
    form: GroupTemplate
    request: Resources
    priority: int


class PhaseEndState:
    """Placed and pending instances and the nodes that accept instances."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._classes = {each.meta.name: each.spec.value for each in world.all(PriorityClass)}
        self._forms: dict[tuple[Key, str, int], tuple[GroupTemplate, Resources]] = {}
        self._used: dict[str, Resources] = {}
        demands = [demand for each in world.instances() if (demand := self._demand(each)) is not None]
        self.placed = [each for each in demands if each.instance.node and not each.instance.phase.over]
        self._by_node: dict[str, list[InstanceDemand]] = {}
        for each in self.placed:
            self._by_node.setdefault(each.instance.node, []).append(each)
        self.pending = [
            each
            for each in demands
            if each.instance.phase is Phase.PENDING and not each.instance.node and each.instance.spec.stop is None
        ]
        self.nodes = [each for each in world.all(Node) if _open(each)]

    def priority_of(self, workload: str, namespace: str = "default") -> int:
        found = self._world.find(Workload, workload, namespace)
        asked = found.spec.priority if found is not None else None
        if isinstance(asked, str):
            return self._classes.get(asked, 0)
        return asked or 0

    def _demand(self, instance: Instance) -> InstanceDemand | None:
        release = self._world.find(Release, instance.spec.release, instance.meta.namespace)
        if release is None:
            return None
        form, request = self._form(release, instance.spec.group, instance.spec.variant)
        return InstanceDemand(
            instance, form, request, self.priority_of(instance.spec.workload, instance.meta.namespace)
        )

    def _form(self, release: Release, group: str, variant: int) -> tuple[GroupTemplate, Resources]:
        found = self._forms.get((release.key, group, variant))
        if found is None:
            form = release.spec.groups[group].form(variant)
            found = self._forms[release.key, group, variant] = form, form.request
        return found

    def used(self, node: str) -> Resources:
        if node not in self._used:
            self._used[node] = sum((each.request for each in self._by_node.get(node, ())), Resources())
        return self._used[node]

    def running(self, node: str) -> list[str]:
        """Return the sorted names of the instances that run on a node."""
        here = self._by_node.get(node, ())
        return sorted(each.instance.meta.name for each in here if each.instance.phase is Phase.RUNNING)

    # Violations.

    def inversions(self) -> list[str]:
        """Return the pending instances that could use the resources of instances of lower priority."""
        found = []
        for waiting in self.pending:
            for node in self.nodes:
                lower = [each for each in self._on(node) if each.priority < waiting.priority]
                if not lower or not self._may(waiting, node):
                    continue
                given_up = sum((each.request for each in lower), Resources())
                if waiting.request.fits(node.allocatable - self.used(node.meta.name) + given_up):
                    names = ", ".join(each.instance.meta.name for each in lower)
                    found.append(f"{waiting.instance.meta.name} waits, and could have the place of {names}")
                    break
        return found

    def blocked_softly(self) -> list[str]:
        """Return the pending instances that would fit a node if only `must` rules applied."""
        return [
            f"{each.instance.meta.name} waits, and {node.meta.name} has room"
            for each in self.pending
            for node in self.nodes
            if self._may(each, node) and each.request.fits(node.allocatable - self.used(node.meta.name))
        ]

    def _on(self, node: Node) -> Sequence[InstanceDemand]:
        return [each for each in self._by_node.get(node.meta.name, ()) if each.instance.spec.stop is None]

    def _may(self, demand: InstanceDemand, node: Node) -> bool:
        """Return whether all `must` rules allow the node, with the instances that are placed now."""
        placement = demand.form.placement
        if demand.instance.spec.pin not in {"", node.meta.name}:
            return False
        if placement.only_pool not in {None, node.spec.pool}:
            return False
        if placement.only_pool is None and placement.home != node.spec.pool and not placement.pool:
            return False
        for taint in node.spec.taints:
            hard = taint.effect != "PreferNoSchedule"
            if hard and not any(each.covers(taint) for each in placement.tolerate):
                return False
        return all(self._holds(rule, demand, node) for rule in placement.rules if rule.strength == "must")

    def _holds(self, rule: object, demand: InstanceDemand, node: Node) -> bool:
        facts = {**node.status.facts, **node.meta.labels, "node": node.meta.name, "pool": node.spec.pool}
        if isinstance(rule, Where):
            return any(each.test(facts.get(each.fact)) for each in rule.rules)
        if isinstance(rule, Apart | Near):
            there = any(self._meant(rule, demand, each) for each in self._on(node) if each.instance != demand.instance)
            return there if isinstance(rule, Near) else not there
        return True

    def _meant(self, rule: Apart | Near, demand: InstanceDemand, other: InstanceDemand) -> bool:
        if rule.workload == "self":
            return other.instance.spec.workload == demand.instance.spec.workload
        if rule.workload not in {None, EVERY}:
            return other.instance.spec.workload == rule.workload
        workload = self._world.find(Workload, other.instance.spec.workload, other.instance.meta.namespace)
        return workload is not None and rule.selects(workload.meta.labels)


def _open(node: Node) -> bool:
    """Return whether the node accepts new instances."""
    return node.status.phase is NodePhase.READY and not node.closed and not node.status.pressure
