"""The agent applies services and their endpoints to the balancer of the node."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from mandor.agent.direct import DirectLink
from mandor.agent.link import Applied
from mandor.agent.traffic import Balancing
from mandor.errors import Unavailable
from mandor.model.instance import Instance, InstanceSpec, InstanceStatus, PortStatus
from mandor.model.meta import Key, Meta
from mandor.model.phase import Phase
from mandor.model.service import Service, ServicePort, ServiceSource, ServiceSpec, ServiceStatus
from mandor.network.addresses import ROUTED
from mandor.network.base import Balancer, Frontend, FrontendKey, Traffic
from mandor.store.base import Delete, Put
from tests.unit.agent.world import World, open_world

WEB = {"http": {"port": 8080, "host": "auto"}}


class Recorded(Balancer):
    """Keeps the frontends that were applied last; fails on request."""

    name: ClassVar[str] = "recorded"

    def __init__(self) -> None:
        self.calls: list[Sequence[Frontend]] = []
        self.failing = False

    async def probe(self) -> None:
        return None

    async def apply(self, frontends: Sequence[Frontend]) -> None:
        if self.failing:
            raise Unavailable("the packet filter does not answer")
        self.calls.append(frontends)

    async def traffic(self) -> Mapping[FrontendKey, Traffic]:
        return {}

    async def close(self) -> None:
        return None

    async def remove(self) -> None:
        self.calls.append(())

    def endpoints(self) -> list[str]:
        return [f"{each.address}:{each.port}" for front in self.calls[-1] for each in front.endpoints]


@pytest.fixture
def balancer() -> Recorded:
    return Recorded()


@pytest.fixture
async def world(tmp_path: Path, balancer: Recorded) -> AsyncIterator[World]:
    balancing = Balancing(balancer, ROUTED, tmp_path / "agent" / "network" / "in-use")
    async with open_world(tmp_path / "agent", names=True, balancing=balancing) as opened:
        yield opened


async def until(world: World, true: Callable[[], object]) -> None:
    async def holds() -> bool:
        return bool(true())

    await world.until(holds)


async def elsewhere(world: World, name: str = "db-0") -> Instance:
    status = InstanceStatus(
        phase=Phase.RUNNING,
        ready=True,
        address="172.17.0.9",
        host="10.0.0.2",
        ports=(PortStatus(name="sql", port=5432, host=20_007),),
    )
    spec = InstanceSpec(workload=name.rpartition("-")[0], release="db.1", index=0, node="n2")
    await world.store.commit(Put(Instance(meta=Meta(name=name, namespace="default"), spec=spec, status=status)))
    return await world.instance(name)


async def serve_db(world: World) -> Service:
    spec = ServiceSpec(port={"sql": ServicePort(port=5432)}, to=(ServiceSource(workload="db"),))
    made = Service(meta=Meta(name="data", namespace="default"), spec=spec, status=ServiceStatus(number=64))
    await world.store.commit(Put(made))
    found = await world.store.get(made.key)
    assert isinstance(found, Service)
    return found


async def start_web(world: World) -> Instance:
    await world.apply(ports=WEB)
    web = await world.order(ports={"http": 20_001})
    await world.until_phase(Phase.RUNNING)
    return web


@pytest.mark.req("S2-46")
async def test_the_balancer_follows_services_and_ready_instances(world: World, balancer: Recorded) -> None:
    await start_web(world)
    assert balancer.calls == [], "a node without services does not touch the packet filter"
    db = await elsewhere(world)
    service = await serve_db(world)
    await until(world, lambda: balancer.calls and balancer.endpoints() == ["10.0.0.2:20007"])
    (front,) = balancer.calls[-1]
    assert (front.addresses, front.port) == (("10.93.0.64", "fd93::40"), 5432)
    await world.store.commit(Put(db.changed(status=msgspec.structs.replace(db.status, ready=False))))
    await until(world, lambda: balancer.calls[-1] and balancer.endpoints() == [])
    await world.store.commit(Delete(service.key, service.meta.version))
    await until(world, lambda: balancer.calls[-1] == [])


async def test_an_instance_with_a_stop_order_leaves_the_balancer_before_it_ends(
    world: World, balancer: Recorded
) -> None:
    db = await elsewhere(world)
    await start_web(world)
    await serve_db(world)
    await until(world, lambda: balancer.calls and balancer.endpoints() == ["10.0.0.2:20007"])
    await world.store.commit(Put(db.stopping("scaled down")))
    await until(world, lambda: balancer.endpoints() == [])


async def test_names_lead_to_the_virtual_address(world: World, balancer: Recorded) -> None:
    web = await start_web(world)
    await elsewhere(world)
    await serve_db(world)
    hosts = world.settings.data / "names" / web.meta.uid / "hosts"
    await until(world, lambda: "10.93.0.64 data data.default " in hosts.read_text())


async def test_a_restarted_agent_changes_nothing_until_it_knows_all_services(world: World, balancer: Recorded) -> None:
    await start_web(world)
    await elsewhere(world)
    await serve_db(world)
    await until(world, lambda: balancer.calls and balancer.endpoints() == ["10.0.0.2:20007"])
    await world.kill_agent()
    balancer.calls.clear()
    world.wire.cut()
    await world.boot_agent()
    await world.pass_time(30)
    assert balancer.calls == []
    world.wire.mend()
    await until(world, lambda: balancer.calls)
    assert balancer.endpoints() == ["10.0.0.2:20007"]
    assert len(balancer.calls) == 1


async def test_a_failed_change_is_repeated(world: World, balancer: Recorded) -> None:
    await start_web(world)
    await elsewhere(world)
    balancer.failing = True
    await serve_db(world)
    await world.pass_time(5)
    assert balancer.calls == []
    balancer.failing = False
    await until(world, lambda: balancer.calls and balancer.endpoints() == ["10.0.0.2:20007"])


class OtherNodes(DirectLink):
    """A link to a control plane that knows the data paths of other nodes."""

    def __init__(self, world: World) -> None:
        super().__init__(world.wire, "n1", beat=lambda _, beat: world.beats.append(beat))
        self.lowest = 0
        """Revision that the slowest other node has applied."""
        self.complete = True
        self.reports: list[dict[str, int]] = []

    async def report_applied(self, namespaces: Mapping[str, int]) -> None:
        self.reports.append(dict(namespaces))

    async def wait_applied(self, asks: Mapping[str, int]) -> Applied:
        return Applied(complete=self.complete, lowest=dict.fromkeys(asks, self.lowest))


@pytest.fixture
async def served(world: World) -> OtherNodes:
    """A running instance of web behind a service, and other nodes that have applied nothing."""
    await world.kill_agent()
    world.link = OtherNodes(world)
    await world.boot_agent()
    spec = ServiceSpec(port={"http": ServicePort(port=80)}, to=(ServiceSource(workload="web"),))
    made = Service(meta=Meta(name="web", namespace="default"), spec=spec, status=ServiceStatus(number=64))
    await world.store.commit(Put(made))
    await start_web(world)
    await until(world, lambda: world.link.reports and world.link.reports[-1].get("default"))
    link = world.link
    assert isinstance(link, OtherNodes)
    return link


async def stop_signal_sent(world: World) -> bool:
    return not await world.live()


@pytest.mark.req("S2-46")
async def test_a_stopping_instance_runs_until_every_node_has_applied_its_stop_order(
    world: World, served: OtherNodes, balancer: Recorded
) -> None:
    await world.stop_order()
    await world.until_phase(Phase.STOPPING)
    await world.pass_time(5)
    assert await world.live(), "another node may still send it connections"
    assert balancer.endpoints() == [], "this node sends it none"
    ordered = (await world.instance()).meta.version
    served.lowest = ordered - 2
    await world.pass_time(2)
    assert await world.live()
    served.lowest = ordered
    await world.until(lambda: stop_signal_sent(world))
    await world.until_phase(Phase.STOPPED)


async def test_an_instance_is_stopped_after_the_drain_time_if_a_node_never_answers(
    world: World, served: OtherNodes
) -> None:
    await world.stop_order()
    await world.pass_time(25)
    assert await world.live()
    await world.pass_time(10)
    await world.until_phase(Phase.STOPPED)


async def test_a_server_that_has_just_started_is_not_believed(world: World, served: OtherNodes) -> None:
    served.complete, served.lowest = False, 1 << 40
    await world.stop_order()
    await world.pass_time(10)
    assert await world.live(), "other nodes may not have reported to it yet"
    served.complete = True
    await world.until_phase(Phase.STOPPED)


async def test_an_instance_behind_no_service_is_stopped_at_once(world: World, served: OtherNodes) -> None:
    service = await world.store.get(Key(Service.kind, "default", "web"))
    assert service is not None
    await world.store.commit(Delete(service.key, service.meta.version))
    await world.pass_time(1)
    await world.stop_order()
    await world.pass_time(2)
    assert not await world.live()


async def test_a_node_reports_again_when_an_instance_elsewhere_stops(world: World, balancer: Recorded) -> None:
    await world.kill_agent()
    world.link = OtherNodes(world)
    await world.boot_agent()
    db = await elsewhere(world)
    await start_web(world)
    await serve_db(world)
    await until(world, lambda: balancer.calls and balancer.endpoints() == ["10.0.0.2:20007"])
    await until(world, lambda: world.link.reports)
    await world.store.commit(Put(db.stopping("scaled down")))
    ordered = (await world.instance("db-0")).meta.version
    await until(world, lambda: world.link.reports[-1]["default"] >= ordered)
