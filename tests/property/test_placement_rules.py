"""Rules about other instances and scores of room, on random clusters: the vector form says what a plain loop says."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Node, NodeStatus, PortRange
from mandor.model.placement import Apart, Near, Spread, Strength
from mandor.model.resources import Resources
from mandor.placement.cycle import decide
from mandor.placement.framework.allocation import Weighed
from mandor.placement.framework.ask import Ask, Shape
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.identity import NOBODY, Identity
from mandor.placement.framework.points import SKIP, FilterPlugin, PreFilterPlugin, PreScorePlugin, ScorePlugin
from mandor.placement.framework.snapshot import node_facts
from mandor.placement.plugins.bin_pack import BinPack
from mandor.placement.plugins.fragmentation import Fragmentation
from mandor.placement.plugins.image_locality import ImageLocality
from mandor.placement.plugins.inter_pod_affinity import InterPodAffinity
from mandor.placement.plugins.load_aware import LoadAware, LoadAwareArgs
from mandor.placement.plugins.node_name import NodeName
from mandor.placement.plugins.node_resources_balanced_allocation import (
    NodeResourcesBalancedAllocation,
    NodeResourcesBalancedAllocationArgs,
)
from mandor.placement.plugins.node_resources_fit import (
    Curve,
    CurvePoint,
    NodeResourcesFit,
    NodeResourcesFitArgs,
    ScoringStrategy,
)
from mandor.placement.plugins.pod_topology_spread import PodTopologySpread
from mandor.placement.plugins.pool_fit import PoolFit
from mandor.placement.plugins.proximity import Proximity
from mandor.placement.plugins.quota import Quota, QuotaArgs
from mandor.placement.plugins.round_robin import RoundRobin
from mandor.placement.plugins.vm_quota import VMQuota, VMQuotaArgs
from mandor.placement.profiles import default_profile
from mandor.placement.table import Table
from tests.scenarios.make import MI, PROCESS, make_node, make_template

NAMES = [f"n{index}" for index in range(6)]
STATE = CycleState()
BRIEFLY = settings(max_examples=80, deadline=None)

Placed = list[tuple[str, Shape, Identity]]

overs = st.sampled_from(["node", "zone", "rack"])
strengths: st.SearchStrategy[Strength] = st.sampled_from(["must", "should", "prefer"])
MATCHES = [{"app": "a"}, {"app": "b"}, {"tier": "a"}, {"app": "a", "tier": "b"}]
labels: st.SearchStrategy[dict[str, str]] = st.sampled_from([{}, *MATCHES])
identities = st.builds(
    Identity,
    st.sampled_from(["default", "other"]),
    st.sampled_from(["web", "db"]),
    st.sampled_from(["main", "side"]),
    labels,
)


@st.composite
def ties(draw: st.DrawFn) -> dict[str, Any]:
    rule: dict[str, Any] = {"over": draw(overs), "strength": draw(strengths)}
    if rule["strength"] == "prefer":
        rule["weight"] = draw(st.integers(1, 100))
    who = draw(st.sampled_from(["self", "web", "db", "match"]))
    if who == "match":
        rule["match"] = draw(st.sampled_from(MATCHES))
    else:
        rule["workload"] = who
        if who != "self" and draw(st.booleans()):
            rule["group"] = "side"
    if who != "self":
        rule["namespaces"] = draw(st.sampled_from([[], ["other"], ["*"]]))
    return rule


@st.composite
def spreads(draw: st.DrawFn) -> dict[str, Any]:
    rule = {"over": draw(overs), "max_skew": draw(st.integers(1, 3)), "strength": draw(strengths)}
    return {**rule, "match": draw(labels)} if draw(st.booleans()) else rule


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    placement = {
        "near": draw(st.lists(ties(), max_size=2)),
        "apart": draw(st.lists(ties(), max_size=2)),
        "spread": draw(st.lists(spreads(), max_size=2)),
        "where": draw(st.lists(st.sampled_from([{"rule": "zone == a"}, {"rule": "disk exists"}]), max_size=1)),
        "dedicated": draw(st.integers(0, 5)) == 0,
        "pool": draw(st.sampled_from([None, None, "x"])),
    }
    fields: dict[str, Any] = {
        "cpu": f"{draw(st.sampled_from([0, 100, 500, 1300]))}m",
        "memory": f"{draw(st.sampled_from([0, 64, 100, 333]))}Mi",
        "image": draw(st.sampled_from(["a", "b:1", "c:1"])),
    }
    made = Shape.of(make_template(placement=placement, **fields))
    return replace(made, machine=draw(st.booleans()))


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Node:
    node = make_node(
        name,
        cpu=draw(st.sampled_from([0, 0.5, 1, 3, 4])),
        memory=draw(st.sampled_from([0, 256, 700, 1024])) * MI,
        pool=draw(st.sampled_from(["x", "y"])),
        labels=draw(st.dictionaries(st.sampled_from(["zone", "rack", "disk"]), st.sampled_from(["a", "b", "c"]))),
        facts=draw(st.dictionaries(st.just("vm.quota"), st.sampled_from(["0", "1", "3", "many"]))),
        engines=PROCESS,
    )
    status = node.status
    usage = draw(st.sampled_from([None, Resources(200, 100 * MI, 0), Resources(900, 650 * MI, 0)]))
    images = draw(st.dictionaries(st.sampled_from(["a:latest", "b:1"]), st.sampled_from([10, 90, 800, 3000])))
    changed = NodeStatus(
        phase=status.phase,
        capacity=status.capacity,
        engines=status.engines,
        facts=status.facts,
        ports=PortRange(80, draw(st.integers(80, 83)), draw(st.sampled_from([(), (81,)]))),
        usage=usage,
        images={image: size * MI for image, size in images.items()},
    )
    return node.changed(status=changed)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Node], Placed, Ask]:
    found = [draw(nodes(name)) for name in NAMES[: draw(st.integers(0, 6))]]
    known = [draw(shapes()) for _ in range(3)]
    placed = [
        (draw(st.sampled_from(NAMES)), draw(st.sampled_from(known)), draw(identities | st.just(NOBODY)))
        for _ in range(draw(st.integers(0, 8)))
    ]
    shape = draw(st.sampled_from(known))
    ask = Ask(
        key(99),
        shape,
        who=draw(identities),
        dropped=draw(st.integers(0, len(shape.should))),
        lenient=draw(st.booleans()),
        pin=draw(st.sampled_from(["", "", "n0", "n9"])),
    )
    return found, placed, ask


def key(index: int, namespace: str = "default") -> Key:
    return Key(Instance.kind, namespace, f"i-{index}")


def build(found: list[Node], placed: Placed) -> Table:
    table = Table()
    for node in found:
        table.set_node(node)
    for index, (name, shape, who) in enumerate(placed):
        table.set_charge(key(index), name, shape, who)
    return table


# The rules, as plain as can be.


def names_whom(rule: Near | Apart | Spread, owner: Identity, other: Identity) -> bool:
    """Does the owner's rule speak of the other?"""
    if other is NOBODY:
        return False
    if isinstance(rule, Spread):
        if other.namespace != owner.namespace:
            return False
        if rule.match:
            return set(rule.match.items()) <= other.labels
        return (other.workload, other.group) == (owner.workload, owner.group)
    if rule.workload == "self":
        return (other.namespace, other.workload, other.group) == (owner.namespace, owner.workload, owner.group)
    spaces = rule.namespaces or (owner.namespace,)
    if "*" not in spaces and other.namespace not in spaces:
        return False
    if rule.workload is not None:
        return other.workload == rule.workload and (rule.group is None or other.group == rule.group)
    return set(rule.match.items()) <= other.labels


def place_of(node: Node, over: str) -> str | None:
    return node_facts(node).get(over)


def together(node: Node, other: Node, over: str) -> bool:
    return place_of(node, over) is not None and place_of(node, over) == place_of(other, over)


def there(found: list[Node], placed: Placed) -> list[tuple[Node, Shape, Identity]]:
    by_name = {node.meta.name: node for node in found}
    return [(by_name[name], shape, who) for name, shape, who in placed if name in by_name]


def company(rule: Near | Apart, ask: Ask, node: Node, found: list[Node], placed: Placed) -> int:
    return sum(
        names_whom(rule, ask.who, who) and together(node, other, rule.over) for other, _, who in there(found, placed)
    )


def every_rule(shape: Shape) -> list[Any]:
    return [*shape.must, *shape.should, *shape.prefer]


def plain_ties(ask: Ask, node: Node, found: list[Node], placed: Placed) -> bool:
    for rule in ask.hard:
        if isinstance(rule, Apart) and company(rule, ask, node, found, placed):
            return False
        if isinstance(rule, Near) and not company(rule, ask, node, found, placed):
            anywhere = any(company(rule, ask, each, found, placed) for each in found)
            first = names_whom(rule, ask.who, ask.who) and not anywhere and place_of(node, rule.over) is not None
            if not first:
                return False
    for other, shape, who in there(found, placed):
        if who is NOBODY:
            continue
        for rule in every_rule(shape):
            binding = isinstance(rule, Apart) and (
                rule.strength == "must" or (rule.strength == "should" and not ask.lenient)
            )
            if binding and names_whom(rule, who, ask.who) and together(node, other, rule.over):
                return False
    return True


def plain_tie_score(ask: Ask, node: Node, found: list[Node], placed: Placed) -> int:
    total = 0
    for rule in ask.shape.prefer:
        if isinstance(rule, Near | Apart):
            sign = 1 if isinstance(rule, Near) else -1
            total += sign * (rule.weight or 1) * company(rule, ask, node, found, placed)
    for rule in ask.given_up:
        if isinstance(rule, Near | Apart):
            total += (100 if isinstance(rule, Near) else -100) * company(rule, ask, node, found, placed)
    for other, shape, who in there(found, placed):
        if who is NOBODY:
            continue
        for rule in every_rule(shape):
            if not isinstance(rule, Near | Apart) or not names_whom(rule, who, ask.who):
                continue
            if not together(node, other, rule.over):
                continue
            if rule.strength == "prefer":
                total += (rule.weight or 1) * (1 if isinstance(rule, Near) else -1)
            elif isinstance(rule, Near):
                total += 1
            elif rule.strength == "should" and ask.lenient:
                total -= 100
    return total


def keeps_where(ask: Ask, node: Node) -> bool:
    return all(rule.rules[0].test(node_facts(node).get(rule.rules[0].fact)) for rule in ask.rules.where)


def in_domains(
    rule: Spread, ask: Ask, found: list[Node], placed: Placed, eligible: list[Node]
) -> dict[str | None, int]:
    counts = {place_of(node, rule.over): 0 for node in eligible}
    for node, _, who in there(found, placed):
        if node in eligible and names_whom(rule, ask.who, who):
            counts[place_of(node, rule.over)] += 1
    return counts


def has_all(node: Node, rules: list[Spread]) -> bool:
    return all(place_of(node, rule.over) is not None for rule in rules)


def plain_spread(ask: Ask, node: Node, found: list[Node], placed: Placed) -> bool:
    rules = [rule for rule in ask.hard if isinstance(rule, Spread)]
    eligible = [
        each
        for each in found
        if keeps_where(ask, each) and all(place_of(each, rule.over) is not None for rule in rules)
    ]
    for rule in rules:
        counts = in_domains(rule, ask, found, placed, eligible)
        here = place_of(node, rule.over)
        if here is None or here not in counts:
            return False
        itself = int(names_whom(rule, ask.who, ask.who))
        if counts[here] + itself - min(counts.values()) > rule.max_skew:
            return False
    return True


def wished_spreads(ask: Ask) -> list[Spread]:
    return [rule for rule in (*ask.shape.prefer, *ask.given_up) if isinstance(rule, Spread)]


def plain_spread_score(ask: Ask, node: Node, found: list[Node], placed: Placed) -> int:
    rules = wished_spreads(ask)
    counted = [each for each in found if has_all(each, rules)]
    if node not in counted:
        return -1
    eligible = [each for each in counted if keeps_where(ask, each)]
    total = 0.0
    for rule in rules:
        if rule.over == "node":
            count = sum(names_whom(rule, ask.who, who) for other, _, who in there(found, placed) if other is node)
            size = len(counted)
        else:
            count = in_domains(rule, ask, found, placed, eligible).get(place_of(node, rule.over), 0)
            size = len({place_of(each, rule.over) for each in counted})
        total += count * math.log(size + 2) + (rule.max_skew - 1)
    return math.floor(total + 0.5)


def plain_pool(ask: Ask, node: Node, found: list[Node], placed: Placed) -> bool:
    if ask.shape.pool is not None and node.spec.pool != ask.shape.pool:
        return False
    others = [
        (shape, who) for other, shape, who in there(found, placed) if other is node and who.owner != ask.who.owner
    ]
    if any(shape.dedicated for shape, _ in others):
        return False
    return not (ask.shape.dedicated and others)


def plain_name(ask: Ask, node: Node, found: list[Node], placed: Placed) -> bool:
    return ask.pin in {"", node.meta.name}


def quota_of(node: Node) -> int:
    said = node.status.facts.get("vm.quota", "")
    return int(said) if said.isdigit() else 2


def plain_machines(ask: Ask, node: Node, found: list[Node], placed: Placed) -> bool:
    held = sum(shape.machine for other, shape, _ in there(found, placed) if other is node)
    return not ask.shape.machine or held < quota_of(node)


def plain_machine_score(ask: Ask, node: Node, found: list[Node], placed: Placed) -> int:
    held = sum(shape.machine for other, shape, _ in there(found, placed) if other is node)
    quota = quota_of(node)
    return max(quota - held - 1, 0) * 100 // quota if quota else 0


def plain_quota(ask: Ask, node: Node, found: list[Node], placed: Placed) -> bool:
    cpu = sum(dict(shape.wanted).get("cpu", 0) for _, shape, _ in placed)
    wanted = dict(ask.shape.wanted).get("cpu", 0)
    return len(placed) + 1 <= 5 and (not wanted or cpu + wanted <= 1500)


def plain_hot(ask: Ask, node: Node, found: list[Node], placed: Placed) -> bool:
    usage, room = node.status.usage, node.allocatable
    return usage is None or (
        usage.cpu_milli * 100 <= 40 * room.cpu_milli and usage.memory_bytes * 100 <= 80 * room.memory_bytes
    )


FILTERS: list[tuple[FilterPlugin, Callable[..., bool]]] = [
    (InterPodAffinity(), plain_ties),
    (PodTopologySpread(), plain_spread),
    (PoolFit(), plain_pool),
    (NodeName(), plain_name),
    (VMQuota(VMQuotaArgs(quota=2)), plain_machines),
    (Quota(QuotaArgs(namespaces={"default": {"cpu": "1.5", "instances": 5}})), plain_quota),
    (LoadAware(LoadAwareArgs(usage_thresholds={"cpu": 40, "memory": 80})), plain_hot),
]


@pytest.mark.req("S3-30", "S3-31", "S3-32")
@BRIEFLY
@given(cluster=clusters())
def test_a_vectorised_filter_says_what_a_plain_loop_says(cluster: Any) -> None:
    found, placed, ask = cluster
    snapshot = build(found, placed).snapshot()
    for plugin, plain in FILTERS:
        skipped = isinstance(plugin, PreFilterPlugin) and plugin.pre_filter(STATE, ask, snapshot) is SKIP
        mask = np.ones(len(found), dtype=bool) if skipped else plugin.filter(STATE, ask, snapshot)
        assert mask.tolist() == [plain(ask, node, found, placed) for node in found], plugin.name
        if not mask.all():
            plugin.why(ask, snapshot, ~mask)


# Room, as plain as can be.


def amounts(ask: Ask, node: Node, placed: Placed, resource: str, *, counted: bool) -> tuple[int, int]:
    """Taken with it, and capacity."""
    room = node.allocatable
    capacity = {"cpu": room.cpu_milli, "memory": room.memory_bytes, "disk": room.disk_bytes}[resource]
    here = [*(shape for name, shape, _ in placed if name == node.meta.name), ask.shape]
    if counted and resource in {"cpu", "memory"}:
        return sum(shape.counted[("cpu", "memory").index(resource)] for shape in here), capacity
    return sum(dict(shape.wanted).get(resource, 0) for shape in here), capacity


def plain_share(strategy: str, weights: dict[str, int]) -> Callable[..., int]:
    def score(ask: Ask, node: Node, found: list[Node], placed: Placed) -> int:
        total = weight = 0
        for resource, each in weights.items():
            taken, capacity = amounts(ask, node, placed, resource, counted=True)
            if capacity == 0:
                continue
            weight += each
            if strategy == "least":
                total += each * ((capacity - taken) * 100 // capacity if taken <= capacity else 0)
            else:
                total += each * (min(taken, capacity) * 100 // capacity)
        return total // weight if weight else 0

    return score


def plain_curve(ask: Ask, node: Node, found: list[Node], placed: Placed) -> int:
    """0 at 0 %, 100 at 50 %, 20 at 100 %."""
    total = weights = 0
    for resource, weight in {"cpu": 3, "memory": 1}.items():
        taken, capacity = amounts(ask, node, placed, resource, counted=True)
        percent = 100 if capacity == 0 or taken > capacity else taken * 100 // capacity
        score = percent * 100 // 50 if percent <= 50 else 100 + math.trunc(-80 * (percent - 50) / 50)
        if score > 0:
            total += score * weight
            weights += weight
    return math.floor(total / weights + 0.5) if weights else 0


def plain_balance(resources: tuple[str, ...]) -> Callable[..., int]:
    def score(ask: Ask, node: Node, found: list[Node], placed: Placed) -> int:
        shares = []
        for resource in resources:
            taken, capacity = amounts(ask, node, placed, resource, counted=False)
            if capacity:
                shares.append(min(taken / capacity, 1.0))
        deviation = 0.0
        if len(shares) == 2:
            deviation = abs((shares[0] - shares[1]) / 2)
        elif len(shares) > 2:
            mean = sum(shares) / len(shares)
            deviation = math.sqrt(sum((each - mean) ** 2 for each in shares) / len(shares))
        return int((1 - deviation) * 100)

    return score


def plain_pack(ask: Ask, node: Node, found: list[Node], placed: Placed) -> int:
    taken, capacity = amounts(ask, node, placed, "memory", counted=True)
    if not capacity or taken > capacity:
        return 0
    if taken * 100 > 70 * capacity:
        return 49 * 100 * (capacity - taken) // (30 * capacity)
    return min(50 + 50 * 100 * taken // (65 * capacity), 100)


def plain_load(ask: Ask, node: Node, found: list[Node], placed: Placed) -> int:
    """The node has measured before anything was placed in these tables."""
    total = weight = 0
    usage = node.status.usage
    for resource in ("cpu", "memory"):
        taken, capacity = amounts(ask, node, placed, resource, counted=True)
        if usage is not None:
            taken += usage.cpu_milli if resource == "cpu" else usage.memory_bytes
        if capacity:
            weight += 1
            total += max(capacity - taken, 0) * 100 // capacity
    return total // weight if weight else 0


def plain_images(ask: Ask, node: Node, found: list[Node], placed: Placed) -> int:
    total = 0
    for name in ask.shape.image_names:
        tagged = name if ":" in name else f"{name}:latest"
        holders = sum(tagged in other.status.images for other in found)
        if tagged in node.status.images:
            total += int(node.status.images[tagged] * (holders / len(found)))
    least, most = 23 * MI, 1000 * MI * len(ask.shape.image_names)
    return 100 * (min(max(total, least), most) - least) // (most - least)


def plain_closeness(ask: Ask, node: Node, found: list[Node], placed: Placed) -> int:
    total = 0
    for other, shape, who in there(found, placed):
        shared = sum(together(node, other, over) for over in ("node", "zone"))
        for rule in every_rule(ask.shape):
            if isinstance(rule, Near) and names_whom(rule, ask.who, who):
                total += (rule.weight or 1) * shared
        if who is NOBODY:
            continue
        for rule in every_rule(shape):
            if isinstance(rule, Near) and names_whom(rule, who, ask.who):
                total += (rule.weight or 1) * shared
    return total


def plain_turn(ask: Ask, node: Node, found: list[Node], placed: Placed) -> int:
    def last(each: Node) -> int:
        return max((index + 1 for index, (name, _, _) in enumerate(placed) if name == each.meta.name), default=0)

    # Turns are numbered over all nodes, those the table does not know left out; their order is what counts.
    return 100 if last(node) == min(last(each) for each in found) else 0


def plain_loss(ask: Ask, node: Node, found: list[Node], placed: Placed) -> int:
    asked: dict[Any, int] = {}
    for _, shape, _ in placed:
        if shape.wanted:
            asked[shape.wanted] = asked.get(shape.wanted, 0) + 1
    usual = sorted(asked.items(), key=lambda item: (item[1], item[0]), reverse=True)[:4]
    total = 0
    for wanted, count in usual:
        before, after = [], []
        share = 0
        for resource, amount in wanted:
            room = {"cpu": node.allocatable.cpu_milli, "memory": node.allocatable.memory_bytes}[resource]
            used = sum(dict(shape.wanted).get(resource, 0) for name, shape, _ in placed if name == node.meta.name)
            taken = dict(ask.shape.wanted).get(resource, 0)
            before.append(max(room - used, 0) // amount)
            after.append(max(room - used - taken, 0) // amount)
            most = max(amounts(ask, each, placed, resource, counted=False)[1] for each in found)
            share = max(share, min(1000, 1000 * amount // most) if most else 0)
        total += (min(before) - min(after)) * max(1, share) * count
    return total


CURVE = Curve((CurvePoint(0, 0), CurvePoint(50, 10), CurvePoint(100, 2)))


def fit(strategy: str, *resources: Weighed, curve: Curve | None = None) -> NodeResourcesFit:
    chosen = ScoringStrategy(strategy, resources, curve)  # type: ignore[arg-type]
    return NodeResourcesFit(NodeResourcesFitArgs(scoring_strategy=chosen))


SCORES: list[tuple[ScorePlugin, Callable[..., int]]] = [
    (fit("LeastAllocated", Weighed("cpu", 2), Weighed("memory", 1)), plain_share("least", {"cpu": 2, "memory": 1})),
    (NodeResourcesFit(), plain_share("least", {"cpu": 1, "memory": 1})),
    (
        fit("MostAllocated", Weighed("cpu"), Weighed("memory", 3), Weighed("disk")),
        plain_share("most", {"cpu": 1, "memory": 3, "disk": 1}),
    ),
    (fit("RequestedToCapacityRatio", Weighed("cpu", 3), Weighed("memory"), curve=CURVE), plain_curve),
    (NodeResourcesBalancedAllocation(), plain_balance(("cpu", "memory"))),
    (
        NodeResourcesBalancedAllocation(
            NodeResourcesBalancedAllocationArgs((Weighed("cpu"), Weighed("memory"), Weighed("disk")))
        ),
        plain_balance(("cpu", "memory", "disk")),
    ),
    (BinPack(), plain_pack),
    (LoadAware(), plain_load),
    (ImageLocality(), plain_images),
    (InterPodAffinity(), plain_tie_score),
    (PodTopologySpread(), plain_spread_score),
    (Proximity(), plain_closeness),
    (VMQuota(VMQuotaArgs(quota=2)), plain_machine_score),
    (RoundRobin(), plain_turn),
    (Fragmentation(), plain_loss),
]


@pytest.mark.req("S2-14", "S2-15", "S0-10")
@BRIEFLY
@given(cluster=clusters())
def test_a_vectorised_score_says_what_a_plain_loop_says(cluster: Any) -> None:
    found, placed, ask = cluster
    everyone = np.ones(len(found), dtype=bool)
    for plugin, plain in SCORES:
        snapshot = build(found, placed).snapshot()
        expected = [plain(ask, node, found, placed) for node in found]
        if isinstance(plugin, PreScorePlugin) and plugin.pre_score(STATE, ask, snapshot, everyone) is SKIP:
            if not isinstance(plugin, NodeResourcesBalancedAllocation | VMQuota):
                assert len(set(expected)) <= 1, f"{plugin.name} says nothing, though nodes differ"
            continue
        raw = plugin.score(STATE, ask, snapshot, everyone)
        assert raw.dtype == np.int64
        assert raw.tolist() == expected, plugin.name
        if len(found):
            final = plugin.normalize(STATE, ask, raw)
            assert final.dtype == np.int64
            assert 0 <= final.min() <= final.max() <= 100, plugin.name


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    known = [draw(shapes()) for _ in range(3)]
    steps: list[tuple[Any, ...]] = []
    for _ in range(draw(st.integers(0, 30))):
        what = draw(st.sampled_from(["node", "node", "gone", "charge", "charge", "charge", "drop", "look", "relabel"]))
        if what == "node":
            steps.append((what, draw(nodes(draw(st.sampled_from(NAMES))))))
        elif what == "gone":
            steps.append((what, draw(st.sampled_from(NAMES))))
        elif what == "charge":
            who = draw(identities)
            steps.append(
                (what, draw(st.integers(0, 7)), draw(st.sampled_from(NAMES)), draw(st.sampled_from(known)), who)
            )
        elif what == "drop":
            steps.append((what, draw(st.integers(0, 7))))
        elif what == "relabel":
            steps.append((what, draw(identities), draw(labels)))
        else:
            steps.append((what,))
    return steps


PROFILE = default_profile()
ROOM = NodeResourcesFit()
KEPT: tuple[ScorePlugin, ...] = (
    InterPodAffinity(),
    PodTopologySpread(),
    Proximity(),
    ROOM,
    NodeResourcesBalancedAllocation(),
    fit("RequestedToCapacityRatio", Weighed("cpu", 3), Weighed("memory"), curve=CURVE),
)
"""What they count is kept between decisions."""


@BRIEFLY
@given(steps=histories(), cluster=clusters())
def test_what_is_counted_change_by_change_equals_what_is_counted_anew(steps: Any, cluster: Any) -> None:
    table = Table()
    ask = cluster[2]
    known: dict[str, Node] = {}
    charges: dict[int, tuple[str, Shape, Identity]] = {}
    for step in steps:
        if step[0] == "node":
            table.set_node(step[1])
            known[step[1].meta.name] = step[1]
        elif step[0] == "gone":
            table.remove_node(step[1])
            known.pop(step[1], None)
        elif step[0] == "charge":
            table.set_charge(key(step[1]), *step[2:])
            charges[step[1]] = step[2:]
        elif step[0] == "drop":
            table.drop_charge(key(step[1]))
            charges.pop(step[1], None)
        elif step[0] == "relabel":
            before = step[1]
            after = Identity(before.namespace, before.workload, before.group, step[2])
            table.relabel(before, after)
            for index, (name, shape, who) in list(charges.items()):
                if who == before and name in known:
                    charges[index] = (name, shape, after)
        else:  # counters that are asked for early are kept, too
            everyone = np.ones(len(table), dtype=bool)
            for plugin, _ in FILTERS:
                plugin.filter(STATE, ask, table.snapshot())
            ROOM.filter(STATE, ask, table.snapshot())
            for scorer in KEPT:
                scorer.score(STATE, ask, table.snapshot(), everyone)
    # Relabelling knows only those on known nodes; the others are counted when their node comes.
    fresh = build(list(known.values()), [])
    for index, charge in charges.items():
        fresh.set_charge(key(index), *charge)
    for plugin, _ in FILTERS:
        assert by_name(table, plugin.filter(STATE, ask, table.snapshot())) == by_name(
            fresh, plugin.filter(STATE, ask, fresh.snapshot())
        ), plugin.name
    assert by_name(table, ROOM.filter(STATE, ask, table.snapshot())) == by_name(
        fresh, ROOM.filter(STATE, ask, fresh.snapshot())
    )
    for scorer in (*KEPT, ImageLocality(), Fragmentation(), BinPack()):
        assert by_name(table, scored(scorer, ask, table)) == by_name(fresh, scored(scorer, ask, fresh)), scorer.name
    assert decide(PROFILE, ask, table.snapshot()) == decide(PROFILE, ask, fresh.snapshot())


def scored(plugin: ScorePlugin, ask: Ask, table: Table) -> Any:
    return plugin.score(STATE, ask, table.snapshot(), np.ones(len(table), dtype=bool))


def by_name(table: Table, answers: Any) -> dict[str, Any]:
    return dict(zip((node.meta.name for node in table.snapshot().nodes), answers.tolist(), strict=True))


@pytest.mark.req("S3-20")
@BRIEFLY
@given(cluster=clusters(), order=st.randoms(use_true_random=False))
def test_the_same_cluster_gives_the_same_placement_whatever_the_order_it_was_told_in(cluster: Any, order: Any) -> None:
    found, placed, ask = cluster
    first = decide(PROFILE, ask, build(found, placed).snapshot())
    table = Table()
    told: list[Any] = [*found, *enumerate(placed)]
    order.shuffle(told)
    for each in told:
        if isinstance(each, Node):
            table.set_node(each)
        else:
            table.set_charge(key(each[0]), *each[1])
    again = decide(PROFILE, ask, table.snapshot())
    assert (again.node, again.relaxed, again.message) == (first.node, first.relaxed, first.message)


@pytest.mark.req("S3-23", "S3-45")
@BRIEFLY
@given(cluster=clusters())
def test_rules_that_are_not_musts_never_leave_anybody_waiting(cluster: Any) -> None:
    found, placed, ask = cluster
    mild = [(name, replace(shape, must=(), dedicated=False, known={}, tied={}), who) for name, shape, who in placed]
    soft = replace(ask.shape, must=(), known={}, tied={}, dedicated=False, pool=None)
    free = replace(soft, should=(), prefer=(), known={}, tied={})
    asked = structs.replace(ask, shape=soft, dropped=0, lenient=False)
    unbound = structs.replace(ask, shape=free, dropped=0, lenient=True)
    snapshot = build(found, mild).snapshot()
    assert bool(decide(PROFILE, asked, snapshot).node) == bool(decide(PROFILE, unbound, snapshot).node)


LONG = default_profile()
LONG.local = False
"""The same plugins, each asked about all nodes for every decision."""


@st.composite
def plain_shapes(draw: st.DrawFn) -> Shape:
    """Mostly such that judge each node by itself."""
    fields: dict[str, Any] = {
        "cpu": f"{draw(st.sampled_from([0, 100, 250]))}m",
        "memory": f"{draw(st.sampled_from([0, 10, 64]))}Mi",
        "placement": {"where": draw(st.sampled_from([[], [{"rule": "zone == a", "strength": "should"}]]))},
    }
    if draw(st.integers(0, 4)) == 0:
        fields["ports"] = {"http": {"port": 80, "host": draw(st.sampled_from([80, 81, "auto"]))}}
    return Shape.of(make_template(**fields))


@pytest.mark.req("S3-20")
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_quick_way_and_the_long_way_lead_to_the_same_nodes(data: st.DataObject) -> None:
    table = build([data.draw(nodes(name)) for name in NAMES], [])
    known = [data.draw(plain_shapes() | shapes()) for _ in range(3)]
    usual = data.draw(identities)
    for index in range(data.draw(st.integers(5, 60))):
        what = data.draw(st.integers(0, 19))
        if what == 0:
            table.set_node(data.draw(nodes(data.draw(st.sampled_from(NAMES)))))
        elif what == 1 and len(table) > 1:
            table.remove_node(table.snapshot().nodes[0].meta.name)
        elif what in {2, 3} and table.charges:
            table.drop_charge(next(iter(table.charges)))
        else:
            shape = known[data.draw(st.sampled_from([0, 0, 0, 0, 0, 1, 1, 2]))]
            ask = Ask(key(index), shape, who=usual, avoid=frozenset({"n1"} if what == 4 else ()))
            found, expected = (decide(each, ask, table.snapshot()) for each in (PROFILE, LONG))
            assert (found.node, found.relaxed, found.message, found.fault) == (
                expected.node,
                expected.relaxed,
                expected.message,
                "",
            )
            if found.node:
                table.set_charge(ask.key, found.node, shape, usual)
