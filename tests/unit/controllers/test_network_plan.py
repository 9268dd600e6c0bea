"""Which node hands out which part of a network."""

from mandor.controllers.network_plan import HOLD_SECONDS, plan_network
from mandor.model.meta import Meta
from mandor.model.network import OVERLAY, Network, NetworkSpec
from mandor.model.node import Capabilities, Node, NodePhase, NodeStatus


def network(subnet: str = "10.92.0.0/22") -> Network:
    return Network(meta=Meta(name="backend"), spec=NetworkSpec(subnet=subnet))


def node(number: int, *, address: str = "", extras: frozenset[str] = frozenset({OVERLAY})) -> Node:
    engines = {"docker": Capabilities(extras=extras)}
    status = NodeStatus(phase=NodePhase.READY, address=address or f"192.168.0.{number}", engines=engines)
    return Node(meta=Meta(name=f"n{number}", uid=f"u{number}", created_at=float(number)), status=status)


def planned(before: Network, nodes: list[Node], now: float = 0.0) -> Network:
    draft = plan_network(before, nodes, set(), now)
    for each in draft.writes:
        assert isinstance(each.value, Network)  # type: ignore[union-attr]
        before = each.value  # type: ignore[union-attr]
    return before


def test_each_node_that_can_attach_instances_has_a_part_of_its_own() -> None:
    found = planned(network(), [node(1), node(2), node(3, extras=frozenset({"ports"}))])
    assert {name: each.index for name, each in found.status.slices.items()} == {"n1": 0, "n2": 1}
    assert found.status.slices["n2"].address == "192.168.0.2"
    assert found.status.number == 1
    assert planned(found, [node(1), node(2)]) == found, "a second plan changes nothing"


def test_a_node_keeps_its_part_when_its_address_changes() -> None:
    before = planned(network(), [node(1), node(2)])
    after = planned(before, [node(1), node(2, address="192.168.9.9")])
    assert after.status.slices["n2"].index == 1
    assert after.status.slices["n2"].address == "192.168.9.9"


def test_the_part_of_a_removed_node_is_given_to_another_one_only_after_an_hour() -> None:
    full = planned(network(), [node(each) for each in range(1, 5)])
    left = [node(each) for each in range(2, 6)]
    draft = plan_network(full, left, set(), 100.0)
    assert draft.again_seconds == HOLD_SECONDS
    held = planned(full, left, 100.0)
    assert "n1" not in held.live_slices
    assert "n5" not in held.status.slices
    freed = planned(held, left, 100.0 + HOLD_SECONDS)
    assert freed.status.slices["n5"].index == 0
    assert "n1" not in freed.status.slices


def test_a_range_without_room_is_reported_with_numbers() -> None:
    draft = plan_network(network(), [node(each) for each in range(1, 7)], set(), 0.0)
    (note,) = draft.notes
    assert note.reason == "NetworkFull"
    assert "2 nodes are not part of the network, for example n5, n6" in note.message
    assert "all 4 parts (/24) of 10.92.0.0/22 are taken" in note.message


def test_a_node_with_an_address_inside_of_the_range_gets_no_part() -> None:
    draft = plan_network(network(), [node(1), node(2, address="10.92.1.7")], set(), 0.0)
    (note,) = draft.notes
    assert note.reason == "NetworkOverlaps"
    assert "for example n2" in note.message
    assert set(planned(network(), [node(1), node(2, address="10.92.1.7")]).status.slices) == {"n1"}


def test_networks_have_different_numbers() -> None:
    draft = plan_network(network(), [], {1, 2}, 0.0)
    (write,) = draft.writes
    assert write.value.status.number == 3  # type: ignore[union-attr]
