"""Random clusters of instances with affinity rules about each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from mandor.model.node import Node, NodeStatus, PortRange, Taint
from mandor.model.placement import Apart, Near, Spread, Strength
from mandor.model.resources import Resources
from mandor.placement.framework.identity import NO_IDENTITY, Identity
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.framework.snapshot import node_facts
from tests.property.tables import NAMES, key
from tests.scenarios.make import MI, PROCESS, make_node, make_template

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
    st.just(""),
    st.sampled_from(["r.1", "r.2"]),
    st.sampled_from([{}, {"team": "red"}]),
)
CONDITIONS = ["app in [a, c]", "app != a", "tier exists", "tier not exists", "tier not in [b]", "app == b"]
compared = st.lists(st.sampled_from(["app", "tier", "release", "none"]), max_size=2, unique=True)


TAINTS = [Taint("sla", "5"), Taint("sla", "x"), Taint("sla", "9", "PreferNoSchedule")]
TOLERATED: list[dict[str, Any]] = [{"key": "sla"}, {"key": "sla", "above": 4}, {"key": "sla", "below": 5}]


@st.composite
def ties(draw: st.DrawFn) -> dict[str, Any]:
    rule: dict[str, Any] = {"over": draw(overs), "strength": draw(strengths)}
    if rule["strength"] == "prefer":
        rule["weight"] = draw(st.integers(1, 100))
    identity = draw(st.sampled_from(["self", "web", "db", "match", "labels", "*"]))
    if identity == "match":
        rule["match"] = draw(st.sampled_from(MATCHES))
    elif identity == "labels":
        rule["labels"] = draw(st.lists(st.sampled_from(CONDITIONS), min_size=1, max_size=2, unique=True))
    else:
        rule["workload"] = identity
        if identity not in {"self", "*"} and draw(st.booleans()):
            rule["group"] = "side"
    if identity != "self":
        rule["namespaces"] = draw(st.sampled_from([[], ["other"], ["*"]]))
        rule["namespace_labels"] = draw(st.sampled_from([[], [], ["team == red"], ["team not exists"]]))
    return {**rule, "same": draw(compared), "different": draw(compared)} if draw(st.booleans()) else rule


@st.composite
def limited(draw: st.DrawFn) -> dict[str, Any]:
    rule = draw(ties())
    return rule if rule["strength"] == "prefer" else {**rule, "limit": draw(st.integers(1, 3))}


@st.composite
def spreads(draw: st.DrawFn) -> dict[str, Any]:
    rule: dict[str, Any] = {"over": draw(overs), "max_skew": draw(st.integers(1, 3)), "strength": draw(strengths)}
    if draw(st.booleans()):
        rule["match"] = draw(labels)
    if draw(st.booleans()):
        rule["labels"] = [draw(st.sampled_from(CONDITIONS))]
        rule["same"] = draw(compared)
    if rule["over"] != "node" and draw(st.booleans()):
        rule["targets"] = draw(st.sampled_from([{"a": 70, "b": 30}, {"a": 50}, {"b": 0, "c": 20}]))
    elif rule["strength"] != "prefer":
        rule["min_domains"] = draw(st.integers(1, 3))
    return {**rule, "honor": draw(st.sampled_from([[], ["where"], ["taints"], ["where", "taints"]]))}


@st.composite
def groups(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of a group with placement rules."""
    placement = {
        "near": draw(st.lists(ties(), max_size=2)),
        "apart": draw(st.lists(limited(), max_size=2)),
        "spread": draw(st.lists(spreads(), max_size=2)),
        "where": draw(st.lists(st.sampled_from([{"rule": "zone == a"}, {"rule": "disk exists"}]), max_size=1)),
        "tolerate": draw(st.lists(st.sampled_from(TOLERATED), max_size=1)),
        "dedicated": draw(st.integers(0, 5)) == 0,
        "pool": draw(st.sampled_from([None, None, "x"])),
    }
    return {
        "cpu": f"{draw(st.sampled_from([0, 100, 500, 1300]))}m",
        "memory": f"{draw(st.sampled_from([0, 64, 100, 333]))}Mi",
        "image": draw(st.sampled_from(["a", "b:1", "c:1"])),
        "placement": placement,
    }


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    return replace(Shape.of(make_template(**draw(groups()))), machine=draw(st.booleans()))


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Node:
    node = make_node(
        name,
        cpu=draw(st.sampled_from([0, 0.5, 1, 3, 4])),
        memory=draw(st.sampled_from([0, 256, 700, 1024])) * MI,
        pool=draw(st.sampled_from(["x", "y"])),
        taints=draw(st.lists(st.sampled_from(TAINTS), max_size=1).map(tuple)),
        labels=draw(st.dictionaries(st.sampled_from(["zone", "rack", "disk"]), st.sampled_from(["a", "b", "c"]))),
        facts=draw(
            st.dictionaries(st.sampled_from(["vm.quota", "instances.max"]), st.sampled_from(["0", "1", "3", "many"]))
        ),
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
def clusters(draw: st.DrawFn) -> tuple[list[Node], Placed, PlacementRequest]:
    found = [draw(nodes(name)) for name in NAMES[: draw(st.integers(0, 6))]]
    known = [draw(shapes()) for _ in range(3)]
    placed = [
        (draw(st.sampled_from(NAMES)), draw(st.sampled_from(known)), draw(identities | st.just(NO_IDENTITY)))
        for _ in range(draw(st.integers(0, 8)))
    ]
    shape = draw(st.sampled_from(known))
    request = PlacementRequest(
        key(99),
        shape,
        identity=draw(identities),
        dropped=draw(st.integers(0, len(shape.should))),
        lenient=draw(st.booleans()),
        pin=draw(st.sampled_from(["", "", "n0", "n9"])),
    )
    return found, placed, request


# Who is where, as plain as can be.


def holds(condition: str, labels: dict[str, str]) -> bool:
    """Return whether labels fulfil one of `CONDITIONS`, or a condition on the team of a namespace."""
    return {
        "app in [a, c]": labels.get("app") in {"a", "c"},
        "app != a": labels.get("app") != "a",
        "app == b": labels.get("app") == "b",
        "tier exists": "tier" in labels,
        "tier not exists": "tier" not in labels,
        "tier not in [b]": labels.get("tier") != "b",
        "team == red": labels.get("team") == "red",
        "team not exists": "team" not in labels,
    }[condition]


def alike(rule: Near | Apart | Spread, owner: Identity, other: Identity) -> bool:
    """Return whether the other fulfils `match`, `labels`, `same` and `different` of the owner's rule."""
    mine = {**dict(owner.labels), "release": owner.release}
    theirs = {**dict(other.labels), "release": other.release}
    different = () if isinstance(rule, Spread) else rule.different
    return (
        set(rule.match.items()) <= other.labels
        and all(holds(each, dict(other.labels)) for each in rule.labels)
        and all(theirs.get(each) == mine[each] for each in rule.same if each in mine)
        and all(theirs.get(each) != mine[each] for each in different if each in mine)
    )


def names_whom(rule: Near | Apart | Spread, owner: Identity, other: Identity) -> bool:
    """Return whether the owner's rule selects the other."""
    if other is NO_IDENTITY or not alike(rule, owner, other):
        return False
    own_group = (other.namespace, other.workload, other.group) == (owner.namespace, owner.workload, owner.group)
    if isinstance(rule, Spread):
        return other.namespace == owner.namespace if rule.match or rule.labels else own_group
    if rule.workload == "self":
        return own_group
    spaces = rule.namespaces or (() if rule.namespace_labels else (owner.namespace,))
    there = dict(other.namespace_labels)
    selected = bool(rule.namespace_labels) and all(holds(each, there) for each in rule.namespace_labels)
    if "*" not in spaces and other.namespace not in spaces and not selected:
        return False
    if rule.workload not in {None, "*"}:
        return other.workload == rule.workload and (rule.group is None or other.group == rule.group)
    return True


def place_of(node: Node, over: str) -> str | None:
    return node_facts(node).get(over)


def together(node: Node, other: Node, over: str) -> bool:
    return place_of(node, over) is not None and place_of(node, over) == place_of(other, over)


def there(found: list[Node], placed: Placed) -> list[tuple[Node, Shape, Identity]]:
    by_name = {node.meta.name: node for node in found}
    return [(by_name[name], shape, identity) for name, shape, identity in placed if name in by_name]


def every_rule(shape: Shape) -> list[Any]:
    return [*shape.must, *shape.should, *shape.prefer]
