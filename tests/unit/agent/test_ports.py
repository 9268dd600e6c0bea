"""Ports of an instance on its node, and ports that other programs use."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mandor.agent.foreign_ports import ForeignPorts, port_in_use, server_ports
from mandor.agent.launch import make_launch
from mandor.agent.order import Memory, Order, TaskMemory
from mandor.agent.ports import ports_of, publishes
from mandor.agent.status import describe
from mandor.engines.base import Launch, Observed, Unit, UnitPhase
from mandor.errors import PortTaken
from mandor.lib.clock import ManualClock
from mandor.lib.port_holder import port_holder
from mandor.model.codec import from_plain
from mandor.model.group import GroupTemplate
from mandor.model.instance import PORT_TAKEN
from mandor.model.node import Capabilities, PortRange
from mandor.model.phase import Phase
from tests.unit.agent.make import NOTHING_SEEN, make_order
from tests.unit.agent.world import World, open_world

PORTS = {
    "plain": {"port": 1000},
    "fixed": {"port": 2000, "host": 80},
    "chosen": {"port": 3000, "host": "auto"},
    "same": {"host": "auto", "protocol": "udp"},
}
CHOSEN = {"chosen": 20_001, "same": 20_002}


def order(ports: dict[str, Any], chosen: dict[str, int] | None = None, **task: Any) -> Order:
    whole = from_plain({"ports": ports, "tasks": {"main": {"command": ["run"], **task}}}, GroupTemplate)
    made = make_order()
    spec = msgspec.structs.replace(made.instance.spec, ports=chosen)
    return msgspec.structs.replace(made, template=whole, instance=made.instance.changed(spec=spec))


@pytest.mark.parametrize(
    ("published", "inside"),
    [
        (True, {"plain": 1000, "fixed": 2000, "chosen": 3000, "same": 20_002}),
        (False, {"plain": 1000, "fixed": 80, "chosen": 20_001, "same": 20_002}),
    ],
)
def test_a_task_listens_on_its_own_port_unless_it_uses_the_nodes_network(
    published: bool, inside: dict[str, int]
) -> None:
    found = ports_of(order(PORTS, CHOSEN), published=published)
    assert {each.name: each.port for each in found} == inside
    assert {each.name: each.host for each in found} == {"plain": None, "fixed": 80, "chosen": 20_001, "same": 20_002}


@pytest.mark.parametrize(
    ("own_network", "address", "host"), [(True, "10.94.0.2", 1000), (True, "", None), (False, "10.1.0.2", None)]
)
def test_ports_of_a_process_with_its_own_network_lead_there_from_the_node(
    own_network: bool, address: str, host: int | None
) -> None:
    made = order({"plain": {"port": 1000}})
    unit = Unit(made.uid, "main", 1)
    running = Observed(unit=unit, phase=UnitPhase.RUNNING, started_at=1.0, address=address)
    memory = Memory(engine="process", tasks={"main": TaskMemory(attempt=1)})
    inputs = msgspec.structs.replace(NOTHING_SEEN, units=(running,), published=False, own_network=own_network)
    status = describe(made, memory, inputs, 1.0)
    assert [(each.port, each.host) for each in status.ports] == [(1000, host)]


def test_the_environment_has_both_port_numbers() -> None:
    launch = make_launch(order(PORTS, CHOSEN), "main", "docker", NOTHING_SEEN)
    assert {key: value for key, value in launch.env.items() if "PORT" in key} == {
        "MANDOR_PORT_PLAIN": "1000",
        "MANDOR_PORT_FIXED": "2000",
        "MANDOR_HOST_PORT_FIXED": "80",
        "MANDOR_PORT_CHOSEN": "3000",
        "MANDOR_HOST_PORT_CHOSEN": "20001",
        "MANDOR_PORT_SAME": "20002",
        "MANDOR_HOST_PORT_SAME": "20002",
    }
    assert launch.ports == {"plain": 1000, "fixed": 2000, "chosen": 3000, "same": 20_002}
    assert launch.host_ports == {"fixed": 80, "chosen": 20_001, "same": 20_002}
    assert launch.protocols == {"same": "udp"}


def test_no_ports_are_published_for_a_container_on_the_nodes_network() -> None:
    docker = {"docker": Capabilities(images=True, extras=frozenset({"ports"})), "process": Capabilities()}
    assert publishes(order(PORTS, CHOSEN), "docker", docker)
    assert not publishes(order(PORTS, CHOSEN, options={"docker": {"network": "host"}}), "docker", docker)
    assert not publishes(order(PORTS, CHOSEN), "process", docker)


@pytest.mark.parametrize(("kind", "protocol"), [(socket.SOCK_STREAM, "tcp"), (socket.SOCK_DGRAM, "udp")])
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_port_is_in_use_while_a_socket_is_bound_to_it(kind: socket.SocketKind, protocol: str, address: str) -> None:
    with socket.socket(socket.AF_INET, kind) as holder:
        holder.bind((address, 0))
        if kind is socket.SOCK_STREAM:
            holder.listen()
        port = holder.getsockname()[1]
        assert port_in_use(port, protocol)
    assert not port_in_use(port, protocol)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path / "agent", ports=PortRange(30_000, 30_010)) as opened:
        yield opened


async def test_the_status_of_an_instance_has_its_ports(world: World) -> None:
    await world.apply(ports={"http": {"port": 8080, "host": "auto"}})
    await world.order(ports={"http": 30_004})
    status = await world.until_phase(Phase.RUNNING)
    assert status.host == world.address
    assert [(each.name, each.port, each.host) for each in status.ports] == [("http", 8080, 30_004)]
    assert (await world.node()).status.ports == PortRange(30_000, 30_010)


async def test_ports_that_an_engine_publishes_on_another_machine_have_the_address_of_that_machine(world: World) -> None:
    world.engine.published_at = "192.0.2.9"
    await world.apply(ports={"http": {"port": 8080, "host": "auto"}})
    await world.order(ports={"http": 30_004})
    assert (await world.until_phase(Phase.RUNNING)).host == "192.0.2.9"
    assert (await world.node()).status.address == world.address


async def test_a_port_of_another_program_is_refused_and_reported_until_it_is_free(world: World) -> None:
    world.taken_ports.add((30_004, "tcp"))
    await world.apply(ports={"http": {"port": 8080, "host": "auto"}})
    await world.order(ports={"http": 30_004})
    status = await world.until_phase(Phase.FAILED)
    assert (status.reason, status.message) == (
        PORT_TAKEN,
        "tcp port 30004 of this node is in use by a program outside Mandor",
    )
    assert world.starts == []

    async def told(taken: tuple[int, ...]) -> bool:
        return (await world.node()).status.ports.taken == taken

    await world.until(lambda: told((30_004,)))
    world.taken_ports.clear()
    await world.until(lambda: told(()), seconds=200)


async def test_an_instance_fails_if_the_engine_finds_its_port_in_use(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that can be tried out holds it, as with a rule of the packet filter."""

    async def taken(unit: Unit, launch: Launch) -> None:
        raise PortTaken("port 30004 of this node is taken: port is already allocated", port=30_004)

    monkeypatch.setattr(world.engine, "start", taken)
    await world.apply(ports={"http": {"port": 8080, "host": "auto"}})
    await world.order(ports={"http": 30_004})
    status = await world.until_phase(Phase.FAILED)
    assert (status.reason, status.restarts) == (PORT_TAKEN, 0)
    assert "already allocated" in status.message

    async def told(taken: tuple[int, ...]) -> bool:
        return (await world.node()).status.ports.taken == taken

    await world.until(lambda: told((30_004,)))
    await world.until(lambda: told(()), seconds=300)


async def test_a_restarted_task_waits_once_for_its_own_port(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real, refused = world.engine.start, 0

    async def taken_once(unit: Unit, launch: Launch) -> None:
        nonlocal refused
        if unit.attempt > 1 and not refused:
            refused += 1
            raise PortTaken("port 30004 of this node is taken: address already in use", port=30_004)
        await real(unit, launch)

    monkeypatch.setattr(world.engine, "start", taken_once)
    await world.apply(ports={"http": {"port": 8080, "host": "auto"}}, options={"fake": {"after": "1s", "exit_code": 1}})
    await world.order(ports={"http": 30_004})

    async def again() -> bool:
        return (await world.status()).restarts >= 1 and bool(refused) and await world.live() != []

    await world.until(again, seconds=120)
    assert (await world.status()).reason != PORT_TAKEN


async def test_an_instance_without_a_chosen_port_is_refused(world: World) -> None:
    await world.apply(ports={"http": {"port": 8080, "host": "auto"}})
    await world.order()
    status = await world.until_phase(Phase.FAILED)
    assert status.message == "the scheduler chose no node port for its port http"


def test_the_message_about_a_port_in_use_names_the_program_and_how_to_move_the_api() -> None:
    fixed = order({"web": {"port": 80, "host": 8080}})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        other = order({"web": {"port": 80, "host": port}})
        api = ForeignPorts(lambda number, protocol: True, ManualClock(), server_ports(["http://127.0.0.1:8080"]))
        holder = f"(process {os.getpid()})"
        assert holder in api.taken(other)
        assert api.taken(other).endswith("a program outside Mandor")
        moved = ForeignPorts(lambda number, protocol: True, ManualClock(), server_ports([f"http://127.0.0.1:{port}"]))
        assert f"in use by the API server of Mandor, {port_holder(port)}; start it with --listen" in moved.taken(other)
    assert "the API server of Mandor" in api.taken(fixed)
    assert server_ports(["https://control.example:8080"]) == []
