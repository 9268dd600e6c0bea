"""Networks over HTTP: ranges that overlap, workloads that name them, and what a node may read."""

import pytest

from mandor.errors import Conflict, Forbidden, Invalid, NotFound
from mandor.model.meta import Key, Meta
from mandor.model.network import Network, NetworkSlice, NetworkSpec, NetworkStatus
from mandor.model.node import Node, NodePhase, NodeStatus
from mandor.store.base import ALL, Put
from tests.api.conftest import Api
from tests.api.test_apply import actions, send, stored
from tests.api.test_nodes import remote

BACKEND = "kind: network\nname: backend\nsubnet: 10.92.0.0/16\nsubnet6: fd92::/48\n"
WEB = "name: web\nimage: web:1\nnetwork: backend\n"


async def test_a_network_and_a_workload_that_names_it_are_applied_together(dev: Api) -> None:
    client = await dev.client()
    assert actions(await send(client, f"{WEB}---\n{BACKEND}")) == {"web": "created", "backend": "created"}
    web = await stored(dev, "web")
    assert web is not None
    assert web.spec.groups["main"].needs("docker") >= {"network.backend"}
    assert actions(await send(client, f"{WEB}---\n{BACKEND}")) == {"web": "unchanged", "backend": "unchanged"}


async def test_an_unknown_network_is_refused_with_its_line_and_a_near_name(dev: Api) -> None:
    client = await dev.client()
    await send(client, BACKEND)
    with pytest.raises(Invalid, match="there is no network backedn") as refused:
        await send(client, WEB.replace("backend", "backedn"))
    assert refused.value.facts["line"] == 3
    assert (refused.value.hint or "").startswith("did you mean `backend`?")


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ("subnet: 10.92.128.0/20", "overlaps with 10.92.0.0/16 of the network backend"),
        ("subnet: 10.96.0.0/16\nsubnet6: 'fd92:0:0:8000::/64'", "overlaps with fd92::/48 of the network backend"),
        ("subnet: 10.93.4.0/22", "overlaps with 10.93.0.0/16, the virtual addresses of services"),
        ("subnet: 10.96.0.0/16\nsubnet6: 'fd93::/48'", "overlaps with fd93::/112, the virtual addresses of services"),
        ("subnet: 10.94.0.0/16", "overlaps with 10.94.0.0/16, the bridges of process engines"),
        ("subnet: 192.168.0.0/16", "overlaps with the address 192.168.7.9 of the node n1"),
    ],
)
async def test_a_range_that_overlaps_with_another_one_is_refused(dev: Api, ranges: str, message: str) -> None:
    status = NodeStatus(phase=NodePhase.READY, address="192.168.7.9")
    await dev.store.commit(Put(Node(meta=Meta(name="n1"), status=status)))
    client = await dev.client()
    await send(client, BACKEND)
    with pytest.raises(Conflict) as refused:
        await send(client, f"kind: network\nname: other\n{ranges}\n")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("subnet: 10.92.0.1/16", "has host bits set"),
        ("subnet: everything", "is not a range of addresses"),
        ("subnet: 'fd92::/48'", "is not an IPv4 range"),
        ("subnet: 10.0.0.0/8\nnode_prefix: 24", "has 65536 slices of /24; at most 4096 are allowed"),
        ("subnet: 10.92.0.0/24\nnode_prefix: 20", "`node_prefix` 20 is larger than the whole subnet"),
        ("subnet: 10.92.0.0/16\nsubnet6: 'fd92::/112'", "is too small for 256 nodes"),
        ("subnet: 127.5.0.0/16", "cannot hold addresses of instances"),
        ("subnet: 10.92.0.0/16\nsubnet6: 'fd92::/48'\nbackend: routed", "has IPv4 addresses only"),
    ],
)
async def test_a_network_that_cannot_work_is_refused(dev: Api, fields: str, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        await send(await dev.client(), f"kind: network\nname: backend\n{fields}\n")


async def test_the_ranges_of_a_network_cannot_be_changed_and_its_namespaces_can(dev: Api) -> None:
    client = await dev.client()
    await send(client, BACKEND)
    for change in (("10.92.0.0/16", "10.95.0.0/16"), ("fd92::/48", "fd95::/48")):
        with pytest.raises(Conflict, match="cannot be changed"):
            await send(client, BACKEND.replace(*change))
    assert actions(await send(client, BACKEND + "namespaces: [team]\n")) == {"backend": "changed"}
    with pytest.raises(Invalid, match="the namespace default may not use the network backend"):
        await send(client, WEB)


async def test_a_network_stays_while_a_workload_names_it(dev: Api) -> None:
    client = await dev.client()
    await send(client, f"{BACKEND}---\n{WEB}")
    with pytest.raises(Conflict, match="1 workloads use the network backend"):
        await client.call("DELETE", "/v1/networks/backend", dict)
    await client.call("DELETE", "/v1/workloads/web", dict)
    await client.call("DELETE", "/v1/networks/backend", dict)
    assert await dev.store.get(Key(Network.kind, "", "backend")) is None


async def test_the_network_named_default_is_for_groups_that_name_none(dev: Api) -> None:
    client = await dev.client()
    plain = WEB.replace("network: backend\n", "")
    await send(client, plain)
    await send(client, BACKEND.replace("backend", "default"))
    assert actions(await send(client, plain)) == {"web": "unchanged"}, "no roll-out because of a new network"
    for name, more, network in (
        ("web", "env: {A: b}\n", "default"),
        ("new", "", "default"),
        ("engine", "network: engine\n", ""),
        ("host", "options: {docker: {network: host}}\n", ""),
        ("incus", "engine: incus\n", ""),
    ):
        await send(client, plain.replace("name: web", f"name: {name}") + more)
        found = await stored(dev, name)
        assert found is not None
        assert found.spec.groups["main"].overlay == network, name
    assert actions(await send(client, plain.replace("name: web", "name: new"))) == {"new": "unchanged"}


async def test_a_network_and_a_network_of_the_engine_exclude_each_other(dev: Api) -> None:
    client = await dev.client()
    await send(client, BACKEND)
    with pytest.raises(Invalid, match=r"`network: backend` and `options.docker.network` exclude each other"):
        await send(client, WEB + "options: {docker: {network: host}}\n")


async def test_attack_a_node_reads_only_the_networks_in_which_it_has_a_part(api: Api) -> None:
    for name, node, subnet in (("mine", "n1", "10.95.0.0/16"), ("other", "n2", "10.96.0.0/16")):
        status = NetworkStatus(number=1, slices={node: NetworkSlice(0, "192.0.2.1")})
        network = Network(meta=Meta(name=name), spec=NetworkSpec(subnet=subnet), status=status)
        await api.store.commit(Put(network))
    store = await remote(api, "node", "node:n1")
    assert [each.meta.name for each in (await store.list(Network.kind, ALL)).items] == ["mine"]
    assert await store.get(Key(Network.kind, "", "other")) is None
    mine = await store.get(Key(Network.kind, "", "mine"))
    assert isinstance(mine, Network)
    with pytest.raises((Forbidden, NotFound)):
        await store.commit(Put(mine.changed(status=NetworkStatus())))
