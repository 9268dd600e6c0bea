"""Evaluates `where` rules and tolerations on nodes, once for each distinct value of a fact."""

from collections.abc import Sequence

import numpy as np

from mandor.model.node import Taint
from mandor.model.placement import Toleration, Where
from mandor.model.rule import Rule
from mandor.placement.framework.column import Mask
from mandor.placement.framework.snapshot import Engines, Snapshot

TOLERATED = "tolerated"
NEGATIVE = frozenset({"!=", "not in", "not exists"})


def matching_all(rules: Sequence[Where], nodes: Snapshot) -> Mask:
    """Return the nodes that match all rules."""
    if len(rules) == 1:
        return matching(rules[0], nodes)
    fits = np.ones(len(nodes), dtype=np.bool_)
    for where in rules:
        fits &= matching(where, nodes)
    return fits


def matching(where: Where, nodes: Snapshot) -> Mask:
    """Return the nodes that match any alternative of the rule."""
    rules = where.rules
    found = passes(rules[0], nodes)
    for rule in rules[1:]:
        found = found | passes(rule, nodes)
    return found


def tolerated_nodes(tolerate: tuple[Toleration, ...], nodes: Snapshot) -> Mask:
    """Return the nodes without taints that keep an instance with these tolerations away."""
    return nodes.taints.where((TOLERATED, tolerate), lambda taints: not untolerated(taints, tolerate))


def untolerated(taints: Sequence[Taint], tolerate: Sequence[Toleration]) -> list[Taint]:
    """Return the taints that keep instances with these tolerations away."""
    return [
        each
        for each in taints
        if each.effect != "PreferNoSchedule" and not any(toleration.covers(each) for toleration in tolerate)
    ]


def passes(rule: Rule, nodes: Snapshot) -> Mask:
    """Return the nodes that fulfil one condition."""
    if rule.fact == "engine":
        return nodes.engines.where(rule, lambda engines: engine_rule(rule, engines))
    return nodes.fact(rule.fact).where(rule, lambda value: rule.test(value[0]))


def engine_rule(rule: Rule, engines: Engines) -> bool:
    """Return whether the engines of a node pass the rule: one must, and for a negation none may be excluded."""
    names = engines.names
    if not names:
        return rule.test(None)
    return all(map(rule.test, names)) if rule.op in NEGATIVE else any(map(rule.test, names))
