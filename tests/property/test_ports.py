"""Ports that are chosen: whatever happens, no two instances of a node have the same one, and none is lost count of."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Node, PortRange
from mandor.placement.cycle import decide
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.occupancy import AllocationTerms
from mandor.placement.framework.ports import AnyPort, recorded
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.plugins.node_ports import NodePorts
from mandor.placement.profiles import default_profile
from mandor.placement.table import Table
from tests.scenarios.make import make_node, make_template

PROFILE = default_profile()
NAMES = ["n0", "n1", "n2"]


def key(index: int) -> Key:
    return Key(Instance.kind, "default", f"web-{index}")


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Node:
    first = draw(st.integers(20, 22))
    taken = draw(st.sets(st.integers(19, 25), max_size=2))
    ports = PortRange(first, first + draw(st.integers(0, 5)), tuple(sorted(taken)))
    return make_node(name, cpu=1000, ports=ports)


PROTOCOLS = st.sampled_from(["tcp", "udp"])
FIXED = st.fixed_dictionaries({"port": st.just(80), "host": st.integers(20, 24), "protocol": PROTOCOLS})
CHOSEN = st.fixed_dictionaries({"host": st.just("auto"), "protocol": PROTOCOLS})


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    ports = draw(st.dictionaries(st.sampled_from("abc"), FIXED | CHOSEN, max_size=3))
    numbers = {(each.get("host"), each["protocol"]) for each in ports.values() if each.get("host") != "auto"}
    if len(numbers) < sum(each.get("host") != "auto" for each in ports.values()):
        ports = {}  # the same port twice for one instance
    return Shape.of(make_template(cpu="1", ports=ports))


def numbers_of(allocation: Any) -> list[tuple[int, str]]:
    return [*((each.port, each.protocol) for each in allocation.shape.host_ports), *allocation.chosen]


def left_on(table: Table, node: Node, *, beside: Shape | None = None) -> int:
    """Counted anew, one number at a time."""
    ports = node.status.ports
    allocations = [table.allocations[key] for key in table.keys_on(node.meta.name)]
    taken = {number for allocation in allocations for number, _ in numbers_of(allocation)} | set(ports.taken)
    taken |= {each.port for each in beside.host_ports} if beside is not None else set()
    owed = sum(len(allocation.shape.any_ports) - len(allocation.ports) for allocation in allocations)
    return sum(number not in taken for number in range(ports.first, ports.last + 1)) - owed


def plain_fits(table: Table, node: Node, shape: Shape) -> bool:
    allocations = [table.allocations[key] for key in table.keys_on(node.meta.name)]
    taken = {each for allocation in allocations for each in numbers_of(allocation)}
    if any(tuple(port) in taken or port.port in node.status.ports.taken for port in shape.host_ports):
        return False
    return not shape.any_ports or left_on(table, node, beside=shape) >= len(shape.any_ports)


def check(table: Table, shape: Shape) -> None:
    snapshot, plugin, request = table.snapshot(), NodePorts(), PlacementRequest(key(999), shape)
    mask = plugin.filter(CycleState(), request, snapshot)
    for slot, node in enumerate(snapshot.nodes):
        assert int(snapshot.ports_left[slot]) == left_on(table, node)
        expected = plain_fits(table, node, shape)
        assert bool(mask[slot]) is expected
        assert plugin.filter_slot(request, snapshot, slot) is expected
        if not expected:
            alone = mask.copy()
            alone[:] = False
            alone[slot] = True
            assert plugin.why(request, snapshot, alone)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_no_two_instances_of_a_node_have_the_same_port_whatever_happens(data: st.DataObject) -> None:
    table = Table()
    for name in NAMES:
        table.set_node(data.draw(nodes(name)))
    known = [data.draw(shapes()) for _ in range(4)]
    for index in range(data.draw(st.integers(5, 30))):
        what = data.draw(st.integers(0, 9))
        if what == 0:
            table.set_node(data.draw(nodes(data.draw(st.sampled_from(NAMES)))))
        elif what == 1:
            table.remove_node(data.draw(st.sampled_from(NAMES)))
        elif what == 2 and table.allocations:
            table.drop_allocation(data.draw(st.sampled_from(sorted(table.allocations))))
        elif what == 3:
            held = AllocationTerms(held=True)
            table.set_allocation(
                key(index), data.draw(st.sampled_from(NAMES)), data.draw(st.sampled_from(known)), terms=held
            )
        else:
            shape = data.draw(st.sampled_from(known))
            tried = data.draw(st.booleans())
            version = dict(table.allocations)
            with table.trial() if tried else nullcontext():
                found = decide(PROFILE, PlacementRequest(key(index), shape), table.snapshot())
                if found.node:
                    node = table.node(found.node)
                    assert node is not None
                    table.set_allocation(key(index), found.node, shape)
                    allocation = table.allocations[key(index)]
                    assert len(allocation.ports) == len(shape.any_ports), "who is placed has all its ports"
                    assert all(node.status.ports.first <= port <= node.status.ports.last for port in allocation.ports)
                    assert not set(allocation.ports) & set(node.status.ports.taken)
                    others = [table.allocations[each] for each in table.keys_on(found.node) if each != key(index)]
                    used = {number for other in others for number, _ in numbers_of(other)}
                    assert not set(allocation.ports) & used
                    assert len({number for number, _ in allocation.chosen}) == len(allocation.ports)
            if tried:
                assert dict(table.allocations) == version
        check(table, data.draw(st.sampled_from(known)))


@given(names=st.lists(st.integers(0, 500), unique=True, max_size=40), order=st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_the_same_input_gives_the_same_ports_and_a_restart_finds_them_again(names: list[int], order: Any) -> None:
    shape = Shape.of(make_template(cpu="0", ports={"http": {"host": "auto"}, "admin": {"port": 1, "host": "auto"}}))
    tables = []
    for _ in range(2):
        table = Table()
        table.set_node(make_node("n0"))
        for index in names:
            table.set_allocation(key(index), "n0", shape)
        tables.append({each: table.allocations[each].ports for each in table.allocations})
    assert tables[0] == tables[1]
    again = Table()
    again.set_node(make_node("n0"))
    shuffled = list(names)
    order.shuffle(shuffled)
    for index in shuffled:  # as the store tells it, in any order
        again.set_allocation(key(index), "n0", shape, ports=tables[0][key(index)])
    assert {each: again.allocations[each].ports for each in again.allocations} == tables[0]


def test_a_record_that_is_not_whole_is_no_record() -> None:
    wanted = (AnyPort("a", "tcp"), AnyPort("b", "udp"))
    assert recorded(wanted, {"a": 1, "b": 2}) == (1, 2)
    assert recorded(wanted, {"a": 1}) == ()
    assert recorded(wanted, None) == ()
