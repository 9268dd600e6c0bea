"""Rules about other instances, on random clusters: the vector form says what a plain loop says."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings

from mandor.model.node import Node
from mandor.model.placement import Apart, Near, Spread
from mandor.placement.framework.identity import NO_IDENTITY
from mandor.placement.framework.points import FilterPlugin, ScorePlugin
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import node_facts
from mandor.placement.plugins.instance_limit import InstanceLimit
from mandor.placement.plugins.inter_pod_affinity import InterPodAffinity
from mandor.placement.plugins.load_aware import LoadAware, LoadAwareArgs
from mandor.placement.plugins.node_name import NodeName
from mandor.placement.plugins.pod_topology_spread import PodTopologySpread
from mandor.placement.plugins.pool_fit import PoolFit
from mandor.placement.plugins.proximity import Proximity
from mandor.placement.plugins.quota import Quota, QuotaArgs
from mandor.placement.plugins.round_robin import RoundRobin
from mandor.placement.plugins.vm_quota import VMQuota, VMQuotaArgs
from tests.property.neighbourhood import Placed, clusters, every_rule, names_whom, place_of, there, together
from tests.property.tables import build, check_scores, mask_of

BRIEFLY = settings(max_examples=80, deadline=None)


# The rules, as plain as can be.


def company(rule: Near | Apart, request: PlacementRequest, node: Node, found: list[Node], placed: Placed) -> int:
    return sum(
        names_whom(rule, request.identity, identity) and together(node, other, rule.over)
        for other, _, identity in there(found, placed)
    )


def plain_ties(request: PlacementRequest, node: Node, found: list[Node], placed: Placed) -> bool:
    for rule in request.hard:
        if isinstance(rule, Apart) and company(rule, request, node, found, placed) >= rule.limit:
            return False
        if isinstance(rule, Near) and not company(rule, request, node, found, placed):
            anywhere = any(company(rule, request, each, found, placed) for each in found)
            first = (
                names_whom(rule, request.identity, request.identity)
                and not anywhere
                and place_of(node, rule.over) is not None
            )
            if not first:
                return False
    for other, shape, identity in there(found, placed):
        if identity is NO_IDENTITY:
            continue
        for rule in every_rule(shape):
            binding = (
                isinstance(rule, Apart)
                and rule.limit == 1
                and (rule.strength == "must" or (rule.strength == "should" and not request.lenient))
            )
            if binding and names_whom(rule, identity, request.identity) and together(node, other, rule.over):
                return False
    return True


def plain_tie_score(request: PlacementRequest, node: Node, found: list[Node], placed: Placed) -> int:
    total = 0
    for rule in request.shape.prefer:
        if isinstance(rule, Near | Apart):
            sign = 1 if isinstance(rule, Near) else -1
            total += sign * (rule.weight or 1) * company(rule, request, node, found, placed)
    for rule in request.given_up:
        if isinstance(rule, Near | Apart):
            total += (100 if isinstance(rule, Near) else -100) * company(rule, request, node, found, placed)
    for other, shape, identity in there(found, placed):
        if identity is NO_IDENTITY:
            continue
        for rule in every_rule(shape):
            if not isinstance(rule, Near | Apart) or not names_whom(rule, identity, request.identity):
                continue
            if not together(node, other, rule.over):
                continue
            if rule.strength == "prefer":
                total += (rule.weight or 1) * (1 if isinstance(rule, Near) else -1)
            elif isinstance(rule, Near):
                total += 1
            elif rule.strength == "should" and request.lenient and rule.limit == 1:
                total -= 100
    return total


def keeps_where(request: PlacementRequest, node: Node) -> bool:
    return all(rule.rules[0].test(node_facts(node).get(rule.rules[0].fact)) for rule in request.rules.where)


def counts_node(rule: Spread, request: PlacementRequest, node: Node) -> bool:
    """Return whether a rule counts a node, by its policies."""
    hard = [each for each in node.taints if each.effect != "PreferNoSchedule"]
    tolerated = all(any(one.covers(each) for one in request.shape.tolerate) for each in hard)
    return ("where" not in rule.honor or keeps_where(request, node)) and ("taints" not in rule.honor or tolerated)


def in_domains(
    rule: Spread, request: PlacementRequest, found: list[Node], placed: Placed, eligible: list[Node]
) -> dict[str | None, int]:
    counts = {place_of(node, rule.over): 0 for node in eligible}
    for node, _, identity in there(found, placed):
        if node in eligible and names_whom(rule, request.identity, identity):
            counts[place_of(node, rule.over)] += 1
    return counts


def share_of(rule: Spread, place: str, places: set[str | None]) -> float:
    """Return the target of a domain: the rest is divided among the domains without one."""
    if place in rule.targets:
        return rule.targets[place] / 100
    return (100 - sum(rule.targets.values())) / 100 / len(places - set(rule.targets))


def has_all(node: Node, rules: list[Spread]) -> bool:
    return all(place_of(node, rule.over) is not None for rule in rules)


def plain_spread(request: PlacementRequest, node: Node, found: list[Node], placed: Placed) -> bool:
    rules = [rule for rule in request.hard if isinstance(rule, Spread)]
    for rule in rules:
        eligible = [
            each
            for each in found
            if counts_node(rule, request, each) and all(place_of(each, other.over) is not None for other in rules)
        ]
        counts = in_domains(rule, request, found, placed, eligible)
        here = place_of(node, rule.over)
        if here is None or here not in counts:
            return False
        itself = int(names_whom(rule, request.identity, request.identity))
        if rule.targets:
            share = share_of(rule, here, set(counts))
            above = counts[here] + itself - share * (sum(counts.values()) + itself)
            if share == 0 or above > rule.max_skew + 1e-9:
                return False
            continue
        least = min(counts.values()) if len(counts) >= rule.min_domains else 0
        if counts[here] + itself - least > rule.max_skew:
            return False
    return True


def wished_spreads(request: PlacementRequest) -> list[Spread]:
    return [rule for rule in (*request.shape.prefer, *request.given_up) if isinstance(rule, Spread)]


def plain_spread_score(request: PlacementRequest, node: Node, found: list[Node], placed: Placed) -> int:
    rules = wished_spreads(request)
    counted = [each for each in found if has_all(each, rules)]
    if node not in counted:
        return -1
    total = 0.0
    for rule in rules:
        eligible = [each for each in counted if counts_node(rule, request, each)]
        if rule.over == "node":
            count = sum(
                names_whom(rule, request.identity, identity)
                for other, _, identity in there(found, placed)
                if other is node
            )
            size = len(counted)
        else:
            count = in_domains(rule, request, found, placed, eligible).get(place_of(node, rule.over), 0)
            size = len({place_of(each, rule.over) for each in counted})
        weighed = float(count)
        if rule.targets:
            places = {place_of(each, rule.over) for each in counted}
            share = share_of(rule, str(place_of(node, rule.over)), places)
            weighed = (count + 1) / (max(share, 0.001) * size)
        total += weighed * math.log(size + 2) + (rule.max_skew - 1)
    return math.floor(total * (10 if any(rule.targets for rule in rules) else 1) + 0.5)


def plain_pool(request: PlacementRequest, node: Node, found: list[Node], placed: Placed) -> bool:
    if request.shape.pool is not None and node.spec.pool != request.shape.pool:
        return False
    others = [
        (shape, identity)
        for other, shape, identity in there(found, placed)
        if other is node and identity.owner != request.identity.owner
    ]
    if any(shape.dedicated for shape, _ in others):
        return False
    return not (request.shape.dedicated and others)


def plain_name(request: PlacementRequest, node: Node, found: list[Node], placed: Placed) -> bool:
    return request.pin in {"", node.meta.name}


def quota_of(node: Node) -> int:
    said = node.status.facts.get("vm.quota", "")
    return int(said) if said.isdigit() else 2


def plain_machines(request: PlacementRequest, node: Node, found: list[Node], placed: Placed) -> bool:
    held = sum(shape.machine for other, shape, _ in there(found, placed) if other is node)
    return not request.shape.machine or held < quota_of(node)


def plain_machine_score(request: PlacementRequest, node: Node, found: list[Node], placed: Placed) -> int:
    held = sum(shape.machine for other, shape, _ in there(found, placed) if other is node)
    quota = quota_of(node)
    return max(quota - held - 1, 0) * 100 // quota if quota else 0


def plain_quota(request: PlacementRequest, node: Node, found: list[Node], placed: Placed) -> bool:
    cpu = sum(dict(shape.wanted).get("cpu", 0) for _, shape, _ in placed)
    wanted = dict(request.shape.wanted).get("cpu", 0)
    return len(placed) + 1 <= 5 and (not wanted or cpu + wanted <= 1500)


def plain_hot(request: PlacementRequest, node: Node, found: list[Node], placed: Placed) -> bool:
    usage, room = node.status.usage, node.allocatable
    return usage is None or (
        usage.cpu_milli * 100 <= 40 * room.cpu_milli and usage.memory_bytes * 100 <= 80 * room.memory_bytes
    )


def plain_closeness(request: PlacementRequest, node: Node, found: list[Node], placed: Placed) -> int:
    total = 0
    for other, shape, identity in there(found, placed):
        shared = sum(together(node, other, over) for over in ("node", "zone"))
        for rule in every_rule(request.shape):
            if isinstance(rule, Near) and names_whom(rule, request.identity, identity):
                total += (rule.weight or 1) * shared
        if identity is NO_IDENTITY:
            continue
        for rule in every_rule(shape):
            if isinstance(rule, Near) and names_whom(rule, identity, request.identity):
                total += (rule.weight or 1) * shared
    return total


def plain_turn(request: PlacementRequest, node: Node, found: list[Node], placed: Placed) -> int:
    def last(each: Node) -> int:
        return max((index + 1 for index, (name, _, _) in enumerate(placed) if name == each.meta.name), default=0)

    # Turns are numbered over all nodes, those the table does not know left out; their order is what counts.
    return 100 if last(node) == min(last(each) for each in found) else 0


def plain_limit(request: PlacementRequest, node: Node, found: list[Node], placed: Placed) -> bool:
    most = node.status.facts.get("instances.max", "")
    held = sum(shape.heads for other, shape, _ in there(found, placed) if other is node)
    return not most.isdigit() or held < int(most)


FILTERS: list[tuple[FilterPlugin, Callable[..., bool]]] = [
    (InterPodAffinity(), plain_ties),
    (PodTopologySpread(), plain_spread),
    (PoolFit(), plain_pool),
    (InstanceLimit(), plain_limit),
    (NodeName(), plain_name),
    (VMQuota(VMQuotaArgs(quota=2)), plain_machines),
    (Quota(QuotaArgs(namespaces={"default": {"cpu": "1.5", "instances": 5}})), plain_quota),
    (LoadAware(LoadAwareArgs(usage_thresholds={"cpu": 40, "memory": 80})), plain_hot),
]


@pytest.mark.req("S3-30", "S3-31", "S3-32")
@BRIEFLY
@given(cluster=clusters())
def test_a_vectorised_filter_shows_what_a_plain_loop_shows(cluster: Any) -> None:
    found, placed, request = cluster
    snapshot = build(found, placed).snapshot()
    for plugin, plain in FILTERS:
        mask = mask_of(plugin, request, snapshot)
        assert mask.tolist() == [plain(request, node, found, placed) for node in found], plugin.name
        if not mask.all():
            plugin.why(request, snapshot, ~mask)


SCORES: list[tuple[ScorePlugin, Callable[..., int]]] = [
    (InterPodAffinity(), plain_tie_score),
    (PodTopologySpread(), plain_spread_score),
    (Proximity(), plain_closeness),
    (VMQuota(VMQuotaArgs(quota=2)), plain_machine_score),
    (RoundRobin(), plain_turn),
]


@pytest.mark.req("S2-14", "S2-15", "S0-10")
@BRIEFLY
@given(cluster=clusters())
def test_a_vectorised_score_shows_what_a_plain_loop_shows(cluster: Any) -> None:
    found, placed, request = cluster
    for plugin, plain in SCORES:
        expected = [plain(request, node, found, placed) for node in found]
        check_scores(plugin, request, build(found, placed).snapshot(), expected)
