"""What a node does to its kernel for a network: pure."""

from dataclasses import replace

from mandor.network.base import NetworkPart, Peer
from mandor.network.overlay.plan import (
    Devices,
    desired,
    device_names,
    forwarding_commands,
    link_commands,
    rules,
    stale_routes,
)

NAMES = device_names("n0", "backend")
PEERS = tuple(Peer(each, f"192.168.0.{each}", f"10.92.{each}.0/24", f"fd92:0:0:{each}00::/56") for each in (1, 2))
PART = NetworkPart(
    name="backend",
    number=7,
    backend="vxlan",
    index=0,
    address="192.168.0.9",
    range4="10.92.0.0/16",
    slice4="10.92.0.0/24",
    range6="fd92::/48",
    slice6="fd92::/56",
    peers=PEERS,
)


def test_one_packet_of_the_network_fits_into_one_packet_between_nodes() -> None:
    assert desired(PART, NAMES, 1500).mtu == 1450
    assert desired(replace(PART, address="fd00::9", peers=()), NAMES, 1500).mtu == 1430
    assert desired(replace(PART, backend="routed"), NAMES, 1500).mtu == 1500


def test_each_other_node_has_one_forwarding_entry_and_one_route_per_family() -> None:
    found = desired(PART, NAMES, 1500)
    assert found.forwarding == {"02:4d:00:07:00:01": "192.168.0.1", "02:4d:00:07:00:02": "192.168.0.2"}
    assert found.routes["10.92.2.0/24"] == f"via 10.92.2.1 dev {NAMES.vxlan} onlink src 10.92.0.1"
    assert set(found.routes) == {each for peer in PEERS for each in (peer.slice4, peer.slice6)}


def test_a_node_that_leaves_takes_only_its_own_entries_along() -> None:
    present, wanted = desired(PART, NAMES, 1500), desired(replace(PART, peers=PEERS[:1]), NAMES, 1500)
    assert list(link_commands(NAMES, present, wanted)) == [
        f"neigh delete 10.92.2.1 dev {NAMES.vxlan}",
        f"neigh delete fd92:0:0:200::1 dev {NAMES.vxlan}",
    ]
    assert list(stale_routes(present, wanted)) == [
        "route delete 10.92.2.0/24 proto 174",
        "route delete fd92:0:0:200::/56 proto 174",
    ]
    assert list(forwarding_commands(NAMES, present, wanted)) == [f"fdb delete 02:4d:00:07:00:02 dev {NAMES.vxlan} self"]


def test_a_node_with_a_new_address_changes_one_forwarding_entry() -> None:
    moved = replace(PART, peers=(PEERS[0], PEERS[1]._replace(address="192.168.0.200")))
    present, wanted = desired(PART, NAMES, 1500), desired(moved, NAMES, 1500)
    assert not list(link_commands(NAMES, present, wanted))
    assert list(forwarding_commands(NAMES, present, wanted)) == [
        f"fdb replace 02:4d:00:07:00:02 dev {NAMES.vxlan} dst 192.168.0.200 self permanent"
    ]


def test_nothing_is_done_where_everything_is_in_place() -> None:
    present = desired(PART, NAMES, 1500)
    assert not [*link_commands(NAMES, present, present), *forwarding_commands(NAMES, present, present)]
    assert next(link_commands(NAMES, Devices(), present)) == f"link add {NAMES.bridge} type bridge"


def test_packets_of_the_network_are_accepted_from_its_nodes_only() -> None:
    text = rules("t", [(PART, NAMES)])
    vxlan = "udp dport 4789 @th,96,24 5046279"
    assert f"{vxlan} ip saddr != {{ 192.168.0.1, 192.168.0.2 }} counter name foreign_nodes drop" in text
    assert f"{vxlan} meta nfproto ipv6 counter name foreign_nodes drop" in text
    alone = rules("t", [(replace(PART, peers=()), NAMES)])
    assert f"{vxlan} meta nfproto ipv4 counter name foreign_nodes drop" in alone


def test_networks_do_not_reach_each_other() -> None:
    other = device_names("n0", "other")
    text = rules("t", [(PART, NAMES), (replace(PART, name="other", number=8), other)])
    assert f'iifname {{ "{NAMES.bridge}", "{NAMES.vxlan}" }} oifname {{ "{other.bridge}", "{other.vxlan}" }}' in text
