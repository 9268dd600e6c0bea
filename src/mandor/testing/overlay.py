"""Conformance suite for overlays: subclass `OverlaySuite`, define machines, and how instances are attached to them."""

import pytest

from mandor.network.base import Bridge, NetworkPart, Overlay, Peer


class OverlaySuite:
    """Tests of every data path for networks, over three nodes with one instance each."""

    node_addresses: tuple[str, str, str]
    """Addresses of the nodes."""

    def make(self, node: int) -> Overlay:
        """Return a new driver object of a node, over the same state each time."""
        raise NotImplementedError

    def enter(self, node: int) -> None:
        """Let the following calls of drivers change this node."""
        raise NotImplementedError

    def attach(self, node: int, bridge: Bridge, part: NetworkPart) -> None:
        """Attach an instance to a bridge, with the fifth address of the part of each range."""
        raise NotImplementedError

    def reach(self, source: int, target: str, *, node: bool = False) -> str:
        """Return the address that a program at `target` sees for a connection; empty: it is not reached.

        `source`: the node of the instance that connects. `node`: the node itself connects.
        """
        raise NotImplementedError

    def devices(self, node: int) -> set[str]:
        """Return the interfaces of a node."""
        raise NotImplementedError

    def part(
        self, node: int, others: tuple[int, ...] = (0, 1, 2), *, name: str = "backend", number: int = 1
    ) -> NetworkPart:
        """Return the part of a network on a node."""
        return NetworkPart(
            name=name,
            number=number,
            backend="vxlan",
            index=node,
            address=self.node_addresses[node],
            range4=f"10.{91 + number}.0.0/16",
            slice4=f"10.{91 + number}.{node}.0/24",
            range6=f"fd{91 + number}::/48",
            slice6=f"fd{91 + number}:0:0:{node + 1}00::/56",
            peers=tuple(
                Peer(
                    each,
                    self.node_addresses[each],
                    f"10.{91 + number}.{each}.0/24",
                    f"fd{91 + number}:0:0:{each + 1}00::/56",
                )
                for each in others
                if each != node
            ),
        )

    async def bridge(self, node: int, part: NetworkPart) -> Bridge:
        """Apply one network on a node with a new driver object."""
        self.enter(node)
        driver = self.make(node)
        found = await driver.apply([part])
        assert not driver.problems
        return found[part.name]

    @pytest.fixture
    async def attached(self) -> None:
        """One network on all nodes, with an instance on each."""
        for node in range(3):
            self.enter(node)
            await self.make(node).probe()
            part = self.part(node)
            self.attach(node, await self.bridge(node, part), part)

    @pytest.mark.usefixtures("attached")
    async def test_instances_reach_each_other_and_see_the_address_of_the_client(self) -> None:
        assert self.reach(0, "10.92.1.5") == "10.92.0.5"
        assert self.reach(1, "10.92.2.5") == "10.92.1.5"
        assert self.reach(2, "fd92:0:0:100::5") == "fd92:0:0:300::5"

    @pytest.mark.usefixtures("attached")
    async def test_a_node_reaches_instances_on_every_node_by_an_address_of_the_network(self) -> None:
        assert self.reach(0, "10.92.0.5", node=True) == "10.92.0.1"
        assert self.reach(0, "10.92.2.5", node=True) == "10.92.0.1"

    @pytest.mark.usefixtures("attached")
    async def test_a_new_driver_object_finds_everything_in_place(self) -> None:
        before = self.devices(0)
        await self.bridge(0, self.part(0))
        assert self.devices(0) == before
        assert self.reach(0, "10.92.1.5") == "10.92.0.5"

    @pytest.mark.usefixtures("attached")
    async def test_a_node_that_has_left_is_not_reached_any_more(self) -> None:
        await self.bridge(0, self.part(0, (0, 1)))
        assert not self.reach(0, "10.92.2.5")
        assert self.reach(0, "10.92.1.5") == "10.92.0.5"
        await self.bridge(0, self.part(0))
        assert self.reach(0, "10.92.2.5") == "10.92.0.5"

    @pytest.mark.usefixtures("attached")
    async def test_a_network_that_cannot_be_made_does_not_affect_another(self) -> None:
        self.enter(0)
        driver = self.make(0)
        other = self.part(0, name="other", number=2)
        wrong = NetworkPart(**{each: getattr(other, each) for each in other.__slots__} | {"address": "203.0.113.9"})
        found = await driver.apply([wrong, self.part(0)])
        assert set(found) == {"backend"}
        assert "203.0.113.9 is on no interface" in driver.problems["other"]
        assert self.reach(0, "10.92.1.5") == "10.92.0.5"

    async def test_nothing_is_left_of_a_network_that_is_not_wanted_any_more(self) -> None:
        before = self.devices(0)
        self.enter(0)
        driver = self.make(0)
        await driver.apply([self.part(0), self.part(0, name="other", number=2)])
        first = self.devices(0)
        await driver.apply([self.part(0)])
        assert before < self.devices(0) < first
        await self.make(0).remove()
        assert self.devices(0) == before
