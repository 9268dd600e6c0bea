"""Each plugin: what it answers, and what it says to people."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mandor.model.codec import from_plain
from mandor.model.group import GroupTemplate
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import NO_COMMANDS, Capabilities, Node, NodePhase, Taint
from mandor.model.resources import Resources
from mandor.placement.cycle import decide
from mandor.placement.decision import Decision
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.plugins.engine_fit import EngineFit
from mandor.placement.plugins.node_affinity import NodeAffinity
from mandor.placement.plugins.node_resources_fit import NodeResourcesFit
from mandor.placement.profiles import default_profile
from mandor.placement.table import Table
from tests.scenarios.make import DOCKER, GI, MI, PROCESS, make_node, make_template

STATE = CycleState()
PROFILE = default_profile()


def key(name: str) -> Key:
    return Key(Instance.kind, "default", name)


def make_table(*nodes: Node) -> Table:
    table = Table()
    for node in nodes:
        table.set_node(node)
    return table


def place(table: Table, template: GroupTemplate, name: str = "web-0", **fields: Any) -> Decision:
    return decide(PROFILE, PlacementRequest(key(name), Shape.of(template), **fields), table.snapshot())


def test_the_message_names_an_empty_cluster() -> None:
    assert place(Table(), make_template()).message == "0/0 nodes fit: there are no nodes"


@pytest.mark.req("S2-13")
def test_a_shortage_message_names_the_smallest_missing_amount() -> None:
    table = make_table(
        make_node("n1", memory=GI), make_node("n2", memory=GI + 512 * MI), make_node("n3", cordoned=True)
    )
    decision = place(table, make_template(memory="2Gi"))
    assert decision.message == (
        "0/3 nodes fit: 2 NodeResourcesFit (short of 512Mi memory), 1 NodeUnschedulable (1 cordoned)"
    )


def test_reserved_resources_of_a_node_are_not_allocated() -> None:
    table = make_table(make_node("n1", cpu=2, reserved=Resources(cpu_milli=500)))
    assert place(table, make_template(cpu="2")).message == "0/1 nodes fit: 1 NodeResourcesFit (short of 500m cpu)"
    assert place(table, make_template(cpu="1500m")).node == "n1"


def test_a_request_of_zero_fits_on_a_full_node() -> None:
    table = make_table(make_node("n1", cpu=1))
    table.set_allocation(key("a"), "n1", Shape.of(make_template(cpu="1")))
    table.set_node(make_node("n1", cpu=0.5))
    assert table.free("n1")["cpu"] == -500, "someone took memory out of the machine"
    assert place(table, make_template()).node == "n1"
    assert place(table, make_template(cpu="1m")).node == ""


def test_a_device_no_node_has_is_a_shortage() -> None:
    shape = Shape.of(make_template())
    wanted = PlacementRequest(key("ai-0"), replace(shape, wanted=(("gpu", 1),)))
    assert "short of 1 gpu" in decide(PROFILE, wanted, make_table(make_node("n1")).snapshot()).message
    assert decide(PROFILE, wanted, make_table(make_node("n1", devices={"gpu": 2})).snapshot()).node == "n1"


@pytest.mark.req("S0-10", "S2-14")
@pytest.mark.parametrize(
    ("capacity", "taken", "asked", "score"),
    [
        ((4000, 10_000 * MI), (0, 0), (3000, 5000 * MI), 37),
        ((6000, 10_000 * MI), (0, 0), (3000, 5000 * MI), 50),
        ((10_000, 20_000 * MI), (3000, 5000 * MI), (3000, 5000 * MI), 45),
        ((10_000, 20_000 * MI), (6000, 10_000 * MI), (3000, 5000 * MI), 17),
        ((4000, 20_000 * MI), (3000, 5000 * MI), (3000, 5000 * MI), 25),
        ((0, 10_000 * MI), (0, 0), (0, 5000 * MI), 50),
    ],
)
def test_least_allocated_gives_kubernetes_numbers(
    capacity: tuple[int, int], taken: tuple[int, int], asked: tuple[int, int], score: int
) -> None:
    """(capacity - requested) * 100 / capacity for CPU and memory, each rounded down, and their mean rounded down."""
    table = make_table(make_node("n1", cpu=capacity[0] / 1000, memory=capacity[1]))
    if any(taken):
        table.set_allocation(key("old"), "n1", sized(*taken))
    snapshot = table.snapshot()
    everyone = snapshot.free[0] == snapshot.free[0]
    assert NodeResourcesFit().score(
        STATE, PlacementRequest(key("new"), sized(*asked)), snapshot, everyone
    ).tolist() == [score]


def sized(cpu: int, memory: int) -> Shape:
    return Shape.of(make_template(cpu=f"{cpu}m", memory=str(memory)))


def test_tasks_without_requests_count_in_scores() -> None:
    assert Shape.of(make_template()).counted == (100, 200 * MI)
    assert Shape.of(make_template(cpu="250m")).counted == (250, 200 * MI)
    assert Shape.of(make_template()).wanted == ()


@pytest.mark.req("S0-10")
def test_a_request_written_as_zero_counts_as_zero_in_scores() -> None:
    assert sized(0, 0).counted == (0, 0)
    assert Shape.of(make_template(cpu="0")).counted == (0, 200 * MI)
    assert Shape.of(make_template(memory="0")).counted == (100, 0)
    assert sized(0, 0).wanted == ()


@pytest.mark.req("S0-10")
def test_a_node_with_zero_requests_is_as_empty_as_before() -> None:
    zero, absent = Shape.of(make_template(cpu="0", memory="0")), Shape.of(make_template())
    table = make_table(make_node("zero"), make_node("absent"), make_node("empty"))
    for index in range(3):
        table.set_allocation(key(f"z{index}"), "zero", zero)
        table.set_allocation(key(f"a{index}"), "absent", absent)
    snapshot = table.snapshot()
    everyone = snapshot.free[0] == snapshot.free[0]
    scores = NodeResourcesFit().score(STATE, PlacementRequest(key("new"), zero), snapshot, everyone)
    found = dict(zip((each.meta.name for each in snapshot.nodes), scores.tolist(), strict=True))
    assert found["zero"] == found["empty"] == 100
    assert found["absent"] < 100


def test_the_message_names_the_phase_of_nodes_that_are_not_ready() -> None:
    table = make_table(
        make_node("n1", phase=NodePhase.DOWN),
        make_node("n2", phase=NodePhase.SUSPECT),
        make_node("n3", phase=NodePhase.DOWN),
        make_node("n4", phase=NodePhase.UNKNOWN),
    )
    assert place(table, make_template()).message == (
        "0/4 nodes fit: 4 NodeUnschedulable (2 Down, 1 Suspect, 1 Unknown)"
    )


def test_an_image_needs_an_engine_that_runs_images_and_a_command_one_that_does_not() -> None:
    table = make_table(make_node("docker", engines=DOCKER), make_node("bare", engines=PROCESS))
    assert place(table, make_template(image="web:1")).node == "docker"
    assert place(table, make_template()).node == "bare"


def test_the_message_names_an_engine_that_is_down_or_missing() -> None:
    down = {"docker": Capabilities(images=True, up=False)}
    table = make_table(make_node("n1", engines=down), make_node("n2", engines={}))
    assert place(table, make_template(image="web:1", engine=["docker", "podman"])).message == (
        "0/2 nodes fit: 2 EngineFit (no docker or podman that is up and runs images; docker is down)"
    )
    assert place(table, make_template()).message == "0/2 nodes fit: 2 EngineFit (no engine is up that runs commands)"


def test_the_engine_named_first_is_preferred() -> None:
    podman = {"podman": Capabilities(images=True)}
    table = make_table(make_node("n1", engines=podman), make_node("n2", engines=DOCKER))
    request = PlacementRequest(key("web-0"), Shape.of(make_template(image="web:1", engine=["docker", "podman"])))
    snapshot = table.snapshot()
    everyone = EngineFit().filter(STATE, request, snapshot)
    assert EngineFit().score(STATE, request, snapshot, everyone).tolist() == [50, 100]
    assert place(table, make_template(image="web:1", engine=["docker", "podman"])).node == "n2"
    assert place(table, make_template(image="web:1", engine=["podman", "docker"])).node == "n1"


@pytest.mark.req("S0-2", "S0-35")
def test_an_engine_that_is_down_is_named_with_its_reason() -> None:
    down = {"docker": Capabilities(images=True, up=False, message="the socket is gone"), **PROCESS}
    table = make_table(make_node("n1", engines=down), make_node("n2"))
    found = place(table, make_template(image="x", engine=["docker", "podman"]))
    why = "no docker or podman that is up and runs images; docker is down: the socket is gone"
    assert found.message == f"0/2 nodes fit: 2 EngineFit ({why})"
    table.set_node(make_node("n2", engines=down))
    assert "; docker is down on 2 of them)" in place(table, make_template(image="x")).message
    assert place(table, make_template()).node, "the other engines of the node go on"


@pytest.mark.req("S0-2")
def test_a_command_goes_where_an_engine_runs_commands_in_its_images() -> None:
    fixed = Capabilities(images=True, extras=frozenset({NO_COMMANDS}))
    table = make_table(make_node("n1", engines={"incus": fixed}))
    plain = from_plain({"tasks": {"main": {"image": "x"}}, "engine": ["incus"]}, GroupTemplate)
    assert place(table, plain).node == "n1"
    for task in ({"image": "x", "command": ["run"]}, {"image": "x", "args": ["-v"]}):
        made = from_plain({"tasks": {"main": task}, "engine": ["incus"]}, GroupTemplate)
        assert "no incus that is up and runs images with a command" in place(table, made).message
    table.set_node(make_node("n2", engines={"incus": Capabilities(images=True)}))
    assert place(table, made).node == "n2"


@pytest.mark.req("S0-2")
def test_a_virtual_machine_goes_where_its_engine_makes_machines() -> None:
    plain = Capabilities(images=True)
    able = Capabilities(images=True, extras=frozenset({"machines"}))
    table = make_table(make_node("n1", engines={"incus": plain}), make_node("n2", engines={"docker": able}))
    made = from_plain(
        {"tasks": {"main": {"image": "x", "options": {"incus": {"type": "virtual-machine"}}}}, "engine": ["incus"]},
        GroupTemplate,
    )
    assert "no incus that is up and runs images as virtual machines" in place(table, made).message
    table.set_node(make_node("n3", engines={"incus": able}))
    assert place(table, made).node == "n3"


@pytest.mark.req("S0-2")
@pytest.mark.parametrize(
    ("rule", "node"),
    [
        ("engine.docker.version version >= 24", "n2"),
        ("engine.docker.version version < 24", "n1"),
        ("engine.docker.sandbox == true", "n2"),
        ("engine.docker.sandbox not exists", "n1"),
        ("engine.incus.up == true", ""),
    ],
)
def test_rules_can_test_engine_capabilities(rule: str, node: str) -> None:
    new = Capabilities(images=True, version="27.1", extras=frozenset({"sandbox"}))
    table = make_table(
        make_node("n1", engines={"docker": Capabilities(images=True, version="20.10")}),
        make_node("n2", engines={"docker": new}),
    )
    assert place(table, make_template(image="x", where=[{"rule": rule}])).node == node


def test_a_group_stays_in_its_pool() -> None:
    table = make_table(make_node("n1"), make_node("n2", pool="web"))
    assert place(table, make_template(placement={"pool": "web"})).node == "n2"
    assert place(table, make_template(placement={"pool": "db"})).message == (
        "0/2 nodes fit: 2 PoolFit (not in the pool db)"
    )


def test_a_tainted_node_takes_only_instances_that_tolerate_it() -> None:
    table = make_table(make_node("n1", taints=(Taint("dedicated", "db"), Taint("old", effect="NoExecute"))))
    assert place(table, make_template()).message == "0/1 nodes fit: 1 TaintToleration (1 with dedicated=db:NoSchedule)"
    one = {"tolerate": [{"key": "dedicated", "value": "db"}]}
    assert "old:NoExecute" in place(table, make_template(placement=one)).message
    both = {"tolerate": [{"key": "dedicated", "value": "db"}, {"key": "old"}]}
    assert place(table, make_template(placement=both)).node == "n1"
    assert place(table, make_template(placement={"tolerate": [{}]})).node == "n1", "no key: all"


def test_a_soft_taint_is_a_last_resort() -> None:
    soft = (Taint("slow", effect="PreferNoSchedule"),)
    table = make_table(make_node("n1", taints=soft, cpu=64), make_node("n2", cpu=2))
    assert place(table, make_template(cpu="1")).node == "n2"
    assert place(table, make_template(cpu="4")).node == "n1"


def test_rules_on_nodes_must_hold() -> None:
    table = make_table(
        make_node("n1", labels={"zone": "a", "disk": "ssd"}),
        make_node("n2", labels={"zone": "b"}, facts={"kernel.version": "6.1.0"}),
    )
    assert place(table, make_template(where=[{"rule": "zone == b"}])).node == "n2"
    assert place(table, make_template(where=[{"any": ["zone == c", "disk == ssd"]}])).node == "n1"
    assert place(table, make_template(where=[{"rule": "kernel.version version >= 5.4"}])).node == "n2"
    assert place(
        table, make_template(where=[{"rule": "zone == c"}, {"any": ["disk == hdd", "arch exists"]}])
    ).message == ("0/2 nodes fit: 2 NodeAffinity (not `zone == c`; not `disk == hdd` or `arch exists`)")


def test_preferences_are_weighted() -> None:
    table = make_table(make_node("n1", labels={"zone": "a"}), make_node("n2", labels={"disk": "ssd"}))
    rules = [
        {"rule": "zone == a", "strength": "prefer", "weight": 30},
        {"rule": "disk == ssd", "strength": "prefer", "weight": 60},
    ]
    request = PlacementRequest(key("web-0"), Shape.of(make_template(where=rules)))
    snapshot = table.snapshot()
    everyone = snapshot.free[0] > 0
    raw = NodeAffinity().score(STATE, request, snapshot, everyone)
    assert NodeAffinity().normalize(STATE, request, raw).tolist() == [50, 100]
    assert place(table, make_template(where=rules)).node == "n2"


def test_a_should_rule_holds_while_possible_and_is_named_when_relaxed() -> None:
    rules = [{"rule": "zone == a", "strength": "should"}, {"rule": "disk == ssd", "strength": "should"}]
    both = make_node("n1", labels={"zone": "a", "disk": "ssd"})
    zone = make_node("n2", labels={"zone": "a"})
    disk = make_node("n3", labels={"disk": "ssd"})
    neither = make_node("n4")
    template = make_template(where=rules)
    assert place(make_table(neither, disk, zone, both), template).node == "n1"
    second = place(make_table(neither, disk, zone), template)
    assert (second.node, second.relaxed) == ("n2", ("disk == ssd",)), "the last declared is given up first"
    third = place(make_table(neither, disk), template)
    assert (third.node, third.relaxed) == ("n3", ("disk == ssd", "zone == a")), "given up, yet still preferred"
    assert place(make_table(neither), template).relaxed == ("disk == ssd", "zone == a")


def test_a_must_rule_is_never_relaxed() -> None:
    rules = [{"rule": "zone == a"}, {"rule": "disk == ssd", "strength": "should"}]
    decision = place(make_table(make_node("n1", labels={"disk": "ssd"})), make_template(where=rules))
    assert decision.message == "0/1 nodes fit: 1 NodeAffinity (not `zone == a`)"


def test_a_host_port_belongs_to_one_instance_of_a_node() -> None:
    table = make_table(make_node("n1"), make_node("n2"))
    template = make_template(ports={"http": {"port": 80, "host": 8080}})
    shape = Shape.of(template)
    table.set_allocation(key("a"), "n1", shape)
    assert place(table, template).node == "n2"
    table.set_allocation(key("b"), "n2", shape)
    assert place(table, template).message == "0/2 nodes fit: 2 NodePorts (tcp port 8080 is taken)"
    udp = make_template(ports={"dns": {"port": 80, "host": 8080, "protocol": "udp"}})
    assert place(table, udp).node, "another protocol is another port"
    table.drop_allocation(key("a"))
    assert place(table, template).node == "n1"


def test_nodes_of_earlier_failures_are_used_last() -> None:
    table = make_table(make_node("n1", cpu=64), make_node("n2", cpu=1))
    assert place(table, make_template(), avoid=frozenset({"n1"})).node == "n2"
    again = place(table, make_template(cpu="2"), avoid=frozenset({"n1"}))
    assert (again.node, again.relaxed) == ("n1", ("avoid nodes where it failed",))


def test_labels_override_facts_but_not_node_and_pool() -> None:
    node = make_node("n1", labels={"zone": "a", "node": "lie", "pool": "lie"}, facts={"zone": "b", "arch": "arm64"})
    table = make_table(node)
    rules = ["zone == a", "arch == arm64", "node == n1", "pool == default", "engine == process"]
    assert place(table, make_template(where=[{"rule": rule} for rule in rules])).node == "n1"
