"""Warnings of an apply about settings that are allowed but rarely intended."""

from collections.abc import Sequence, Set

from mandor.lib.words import did_you_mean
from mandor.model.meta import Object
from mandor.model.node import Node
from mandor.model.workload import Workload
from mandor.placement.daemon_nodes import DaemonNodes, has_eligible_node
from mandor.placement.framework.snapshot import node_fact, node_facts

NODES_NAMED = 100
"""Nodes whose facts are candidates for a correction."""


def advice(
    value: Object,
    nodes: Sequence[Node],
    secrets: Set[tuple[str, str]] = frozenset(),
    labels: Set[str] = frozenset(),
) -> tuple[str, ...]:
    """Return warnings about an object. `secrets`: stored and pending secrets, by namespace and name. `labels`: keys of
    labels that ordered machines get.
    """
    if not isinstance(value, Workload):
        return ()
    return (
        *_undrainable(value),
        *_without_nodes(value, nodes),
        *_unknown_facts(value, nodes, labels),
        *_fixed_autoscale(value),
        *_unknown_secrets(value, secrets),
    )


def secrets_of(workload: Workload) -> set[str]:
    """Return the names of the secrets that a workload refers to."""
    return {name for group in workload.spec.groups.values() for form in group.forms for name in form.secrets}


def _unknown_secrets(workload: Workload, secrets: Set[tuple[str, str]]) -> list[str]:
    missing = sorted(name for name in secrets_of(workload) if (workload.meta.namespace, name) not in secrets)
    return [f"there is no secret {name} yet; instances that need it wait until it exists" for name in missing]


def _without_nodes(workload: Workload, nodes: Sequence[Node]) -> list[str]:
    """Return a warning for each group that runs on every matching node and matches none."""
    spec = workload.spec
    if not spec.per_node:
        return []
    where = "{}: " if len(spec.groups) > 1 else ""
    unplaced = {name: group for name, group in spec.groups.items() if not has_eligible_node(group, nodes)}
    return [where.format(name) + DaemonNodes.of(group, nodes).refusal for name, group in unplaced.items()]


def rules_of(workload: Workload) -> dict[str, str]:
    """Return the facts that the `where` rules of a workload need, each with the text of a rule."""
    found: dict[str, str] = {}
    for group in workload.spec.groups.values():
        for form in group.forms:
            for where in form.placement.where:
                for text, rule in zip(where.texts, where.rules, strict=True):
                    if rule.op != "not exists" and rule.fact != "engine":
                        found.setdefault(rule.fact, text)
    return found


def _unknown_facts(workload: Workload, nodes: Sequence[Node], labels: Set[str]) -> list[str]:
    """Return a warning for each fact of a rule that no node has; `_without_nodes` covers workloads for every node."""
    if workload.spec.per_node:
        return []
    rules = {fact: text for fact, text in rules_of(workload).items() if fact not in labels}
    missing = set(rules)
    for node in nodes:
        if not missing:
            return []
        missing = {fact for fact in missing if node_fact(node, fact) is None}
    if not nodes:
        return []
    known = sorted({fact for node in nodes[:NODES_NAMED] for fact in node_facts(node)} | labels)
    return [
        f"no node has the fact `{fact}` of the rule `{rules[fact]}`; {did_you_mean(fact, known)}"
        for fact in sorted(missing)
    ]


def _fixed_autoscale(workload: Workload) -> list[str]:
    """Return a warning for each `autoscale` whose bounds leave no choice."""
    found = []
    for name, group in workload.spec.groups.items():
        scaling = group.autoscale
        if scaling is not None and scaling.min == scaling.max:
            where = "" if len(workload.spec.groups) == 1 else f" of the group {name}"
            found.append(f"`autoscale`{where} has no effect: `min` and `max` are both {scaling.max}")
    return found


def _undrainable(workload: Workload) -> list[str]:
    """Return a warning for each group whose disruption budget blocks every drain.

    A service starts the replacement first and so keeps any budget; batches and gangs stop first.
    """
    found = []
    spec = workload.spec
    for name, group in spec.groups.items():
        stops_first = spec.type == "batch" or bool(spec.gang_of(name))
        together = spec.together(name)
        if stops_first and together and group.disruption.most_unavailable(together) == 0:
            what = "gang" if spec.gang_of(name) else "batch"
            where = "" if len(spec.groups) == 1 else f" of the group {name}"
            found.append(
                f"the disruption budget{where} blocks every drain of its nodes: max_unavailable is 0, and a {what} "
                "starts no replacement before it stops"
            )
    return found
