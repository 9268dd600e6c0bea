"""The network of confined processes: the parts that need no kernel."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from mandor.engines.process.network import (
    RANGE,
    Lease,
    Leases,
    TaskNetwork,
    _free_address,
    read_range,
    resolver_steps,
    rules,
)
from mandor.errors import EngineDown, Invalid

SUBNET = IPv4Network("10.94.4.0/22")


def test_the_rules_forward_each_leased_port_to_its_instance() -> None:
    leases = {
        "b": Lease(IPv4Address("10.94.4.3"), frozenset({("udp", 53), ("tcp", 8080)})),
        "a": Lease(IPv4Address("10.94.4.2")),
    }
    text = rules("mandor_x", "mdrx", Leases(SUBNET, leases))
    assert "elements = { tcp . 8080 : 10.94.4.3 . 8080, udp . 53 : 10.94.4.3 . 53 }" in text
    assert text.startswith("table ip mandor_x\ndelete table ip mandor_x\n"), "one transaction replaces the table"
    assert 'iifname "mdrx" ip daddr 127.0.0.0/8 drop' in text


def test_rules_without_ports_have_no_elements() -> None:
    assert "elements" not in rules("t", "b", Leases(SUBNET, {"a": Lease(IPv4Address("10.94.4.2"))}))


def test_addresses_are_handed_out_once_until_none_is_left() -> None:
    subnet = IPv4Network("10.94.4.0/29")
    state = Leases(subnet)
    for _ in range(5):
        address = _free_address(state)
        assert address not in {lease.address for lease in state.leases.values()}
        state = Leases(subnet, {**state.leases, str(address): Lease(address)})
    assert IPv4Address("10.94.4.1") not in {lease.address for lease in state.leases.values()}, "the bridge has this one"
    with pytest.raises(EngineDown, match="no free address"):
        _free_address(state)


def test_two_agents_of_a_machine_have_different_bridges_and_tables(tmp_path: Path) -> None:
    first, second = TaskNetwork(tmp_path / "a"), TaskNetwork(tmp_path / "b")
    assert (first.bridge, first.table) != (second.bridge, second.table)
    assert len(first.bridge) <= 15, "the kernel allows 15 characters"
    assert TaskNetwork(tmp_path / "a").bridge == first.bridge


def test_damaged_leases_are_not_used(tmp_path: Path) -> None:
    (tmp_path / "network.json").write_text('{"subnet": "10.94.4.0/22", "leases": {"a": {"address": "nowhere"}}}')
    assert TaskNetwork(tmp_path)._state is None


@pytest.mark.parametrize(
    ("text", "found"), [("auto", RANGE), ("node", None), ("10.200.0.0/16", IPv4Network("10.200.0.0/16"))]
)
def test_the_option_is_a_range_or_a_word(text: str, found: IPv4Network | None) -> None:
    assert read_range(text) == found


@pytest.mark.parametrize("text", ["", "own", "10.0.0.1/16", "10.0.0.0/29", "fd00::/64"])
def test_another_value_of_the_option_is_refused_with_examples(text: str) -> None:
    with pytest.raises(Invalid, match=r"process\.network") as caught:
        read_range(text)
    assert "10.94.0.0/16" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("first", "other", "replaced"),
    [
        ("nameserver 127.0.0.53\n", "nameserver 10.0.0.2\n", True),
        ("nameserver ::1\nsearch x\n", "nameserver 10.0.0.2\n", True),
        ("nameserver 10.0.0.1\n", "nameserver 10.0.0.2\n", False),
        ("nameserver 127.0.0.1\nnameserver 10.0.0.1\n", "nameserver 10.0.0.2\n", False),
        ("nameserver 127.0.0.53\n", "nameserver 127.0.0.1\n", False),
        ("nameserver 127.0.0.53\n", None, False),
    ],
)
def test_a_resolver_on_loopback_is_replaced_by_the_servers_behind_it(
    tmp_path: Path, first: str, other: str | None, replaced: bool
) -> None:
    here, there = tmp_path / "resolv.conf", tmp_path / "upstream.conf"
    here.write_text(first)
    if other is not None:
        there.write_text(other)
    steps = list(resolver_steps((here, there)))
    assert steps == ([("show", str(there), str(here))] if replaced else [])
