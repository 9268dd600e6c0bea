"""Names resolve only to reachable instances, and the hosts file stays small."""

from __future__ import annotations

import ipaddress
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mandor.agent.discovery import (
    ADDRESSES_MOST,
    BEGINNING,
    INSTANCES_MOST,
    UNKNOWN_ADDRESS,
    chosen,
    hosts_file,
    reachable,
    variables,
)
from mandor.model.instance import Instance, InstanceSpec, InstanceStatus, PortStatus, instance_name
from mandor.model.meta import Meta
from mandor.model.phase import Phase
from mandor.network.endpoints import Viewpoint, seen_instance

HERE = "n0"
ADDRESS = {"n0": "192.0.2.1", "n1": "192.0.2.2", "n2": "192.0.2.3"}


@st.composite
def statuses(draw: st.DrawFn, node: str, number: int) -> InstanceStatus:
    own = draw(st.booleans())
    ports = []
    for name in draw(st.lists(st.sampled_from(["http", "admin"]), unique=True)):
        host = draw(st.sampled_from([None, 80, 20_001]))
        inside = draw(st.sampled_from([80, 8080])) if own or host is None else host
        ports.append(PortStatus(name=name, port=inside, host=host))
    return InstanceStatus(
        phase=draw(st.sampled_from([Phase.RUNNING, Phase.RUNNING, Phase.STARTING, Phase.LOST])),
        ready=draw(st.booleans()),
        address=f"10.0.{number // 250}.{number % 250 + 1}" if own else "",
        host=ADDRESS[node] if ports else "",
        ports=tuple(ports),
    )


@st.composite
def worlds(draw: st.DrawFn) -> list[Instance]:
    found = {}
    for number in range(draw(st.integers(0, 12))):
        workload, group = (
            draw(st.sampled_from(["web", "db", "web-0", "localhost"])),
            draw(st.sampled_from(["main", "x"])),
        )
        node = draw(st.sampled_from(list(ADDRESS)))
        name = instance_name(workload, group, number)
        spec = InstanceSpec(workload=workload, group=group, release="r", index=number, node=node)
        found[name] = Instance(meta=Meta(name=name, namespace="a"), spec=spec, status=draw(statuses(node, number)))
    return list(found.values())


@pytest.mark.req("S2-6")
@given(world=worlds(), own=st.integers(0, 11))
@settings(max_examples=200, deadline=None)
def test_a_name_resolves_only_to_running_and_reachable_instances(world: list[Instance], own: int) -> None:
    me = instance_name("web", "main", own)
    view = Viewpoint(HERE, ADDRESS[HERE])
    seen = [seen_instance(each, each.status, view) for each in world]
    instances = chosen(reachable(each) for each in seen if each is not None)
    text = hosts_file(instances, [me])
    assert text.startswith(BEGINNING)
    names: dict[str, set[str]] = defaultdict(set)
    for line in text.removeprefix(BEGINNING).splitlines():
        address, *words = line.split()
        ipaddress.ip_address(address)
        for word in words:
            names[word].add(address)
    assert names[me], "everybody finds itself"
    assert "localhost" not in names, "nobody takes that name"
    by_name = {each.meta.name: each for each in world}
    for word, addresses in names.items():
        for address in addresses - {UNKNOWN_ADDRESS}:
            leads = [each for each in world if address in {each.status.address, ADDRESS[each.node]}]
            assert any(each.status.phase is Phase.RUNNING for each in leads), word
    for workload in ("web", "db", "web-0"):
        expected = {
            each.status.address if each.node == HERE and each.status.address else ADDRESS[each.node]
            for each in world
            if each.spec.workload == workload and each.status.ready and each.status.phase is Phase.RUNNING
            if each.node == HERE or (each.status.ports and all(_same(each, port) for port in each.status.ports))
        }
        aliases = names[workload] - {UNKNOWN_ADDRESS}
        if workload != me and by_name.get(workload) is None:
            assert aliases == expected
    for key, value in variables(instances, me).items():
        assert key.startswith("MANDOR_ADDR_")
        assert 1 <= len(value.split(",")) <= ADDRESSES_MOST


def _same(instance: Instance, port: PortStatus) -> bool:
    """On another node, an instance with its own address is reached only through node ports."""
    return port.host == port.port if instance.status.address else True


def test_a_hosts_file_is_limited_and_keeps_the_nearest() -> None:
    world = [
        Instance(
            meta=Meta(name=f"web-{number}", namespace="a"),
            spec=InstanceSpec(workload="web", release="r", index=number, node="n0" if number >= 2000 else "n1"),
            status=InstanceStatus(
                phase=Phase.RUNNING, ready=True, host="192.0.2.2", ports=(PortStatus(name="http", port=80, host=80),)
            ),
        )
        for number in range(2010)
    ]
    view = Viewpoint(HERE, ADDRESS[HERE])
    seen = [seen_instance(each, each.status, view) for each in world]
    instances = chosen(reachable(each) for each in seen if each is not None)
    assert len(instances) == INSTANCES_MOST
    assert sum(each.near for each in instances) == 10
    assert len(hosts_file(instances, ["db-0"])) < 64 * 1024
    assert len(variables(instances, "db-0")["MANDOR_ADDR_WEB_HTTP"].split(",")) == ADDRESSES_MOST


@pytest.mark.req("S2-6")
def test_an_alias_resolves_unless_a_workload_or_an_instance_has_the_name() -> None:
    def instance(workload: str, address: str, *aliases: str, ready: bool = True) -> Instance:
        status = InstanceStatus(phase=Phase.RUNNING, ready=ready, address=address, aliases=aliases)
        spec = InstanceSpec(workload=workload, group="main", release="r", index=0, node=HERE)
        return Instance(meta=Meta(name=f"{workload}-0", namespace="a"), spec=spec, status=status)

    world = [
        instance("db", "10.0.0.1", "database", "web", "web-0", "localhost"),
        instance("web", "10.0.0.2", "database"),
        instance("late", "10.0.0.3", "slow", ready=False),
    ]
    seen = [seen_instance(each, each.status, Viewpoint(HERE, ADDRESS[HERE])) for each in world]
    text = hosts_file(chosen(reachable(each) for each in seen if each is not None), ["other-0"])
    names = {line.split()[0]: line.split()[1:] for line in text.removeprefix(BEGINNING).splitlines()}
    assert names["10.0.0.1"] == ["db-0", "main.db", "db", "database"]
    assert names["10.0.0.2"] == ["web-0", "main.web", "web", "database"]
    assert names["10.0.0.3"] == ["late-0"]
