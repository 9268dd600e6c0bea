"""Machines that carry the control plane are found by themselves, and take no virtual machines."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from mandor.controllers.control_plane_plan import server_hosts, with_label
from mandor.model.instance import Instance
from mandor.model.meta import Key, Meta
from mandor.model.node import Node
from mandor.model.record import Server, ServerSpec
from mandor.model.vm_request import VmRequest, VmRequestSpec
from mandor.store.base import Put
from tests.scenarios.make import make_node
from tests.scenarios.world import World


def server(name: str, address: str) -> Server:
    return Server(meta=Meta(name=name), spec=ServerSpec(version="1", address=address))


def addressed(name: str, address: str, hostname: str = "") -> Node:
    node = make_node(name)
    facts = {**node.status.facts, "hostname": hostname} if hostname else node.status.facts
    return node.changed(status=replace(node.status, address=address, facts=facts))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as made:
        yield made


async def placed(world: World, name: str) -> Instance:
    """Place the claim of a virtual machine, as far as the scheduler gets."""
    request = VmRequest(meta=Meta(name=name, namespace="default"), spec=VmRequestSpec(cpu=1, memory_mib=64))
    await world.store.commit(Put(request.claim))

    def claim() -> Instance:
        return next(each for each in world.all(Instance) if each.key == request.claim_key)

    await world.run(0.5)
    await world.until(lambda: bool(claim().spec.node or claim().status.message))
    return claim()


async def labels(world: World, name: str) -> dict[str, str]:
    found = await world.store.get(Key(Node.kind, "", name))
    assert isinstance(found, Node)
    return dict(found.meta.labels)


@pytest.mark.req("S4-39", "S4-42")
async def test_a_server_on_a_machine_closes_it_to_virtual_machines_without_a_label_by_hand(world: World) -> None:
    await world.add_nodes("seed", "work")
    await world.store.commit(Put(server("s1", "https://seed:8443")))
    await world.run(3)
    assert (await labels(world, "seed"))["control-plane"] == "true"
    assert "control-plane" not in await labels(world, "work")
    assert [(await placed(world, f"t{number}")).spec.node for number in range(3)] == ["work"] * 3
    assert [each.spec.about for each in world.events("ControlPlaneNode")] == ["node seed"]


@pytest.mark.req("S4-39", "S4-42")
async def test_a_cluster_of_nothing_but_servers_places_no_virtual_machine_and_says_why(world: World) -> None:
    await world.store.commit(*(Put(server(f"s{number}", f"https://seed-{number}:8443")) for number in range(3)))
    await world.add_nodes(*(f"seed-{number}" for number in range(3)))
    await world.run(3)
    claim = await placed(world, "t1")
    assert claim.status.message == "0/3 nodes fit: 3 ControlPlane (carries the control plane)"


@pytest.mark.req("S4-42")
async def test_the_label_false_of_a_user_opens_the_machine_and_is_not_overwritten(world: World) -> None:
    await world.add_nodes("seed", labels={"control-plane": "false"})
    await world.store.commit(Put(server("s1", "https://seed:8443")))
    await world.run(3)
    assert (await labels(world, "seed"))["control-plane"] == "false"
    assert (await placed(world, "t1")).spec.node == "seed"


@pytest.mark.req("S4-39")
@pytest.mark.parametrize(
    ("node", "address", "carries"),
    [
        (addressed("bm-1", "10.0.0.5"), "https://10.0.0.5:8443", True),
        (addressed("bm-1", "10.0.0.5"), "https://10.0.0.6:8443", False),
        (addressed("bm-1", "fd00::5"), "https://[fd00::5]:8443", True),
        (addressed("bm-1", "", "Seed-1.example"), "https://seed-1.example:8443", True),
        (addressed("seed-1", ""), "https://seed-1:8443", True),
        (addressed("bm-1", "127.0.0.1"), "http://127.0.0.1:8080", False),
        (addressed("localhost", "::1", "localhost"), "http://localhost:8080", False),
        (addressed("bm-1", "0.0.0.0"), "http://0.0.0.0:8080", False),
        (addressed("bm-1", ""), "", False),
        (addressed("bm-1", ""), "https://[broken", False),
    ],
)
def test_a_node_with_the_address_or_the_name_of_a_server_carries_it(node: Node, address: str, carries: bool) -> None:
    found = with_label(node, server_hosts([server("s1", address)]))
    assert (found is not None and found.meta.labels.get("control-plane") == "true") == carries
