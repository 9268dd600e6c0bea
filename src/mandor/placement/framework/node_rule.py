"""Which nodes keep a `where` rule: a question that is put once to each distinct value of a fact."""

from collections.abc import Sequence

import numpy as np

from mandor.model.placement import Where
from mandor.model.rule import Rule
from mandor.placement.framework.column import Mask
from mandor.placement.framework.snapshot import Engines, Snapshot

NEGATIVE = frozenset({"!=", "not in", "not exists"})


def keeping(rules: Sequence[Where], nodes: Snapshot) -> Mask:
    """The nodes that keep all of them."""
    if len(rules) == 1:
        return kept(rules[0], nodes)
    fits = np.ones(len(nodes), dtype=np.bool_)
    for where in rules:
        fits &= kept(where, nodes)
    return fits


def kept(where: Where, nodes: Snapshot) -> Mask:
    """The nodes that keep any of its rules."""
    rules = where.rules
    found = _passes(rules[0], nodes)
    for rule in rules[1:]:
        found = found | _passes(rule, nodes)
    return found


def _passes(rule: Rule, nodes: Snapshot) -> Mask:
    if rule.fact == "engine":
        return nodes.engines.where(rule, lambda engines: engine_rule(rule, engines))
    return nodes.fact(rule.fact).where(rule, lambda value: rule.test(value[0]))


def engine_rule(rule: Rule, engines: Engines) -> bool:
    """A node has several engines: one that fits is enough, and for a negation none may be what it excludes."""
    names = engines.names
    if not names:
        return rule.test(None)
    return all(map(rule.test, names)) if rule.op in NEGATIVE else any(map(rule.test, names))
