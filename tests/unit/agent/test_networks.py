"""The networks of a node: which are in effect, and the addresses that its instances get, over restarts of the agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from mandor.agent.feed import Source
from mandor.agent.networks import LocalUnits, NetworkKeeper, attach
from mandor.agent.order import Order
from mandor.errors import TooMany, Unavailable
from mandor.lib.clock import ManualClock
from mandor.model.group import GroupTemplate
from mandor.model.instance import Instance, InstanceSpec
from mandor.model.meta import Meta
from mandor.model.network import OVERLAY, Network, NetworkSlice, NetworkSpec, NetworkStatus
from mandor.model.node import Capabilities
from mandor.model.task import Task
from mandor.network.base import Bridge, NetworkPart, Overlay

SOURCE = Source("c", 1, 1)


class RecordedOverlay(Overlay):
    name = "recorded"

    def __init__(self) -> None:
        self.parts: Sequence[NetworkPart] = ()

    @property
    def problems(self) -> Mapping[str, str]:
        return {}

    async def probe(self) -> None:
        """Every machine can have these networks."""

    async def apply(self, parts: Sequence[NetworkPart]) -> Mapping[str, Bridge]:
        self.parts = parts
        return {each.name: Bridge("mdn0", 1450) for each in parts}

    async def remove(self) -> None:
        self.parts = ()


class OneNode:
    """A node with its instances, whose agent can be restarted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.live: dict[str, str] = {}
        self.overlay = RecordedOverlay()

    async def start(self, network: Network | None = None) -> NetworkKeeper:
        async def blocking(work: Callable[..., Any], *given: Any) -> Any:
            return work(*given)

        units = LocalUnits(lambda: set(self.live), lambda: [each for each in self.live.items() if each[1]])
        file = self.folder / "networks.json"
        keeper = NetworkKeeper("n1", file, self.overlay, ManualClock(), blocking, units, lambda: None)
        await keeper.begin()
        if network is not None:
            keeper.listed([network], SOURCE)
            await keeper._update()
        return keeper

    async def run(self, keeper: NetworkKeeper, uid: str, name: str) -> str:
        self.live[uid] = ""
        attachment = await keeper.lease(order(uid, name))
        self.live[uid] = attachment.address
        return attachment.address


def network(prefix: int = 24) -> Network:
    slices = {"n1": NetworkSlice(1, "192.0.2.1"), "n2": NetworkSlice(0, "192.0.2.2"), "gone": NetworkSlice(2, "", 9.0)}
    spec = NetworkSpec(subnet="10.92.0.0/16" if prefix == 24 else "10.92.0.0/24", node_prefix=prefix)
    return Network(meta=Meta(name="backend"), spec=spec, status=NetworkStatus(number=5, slices=slices))


def order(uid: str, name: str = "web-0") -> Order:
    template = GroupTemplate(tasks={"main": Task(command=("x",))}, network="backend")
    spec = InstanceSpec(workload="web", release="r", index=0, node="n1")
    meta = Meta(name=name, namespace="default", uid=uid)
    return Order(instance=Instance(meta=meta, spec=spec), template=template, cluster="c", epoch=1)


async def test_a_node_applies_its_part_with_the_other_nodes_that_exist(tmp_path: Path) -> None:
    node = OneNode(tmp_path)
    keeper = await node.start(network())
    (part,) = node.overlay.parts
    assert (part.slice4, part.address) == ("10.92.1.0/24", "192.0.2.1")
    assert [each.address for each in part.peers] == ["192.0.2.2"]
    engines = keeper.with_networks(
        {"docker": Capabilities(extras=frozenset({OVERLAY, "ports"})), "incus": Capabilities()}
    )
    assert engines["docker"].extras == {OVERLAY, "ports", "network.backend"}
    assert engines["incus"].extras == frozenset()


async def test_an_agent_without_a_control_plane_gives_no_address_twice_after_a_restart(tmp_path: Path) -> None:
    node = OneNode(tmp_path)
    keeper = await node.start(network())
    first = await node.run(keeper, "u1", "web-0")
    assert first == "10.92.1.2"
    keeper = await node.start()
    assert await node.run(keeper, "u2", "web-1") == "10.92.1.3"
    found = keeper.leased(order("u1"))
    assert found is not None
    assert found.address == first


async def test_a_lost_file_costs_no_running_instance_its_address(tmp_path: Path) -> None:
    node = OneNode(tmp_path)
    keeper = await node.start(network())
    addresses = [await node.run(keeper, f"u{each}", f"web-{each}") for each in range(3)]
    (tmp_path / "networks.json").write_text("{")
    keeper = await node.start(network())
    assert await node.run(keeper, "u9", "web-9") not in addresses
    assert await node.run(keeper, "u1", "web-1") == addresses[1]


async def test_an_instance_for_which_no_address_is_left_is_refused_with_numbers(tmp_path: Path) -> None:
    node = OneNode(tmp_path)
    keeper = await node.start(network(28))
    for each in range(13):
        await node.run(keeper, f"u{each}", f"web-{each}")
    with pytest.raises(TooMany, match=r"all 13 addresses of the node n1 in the network backend \(10.92.0.16/28\)"):
        await keeper.lease(order("more", "web-99"))
    assert "all 13 addresses" in (await attach(keeper, order("more", "web-99"), leasing=True)).refusal
    del node.live["u4"]
    assert (await attach(keeper, order("more", "web-99"), leasing=True)).attachment is not None


async def test_a_network_stays_in_effect_while_an_instance_uses_it(tmp_path: Path) -> None:
    node = OneNode(tmp_path)
    keeper = await node.start(network())
    await node.run(keeper, "u1", "web-0")
    keeper.listed([], SOURCE)
    await keeper._update()
    assert keeper.names == {"backend"}
    node.live.clear()
    await keeper._update()
    assert keeper.names == frozenset()
    with pytest.raises(Unavailable, match="the network backend is not in effect on the node n1"):
        await keeper.lease(order("u2"))
