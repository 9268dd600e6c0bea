"""Placement on random clusters: the vector form says what a plain loop says, and the table never loses count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from mandor.model.group import GroupTemplate
from mandor.model.node import Capabilities, Node, NodePhase, Taint
from mandor.model.placement import Strength, Toleration, Where
from mandor.placement.cycle import decide, find_node, relaxation_steps
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.points import FilterPlugin, ScorePlugin
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.framework.snapshot import node_facts
from mandor.placement.framework.watch import Unwatched
from mandor.placement.plugins.avoid import Avoid
from mandor.placement.plugins.engine_fit import EngineFit
from mandor.placement.plugins.node_affinity import NodeAffinity
from mandor.placement.plugins.node_ports import NodePorts
from mandor.placement.plugins.node_resources_fit import NodeResourcesFit
from mandor.placement.plugins.node_unschedulable import NodeUnschedulable
from mandor.placement.plugins.pool_fit import PoolFit
from mandor.placement.plugins.taint_toleration import TaintToleration
from mandor.placement.profiles import default_profile
from tests.property.tables import NAMES, STATE, ChangedTable, build, by_name, check_scores, key, mask_of
from tests.scenarios.make import MI, make_node, make_template

BRIEFLY = settings(max_examples=60, deadline=None)

words = st.sampled_from(["a", "b", "c"])
taints = st.builds(
    Taint,
    key=words,
    value=st.sampled_from(["", "a"]),
    effect=st.sampled_from(["NoSchedule", "PreferNoSchedule", "NoExecute"]),
)
tolerations = st.builds(
    Toleration,
    key=st.sampled_from(["", "a", "b"]),
    value=st.sampled_from([None, "", "a"]),
    effect=st.sampled_from([None, "NoSchedule", "PreferNoSchedule", "NoExecute"]),
)
engines = st.dictionaries(
    st.sampled_from(["docker", "podman", "process"]), st.builds(Capabilities, up=st.booleans(), images=st.booleans())
)


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Node:
    return make_node(
        name,
        cpu=draw(st.sampled_from([0, 0.5, 1, 2, 4])),
        memory=draw(st.sampled_from([0, 256, 512, 1024])) * MI,
        devices=draw(st.dictionaries(st.sampled_from(["gpu", "tpu"]), st.integers(0, 2))),
        phase=draw(st.sampled_from(list(NodePhase))),
        cordoned=draw(st.booleans()),
        pool=draw(words),
        taints=tuple(draw(st.lists(taints, max_size=2, unique_by=lambda each: (each.key, each.effect)))),
        engines=draw(engines),
        labels=draw(st.dictionaries(st.sampled_from(["zone", "disk"]), words)),
        facts=draw(st.dictionaries(st.sampled_from(["zone", "arch"]), words)),
    )


rules = st.sampled_from(
    [
        "zone == a",
        "zone != a",
        "zone in [a, b]",
        "zone not in [b]",
        "disk exists",
        "arch not exists",
        "engine == docker",
        "engine != process",
        "pool == a",
        "node == n1",
    ]
)


@st.composite
def wheres(draw: st.DrawFn) -> Where:
    strengths: list[Strength] = ["must", "should", "prefer"]
    strength = draw(st.sampled_from(strengths))
    weight = draw(st.sampled_from([None, 1, 50, 100])) if strength == "prefer" else None
    if draw(st.booleans()):
        return Where(rule=draw(rules), strength=strength, weight=weight)
    return Where(any=tuple(draw(st.lists(rules, min_size=1, max_size=3))), strength=strength, weight=weight)


@st.composite
def templates(draw: st.DrawFn) -> GroupTemplate:
    fields: dict[str, Any] = {
        "cpu": draw(st.sampled_from(["0", "250m", "1", "2"])),
        "memory": draw(st.sampled_from(["0", "200Mi", "512Mi"])),
        "engine": draw(st.lists(st.sampled_from(["docker", "podman", "process"]), unique=True, max_size=2)),
    }
    if draw(st.booleans()):
        fields["image"] = "web:1"
    if draw(st.booleans()):
        fields["ports"] = {"http": {"port": 80, "host": draw(st.sampled_from([80, 81]))}}
    made = make_template(**fields)
    placement = type(made.placement)(
        pool=draw(st.sampled_from([None, "a"])),
        where=tuple(draw(st.lists(wheres(), max_size=3))),
        tolerate=tuple(draw(st.lists(tolerations, max_size=2))),
    )
    return GroupTemplate(engine=made.engine, ports=made.ports, placement=placement, tasks=made.tasks)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Node], list[tuple[str, Shape]], PlacementRequest]:
    """Nodes, what is placed on them already, and one more who asks."""
    found = [draw(nodes(name)) for name in NAMES[: draw(st.integers(0, 6))]]
    shapes = [Shape.of(draw(templates())) for _ in range(2)]
    placed = [
        (draw(st.sampled_from(found)).meta.name, draw(st.sampled_from(shapes)))
        for _ in range(draw(st.integers(0, 6)) if found else 0)
    ]
    shape = Shape.of(draw(templates()))
    request = PlacementRequest(
        key(99),
        shape,
        avoid=frozenset(draw(st.sets(st.sampled_from(NAMES), max_size=2))),
        dropped=draw(st.integers(0, len(shape.should))),
    )
    return found, placed, request


# The same rules once more, one node at a time, in the plainest words.


def used_on(node: Node, placed: list[tuple[str, Shape]], resource: str) -> int:
    return sum(dict(shape.wanted).get(resource, 0) for name, shape in placed if name == node.meta.name)


def room_on(node: Node, resource: str) -> int:
    room = node.allocatable
    sizes = {"cpu": room.cpu_milli, "memory": room.memory_bytes, "disk": room.disk_bytes, **room.devices}
    return sizes.get(resource, 0)


def plain_resources(request: PlacementRequest, node: Node, placed: list[tuple[str, Shape]]) -> bool:
    return all(amount <= room_on(node, name) - used_on(node, placed, name) for name, amount in request.shape.wanted)


def plain_unschedulable(request: PlacementRequest, node: Node, placed: list[tuple[str, Shape]]) -> bool:
    return node.status.phase is NodePhase.READY and not node.spec.cordoned


def plain_engine(request: PlacementRequest, node: Node, placed: list[tuple[str, Shape]]) -> bool:
    for name, capabilities in node.status.engines.items():
        named = not request.shape.engines or name in request.shape.engines
        if named and capabilities.up and all(image == capabilities.images for image in request.shape.images):
            return True
    return False


def plain_pool(request: PlacementRequest, node: Node, placed: list[tuple[str, Shape]]) -> bool:
    return request.shape.pool is None or node.spec.pool == request.shape.pool


def tolerated(taint: Taint, toleration: Toleration) -> bool:
    return (
        (toleration.key == "" or toleration.key == taint.key)
        and (toleration.value is None or toleration.value == taint.value)
        and (toleration.effect is None or toleration.effect == taint.effect)
    )


def untolerated(request: PlacementRequest, node: Node) -> list[Taint]:
    return [each for each in node.spec.taints if not any(tolerated(each, other) for other in request.shape.tolerate)]


def plain_taints(request: PlacementRequest, node: Node, placed: list[tuple[str, Shape]]) -> bool:
    return all(each.effect == "PreferNoSchedule" for each in untolerated(request, node))


def keeps(where: Where, node: Node) -> bool:
    for rule in where.rules:
        if rule.fact == "engine":
            values: list[str | None] = list(node.status.engines) or [None]
            every = rule.op in {"!=", "not in", "not exists"}
            if (all if every else any)(rule.test(value) for value in values):
                return True
        elif rule.test(node_facts(node).get(rule.fact)):
            return True
    return False


def plain_affinity(request: PlacementRequest, node: Node, placed: list[tuple[str, Shape]]) -> bool:
    return all(keeps(where, node) for where in request.hard if isinstance(where, Where))


def plain_ports(request: PlacementRequest, node: Node, placed: list[tuple[str, Shape]]) -> bool:
    taken = {port for name, shape in placed if name == node.meta.name for port in shape.host_ports}
    return not taken & set(request.shape.host_ports)


def plain_avoid(request: PlacementRequest, node: Node, placed: list[tuple[str, Shape]]) -> bool:
    return node.meta.name not in request.avoid


FILTERS: list[tuple[FilterPlugin, Callable[..., bool]]] = [
    (NodeResourcesFit(), plain_resources),
    (NodeUnschedulable(), plain_unschedulable),
    (EngineFit(), plain_engine),
    (PoolFit(), plain_pool),
    (TaintToleration(), plain_taints),
    (NodeAffinity(), plain_affinity),
    (NodePorts(), plain_ports),
    (Avoid(), plain_avoid),
]


@BRIEFLY
@given(cluster=clusters())
def test_a_vectorised_filter_shows_what_a_plain_loop_shows(cluster: Any) -> None:
    found, placed, request = cluster
    snapshot = build(found, placed).snapshot()
    for plugin, plain in FILTERS:
        assert mask_of(plugin, request, snapshot).tolist() == [plain(request, node, placed) for node in found], (
            plugin.name
        )


def plain_least_allocated(request: PlacementRequest, node: Node, placed: list[tuple[str, Shape]]) -> int:
    """As Kubernetes writes it: (capacity - requested) * 100 / capacity, whole numbers, the mean over resources."""
    total = weights = 0
    for index, resource in enumerate(("cpu", "memory")):
        capacity = room_on(node, resource)
        if capacity == 0:
            continue
        requested = request.shape.counted[index]
        requested += sum(shape.counted[index] for name, shape in placed if name == node.meta.name)
        weights += 1
        if requested <= capacity:
            total += (capacity - requested) * 100 // capacity
    return total // weights if weights else 0


def plain_soft_taints(request: PlacementRequest, node: Node, placed: list[tuple[str, Shape]]) -> int:
    return sum(each.effect == "PreferNoSchedule" for each in untolerated(request, node))


def plain_preference(request: PlacementRequest, node: Node, placed: list[tuple[str, Shape]]) -> int:
    kept = [where for where in request.shape.prefer if isinstance(where, Where) and keeps(where, node)]
    given_up = [where for where in request.given_up if isinstance(where, Where) and keeps(where, node)]
    return sum(where.weight or 1 for where in kept) + 100 * len(given_up)


SCORES: list[tuple[ScorePlugin, Callable[..., int]]] = [
    (NodeResourcesFit(), plain_least_allocated),
    (TaintToleration(), plain_soft_taints),
    (NodeAffinity(), plain_preference),
]


@pytest.mark.req("S2-14")
@BRIEFLY
@given(cluster=clusters())
def test_a_vectorised_score_shows_what_a_plain_loop_shows(cluster: Any) -> None:
    found, placed, request = cluster
    for plugin, plain in SCORES:
        check_scores(plugin, request, build(found, placed).snapshot(), [plain(request, node, placed) for node in found])


PROFILE = default_profile()


@BRIEFLY
@given(cluster=clusters())
def test_a_decision_is_a_node_that_passes_every_filter_or_none_does(cluster: Any) -> None:
    found, placed, request = cluster
    decision = decide(PROFILE, request, build(found, placed).snapshot())
    by_name = {node.meta.name: node for node in found}
    soft = {plain_affinity, plain_avoid}
    hard = [plain for _, plain in FILTERS if plain not in soft]

    def fits(node: Node) -> bool:
        return all(plain(request, node, placed) for plain in hard) and all(
            keeps(where, node) for where in request.shape.must
        )

    assert not decision.fault
    if decision.node:
        chosen = by_name[decision.node]
        assert fits(chosen)
        if not decision.relaxed:
            assert plain_affinity(request, chosen, placed)
            assert plain_avoid(request, chosen, placed)
        else:
            assert not any(
                fits(node) and plain_affinity(request, node, placed) and plain_avoid(request, node, placed)
                for node in found
            ), "nothing is given up without need"
    else:
        assert not any(map(fits, found))
        assert decision.message.startswith(f"0/{len(found)} nodes fit")


@BRIEFLY
@given(cluster=clusters(), order=st.randoms(use_true_random=False))
def test_equal_clusters_give_equal_placements_whatever_the_order_of_changes(cluster: Any, order: Any) -> None:
    found, placed, request = cluster
    first = decide(PROFILE, request, build(found, placed).snapshot())
    shuffled = list(found)
    order.shuffle(shuffled)
    again = decide(PROFILE, request, build(shuffled, placed).snapshot())
    assert (again.node, again.relaxed) == (first.node, first.relaxed)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    shapes = [Shape.of(draw(templates())) for _ in range(3)]
    steps: list[tuple[Any, ...]] = []
    for _ in range(draw(st.integers(0, 25))):
        what = draw(st.sampled_from(["node", "node", "gone", "allocation", "allocation", "drop"]))
        if what == "node":
            steps.append((what, draw(nodes(draw(st.sampled_from(NAMES))))))
        elif what == "gone":
            steps.append((what, draw(st.sampled_from(NAMES))))
        elif what == "allocation":
            steps.append((what, draw(st.integers(0, 5)), draw(st.sampled_from(NAMES)), draw(st.sampled_from(shapes))))
        else:
            steps.append((what, draw(st.integers(0, 5))))
    return steps


@BRIEFLY
@given(steps=histories(), request=clusters())
def test_a_table_updated_by_changes_equals_a_new_one(steps: Any, request: Any) -> None:
    told, asking = ChangedTable(), request[2]
    for step in steps:
        told.apply(*step)
        told.table.snapshot().fact("zone")  # a column made early is kept up to date, too
    table, fresh = told.table, told.anew()
    assert {name: table.free(name) for name in told.nodes} == {
        name: {**dict.fromkeys(table.free(name), 0), **fresh.free(name)} for name in told.nodes
    }
    for plugin, _ in FILTERS:
        kept, anew = (by_name(each, plugin.filter(STATE, asking, each.snapshot())) for each in (table, fresh))
        assert kept == anew, plugin.name
    assert decide(PROFILE, asking, table.snapshot()).node == decide(PROFILE, asking, fresh.snapshot()).node


@st.composite
def forms(draw: st.DrawFn, main: Shape) -> Shape:
    """The same rules, and other forms."""
    others = [Shape.of(draw(templates())) for _ in range(draw(st.integers(1, 3)))]
    common = {name: getattr(main, name) for name in ("pool", "tolerate", "must", "should", "prefer", "home")}
    made = [replace(each, **common, variant=number) for number, each in enumerate(others, 1)]
    return replace(main, alternatives=tuple(made))


def plain_pair(
    found: list[Node], placed: list[tuple[str, Shape]], request: PlacementRequest
) -> tuple[str, int, tuple[str, ...]] | None:
    """The first form, in their order, that has a place as if it were the only one: with all rules, then with fewer."""
    for relaxed_request, relaxed in relaxation_steps(request, avoided=False):
        for shape in (request.shape, *request.shape.alternatives):
            alone = structs.replace(relaxed_request, shape=replace(shape, alternatives=()))
            if any(all(plain(alone, node, placed) for _, plain in FILTERS) for node in found):
                node = find_node(PROFILE, CycleState(), alone, build(found, placed).snapshot(), Unwatched())
                assert isinstance(node, str)
                return node, shape.variant, relaxed
    return None


@pytest.mark.req("S0-2", "S0-10")
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_the_pair_of_form_and_node_is_the_one_that_a_plain_loop_over_forms_finds(data: st.DataObject) -> None:
    found, placed, request = data.draw(clusters())
    request = structs.replace(request, shape=data.draw(forms(request.shape)))
    decision = decide(PROFILE, request, build(found, placed).snapshot())
    expected = plain_pair(found, placed, request)
    assert not decision.fault
    if expected is None:
        assert not decision.node
        told = ["the main form", *(f"alternative {number + 1}" for number in range(len(request.shape.alternatives)))]
        assert all(f"{name}" in decision.message for name in told)
    else:
        assert decision.request is not None
        assert (decision.node, decision.request.shape.variant, decision.relaxed) == expected
        assert bool(decision.message) == bool(expected[1]), "why the forms before had no place"


@BRIEFLY
@given(data=st.data(), count=st.integers(1, 30))
def test_whichever_forms_are_chosen_no_node_is_ever_over_its_capacity(data: st.DataObject, count: int) -> None:
    found, _, request = data.draw(clusters())
    shape, table = data.draw(forms(request.shape)), build(found, [])
    for index in range(count):
        decision = decide(PROFILE, PlacementRequest(key(index), shape), table.snapshot())
        if decision.node:
            assert decision.request is not None
            table.set_allocation(key(index), decision.node, decision.request.shape)
    for name in (node.meta.name for node in found):
        assert all(amount >= 0 for amount in table.free(name).values())


@BRIEFLY
@given(cluster=clusters(), count=st.integers(1, 30))
def test_no_node_is_ever_over_its_capacity(cluster: Any, count: int) -> None:
    found, _, request = cluster
    table = build(found, [])
    for index in range(count):
        one = PlacementRequest(key(index), request.shape)
        decision = decide(PROFILE, one, table.snapshot())
        if decision.node:
            table.set_allocation(one.key, decision.node, one.shape)
    for name in (node.meta.name for node in found):
        assert all(amount >= 0 for amount in table.free(name).values())
