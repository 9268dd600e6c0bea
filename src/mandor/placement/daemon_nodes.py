"""The nodes that a daemon runs on, by the attributes of nodes; free resources do not matter."""

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from mandor.model.group import GroupTemplate
from mandor.model.node import Node, NodePhase, pressure_of
from mandor.placement.framework.node_rule import engine_rule
from mandor.placement.framework.points import tally
from mandor.placement.framework.request import Shape
from mandor.placement.framework.snapshot import Engines, node_facts
from mandor.placement.plugins.engine_fit import usable

NO_MATCH = "no node matches"


class Eligibility(Enum):
    ELIGIBLE = "eligible"
    """A daemon runs here."""
    RETAINED = "retained"
    """No new daemon is placed here; a running one stays until it ends or is moved."""
    INELIGIBLE = "ineligible"
    """No daemon runs here."""


class NodeEligibility(NamedTuple):
    fit: Eligibility
    why: str = ""
    """Why the node is not eligible."""


def assess_node(template: GroupTemplate, shape: Shape, node: Node) -> NodeEligibility:
    """Assess a node. Rules and pool exclude it for good; phase, taints, engines and drains only for a time."""
    wrong = _broken_rule(template, node)
    if wrong:
        return NodeEligibility(Eligibility.INELIGIBLE, wrong)
    for_now = _passing(shape, node)
    return NodeEligibility(Eligibility.RETAINED, for_now) if for_now else NodeEligibility(Eligibility.ELIGIBLE)


def has_eligible_node(template: GroupTemplate, nodes: Iterable[Node]) -> bool:
    """Return whether any node is eligible."""
    shape = Shape.of(template)
    return any(assess_node(template, shape, node).fit is Eligibility.ELIGIBLE for node in nodes)


def _broken_rule(template: GroupTemplate, node: Node) -> str:
    placement = template.placement
    if placement.only_pool is not None and placement.only_pool != node.spec.pool:
        return f"not in the pool {placement.only_pool}"
    must = [where for where in placement.where if where.strength == "must"]
    if not must:
        return ""
    facts, engines = node_facts(node), Engines.of(node.status.engines)
    for where in must:
        retained = (
            engine_rule(rule, engines) if rule.fact == "engine" else rule.test(facts.get(rule.fact))
            for rule in where.rules
        )
        if not any(retained):
            return "not " + " or ".join(f"`{text}`" for text in where.texts)
    return ""


def _passing(shape: Shape, node: Node) -> str:
    if node.status.phase not in {NodePhase.READY, NodePhase.SUSPECT}:
        return node.status.phase.value
    for taint in node.taints:
        fitting = [each for each in shape.tolerate if each.covers(taint)]
        # A daemon that tolerates a NoExecute taint for a limited time would be placed and evicted repeatedly.
        passing = taint.effect == "NoExecute" and any(each.seconds is not None for each in fitting)
        if taint.effect != "PreferNoSchedule" and (not fitting or passing):
            short = pressure_of([taint])
            return f"short of {short[0]}: with the taint {taint}" if short else f"with the taint {taint}"
    if node.drain is not None:
        return "drained"
    engines = Engines.of(node.status.engines)
    if not any(usable(form, engines) for form in (shape, *shape.alternatives)):
        return f"without {' or '.join(shape.engines) or 'an engine'} that is up and runs it"
    return ""


@dataclass(slots=True)
class DaemonNodes:
    """The eligible nodes of one daemon group, updated by changes of nodes."""

    template: GroupTemplate
    eligible: set[str] = field(default_factory=set)
    retained: set[str] = field(default_factory=set)
    refusals: dict[str, str] = field(default_factory=dict)
    """Reasons by node, for nodes that are not eligible."""
    shape: Shape = field(init=False)

    def __post_init__(self) -> None:
        self.shape = Shape.of(self.template)

    @classmethod
    def of(cls, template: GroupTemplate, nodes: Iterable[Node]) -> "DaemonNodes":
        made = cls(template)
        for node in nodes:
            made.see(node)
        return made

    def copy(self) -> "DaemonNodes":
        """Return a copy that later changes do not affect."""
        made = copy(self)
        made.eligible, made.retained, made.refusals = set(self.eligible), set(self.retained), dict(self.refusals)
        return made

    def see(self, node: Node) -> bool:
        """Apply a changed node; return whether its eligibility has changed."""
        name, (fit, why) = node.meta.name, assess_node(self.template, self.shape, node)
        before = self._fit(name)
        self._drop(name)
        if fit is Eligibility.ELIGIBLE:
            self.eligible.add(name)
        else:
            self.refusals[name] = why
            if fit is Eligibility.RETAINED:
                self.retained.add(name)
        return fit is not before

    def forget(self, name: str) -> bool:
        known = name in self.eligible or name in self.refusals
        self._drop(name)
        return known

    def _fit(self, name: str) -> Eligibility:
        return (
            Eligibility.ELIGIBLE
            if name in self.eligible
            else Eligibility.RETAINED
            if name in self.retained
            else Eligibility.INELIGIBLE
        )

    def _drop(self, name: str) -> None:
        self.eligible.discard(name)
        self.retained.discard(name)
        self.refusals.pop(name, None)

    @property
    def refusal(self) -> str:
        """Explanation such as ``2 of 3 nodes do not match: 2 not `disk == ssd` ``; empty: all nodes match."""
        count, known = len(self.refusals), len(self.eligible) + len(self.refusals)
        if not known:
            return f"{NO_MATCH}: there are none"
        if not count:
            return ""
        identity = NO_MATCH if count == known else f"{count} of {known} nodes {_do(count)} not match"
        return f"{identity}: {tally(self.refusals.values())}"


def _do(count: int) -> str:
    return "does" if count == 1 else "do"
