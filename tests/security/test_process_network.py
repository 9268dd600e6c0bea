"""The network of confined processes: what a tenant cannot reach, and how its own ports are reached."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from mandor.engines.base import Launch, Unit, UnitPhase
from mandor.errors import PortTaken
from tests.components.ports import free_port
from tests.integration.engines.conftest import Bench, clear, until

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="networks of tasks need an agent that is root"),
    pytest.mark.real("nftables", "iproute2"),
]

CONFINED = ("restricted", "baseline")
PYTHON = "/usr/bin/python3"
SERVE = """
import socket, sys
kind = socket.SOCK_DGRAM if sys.argv[2] == 'udp' else socket.SOCK_STREAM
listener = socket.socket(socket.AF_INET, kind)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(('', int(sys.argv[1])))
if kind is socket.SOCK_STREAM:
    listener.listen()
print('listens', flush=True)
while True:
    if kind is socket.SOCK_STREAM:
        line, peer = listener.accept()
        line.sendall(b'served to ' + peer[0].encode())
        line.close()
    else:
        _, peer = listener.recvfrom(100)
        listener.sendto(b'served to ' + peer[0].encode(), peer)
"""
FETCH = "import socket, sys; print(socket.create_connection((sys.argv[1], int(sys.argv[2])), 20).recv(99).decode())"
ATTACKS = {
    "connect to the node's loopback": f"{PYTHON} -c '{FETCH}' 127.0.0.1 $SECRET_PORT",
    "connect to the node's loopback by another address": f"{PYTHON} -c '{FETCH}' 127.8.8.8 $SECRET_PORT",
    "connect to the node's loopback through the bridge": f"{PYTHON} -c '{FETCH}' $GATEWAY $SECRET_PORT",
    "route the node's loopback to the bridge": "ip route add 127.0.0.1 via $GATEWAY && "
    f"{PYTHON} -c '{FETCH}' 127.0.0.1 $SECRET_PORT",
    "see what listens on the node": "grep -i $SECRET_HEX /proc/net/tcp",
    "open a packet socket": f"{PYTHON} -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'",
    "open a raw socket": f"{PYTHON} -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)'",
    "give itself another address": "ip address add 10.94.255.7/32 dev eth0 || ip link set eth0 down",
    "enter the network of the node": "nsenter --net=/proc/1/ns/net true",
}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path / "engine")
    yield bench
    await clear(bench)


@pytest.fixture
def secret_port() -> Iterator[int]:
    """A server on the node's loopback, such as a database without a password."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    line, _ = listener.accept()
                except OSError:
                    return
                with line:
                    line.sendall(b"the secret of the node")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def fetch(address: str, port: int) -> str:
    with socket.create_connection((address, port), 30) as line:
        return line.recv(100).decode()


async def serve(bench: Bench, port: int, protocol: str = "tcp", unit: Unit | None = None, **parts: Any) -> Unit:
    """Start a confined server on a port of its own and wait until it listens."""
    unit = unit or bench.unit()
    command = (PYTHON, "-c", SERVE, str(port), protocol)
    parts = {"level": "restricted", "ports": {"http": port}, "protocols": {"http": protocol}} | parts
    await bench.engine.start(unit, Launch(name="server", command=command, **parts))
    await bench.printed(unit)
    return unit


async def address_of(bench: Bench, unit: Unit) -> str:
    observed = await bench.look(unit)
    assert observed is not None
    assert observed.phase is UnitPhase.RUNNING, observed
    return observed.address


def gateway(address: str) -> str:
    """Return the node's address on the bridge of an instance, from the routes of the node."""
    route = subprocess.run(["ip", "route", "get", address], capture_output=True, text=True, check=True).stdout
    return route.split(" src ")[1].split()[0]


async def run_as_tenant(bench: Bench, script: str, level: str, env: dict[str, str]) -> list[str]:
    unit = await bench.start(f"({script}) 2>&1 && echo won; echo tried", level=level, env=env)
    await bench.ended(unit)
    return [line.decode(errors="replace") for line in await bench.output(unit)]


async def facts(bench: Bench, secret_port: int) -> dict[str, str]:
    own = await address_of(bench, await bench.start("sleep 1000", level="restricted"))
    return {
        "SECRET_PORT": str(secret_port),
        "SECRET_HEX": f":{secret_port:04X}",
        "GATEWAY": gateway(own),
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    }


@pytest.mark.parametrize("level", CONFINED)
@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_tenant_cannot(bench: Bench, secret_port: int, attack: str, level: str) -> None:
    printed = await run_as_tenant(bench, ATTACKS[attack], level, await facts(bench, secret_port))
    assert printed[-1:] == ["tried"]
    assert "won" not in printed
    assert not [line for line in printed if "the secret of the node" in line]


async def test_the_attacks_are_real(bench: Bench, secret_port: int) -> None:
    """The same scripts succeed where nothing confines them."""
    known = await facts(bench, secret_port)
    for attack in ("connect to the node's loopback", "see what listens on the node", "open a packet socket"):
        assert "won" in await run_as_tenant(bench, ATTACKS[attack], "privileged", known), attack


@pytest.mark.parametrize("level", CONFINED)
async def test_a_port_is_reached_from_the_node_and_by_other_tasks(bench: Bench, level: str) -> None:
    port = free_port()
    unit = await serve(bench, port, level=level)
    own = await address_of(bench, unit)
    assert own.startswith("10.94.")
    for address in ("127.0.0.1", gateway(own), own):
        assert (await asyncio.to_thread(fetch, address, port)).startswith("served to "), address
    for address in (gateway(own), own):
        script = f"{PYTHON} -c '{FETCH}' {address} {port}"
        assert "won" in await run_as_tenant(bench, script, level, {}), address
    # A task also reaches itself by the address of the node.
    inside = await bench.engine.exec(unit, [PYTHON, "-c", FETCH, gateway(own), str(port)])
    assert await inside.wait() == 0
    await inside.close()


async def test_a_udp_port_is_reached_from_the_node(bench: Bench) -> None:
    port = free_port()
    await serve(bench, port, "udp")

    def ask() -> bytes:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
            line.settimeout(30)
            line.sendto(b"?", ("127.0.0.1", port))
            return line.recv(100)

    assert (await asyncio.to_thread(ask)).startswith(b"served to ")


async def test_a_task_cannot_take_a_port_of_a_program_of_the_node(bench: Bench, secret_port: int) -> None:
    unit = bench.unit()
    launch = Launch(
        name="thief",
        command=(PYTHON, "-c", SERVE, str(secret_port), "tcp"),
        level="restricted",
        ports={"http": secret_port},
    )
    with pytest.raises(PortTaken, match=f"tcp port {secret_port} of this node cannot be used: Address already in use"):
        await bench.engine.start(unit, launch)
    assert await asyncio.to_thread(fetch, "127.0.0.1", secret_port) == "the secret of the node"


async def test_a_program_of_the_node_cannot_take_a_port_of_a_task(bench: Bench) -> None:
    port = free_port()
    await serve(bench, port)
    with socket.socket() as thief, pytest.raises(OSError, match="in use"):
        thief.bind(("0.0.0.0", port))


async def test_a_port_of_an_instance_is_free_for_another_one_when_it_has_ended(bench: Bench) -> None:
    port = free_port()
    first = await serve(bench, port)
    second = bench.unit()
    launch = Launch(name="second", command=("sleep", "1000"), level="restricted", ports={"http": port})
    with pytest.raises(PortTaken, match=f"tcp port {port} of this node belongs to another instance"):
        await bench.engine.start(second, launch)
    await bench.engine.stop(first, grace_seconds=10)
    third = await serve(bench, port)
    assert (await asyncio.to_thread(fetch, "127.0.0.1", port)).startswith("served to ")
    assert await address_of(bench, third) not in ("", "127.0.0.1")


async def test_tasks_of_one_instance_share_a_network_that_others_do_not(bench: Bench) -> None:
    port, unit = free_port(), bench.unit()
    await serve(bench, port, unit=unit, sandbox=True)
    beside = Unit(unit.uid, "beside", 1)
    fetching = (PYTHON, "-c", FETCH, "127.0.0.1", str(port))
    launch = Launch(name="beside", command=fetching, level="restricted", ports={"http": port}, sandbox=True)
    await bench.engine.start(beside, launch)
    assert (await bench.ended(beside)).exit_code == 0
    assert await bench.output(beside) == [b"served to 127.0.0.1"]
    other = await bench.start(f"{PYTHON} -c '{FETCH}' 127.0.0.1 {port}", level="restricted")
    assert (await bench.ended(other)).exit_code == 1


async def test_a_restarted_task_has_the_same_address(bench: Bench) -> None:
    port, unit = free_port(), bench.unit()
    await serve(bench, port, unit=unit)
    before = await address_of(bench, unit)
    await bench.engine.stop(unit, grace_seconds=10)
    await bench.start("sleep 1000", level="restricted")
    again = Unit(unit.uid, unit.task, unit.attempt + 1)
    await serve(bench, port, unit=again)
    assert await address_of(bench, again) == before


async def test_ports_are_reached_while_the_agent_is_down_and_after_its_restart(bench: Bench) -> None:
    port = free_port()
    unit = await serve(bench, port)
    before = await address_of(bench, unit)
    await bench.engine.close()
    assert (await asyncio.to_thread(fetch, "127.0.0.1", port)).startswith("served to ")
    await bench.again()
    assert await address_of(bench, unit) == before
    later = await serve(bench, free_port())
    assert await address_of(bench, later) != before
    assert (await asyncio.to_thread(fetch, "127.0.0.1", port)).startswith("served to ")


async def test_the_bridge_and_the_rules_go_with_the_last_instance(bench: Bench) -> None:
    unit = await serve(bench, free_port())
    network = bench.engine._network
    assert network is not None
    assert network.bridge in {name for _, name in socket.if_nameindex()}
    await bench.engine.remove(unit)
    assert network.bridge not in {name for _, name in socket.if_nameindex()}
    tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout
    assert network.table not in tables


async def test_an_interrupted_start_leaves_no_address_and_no_bridge(bench: Bench) -> None:
    await bench.engine.probe()
    network = bench.engine._network
    assert network is not None
    for steps in range(0, 60, 4):
        starting = asyncio.create_task(bench.start("sleep 1000", level="restricted"))
        for _ in range(steps):
            await asyncio.sleep(0.002)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
    for observed in await bench.engine.list():
        await bench.engine.remove(observed.unit)
    await bench.engine.list()
    await until(
        lambda: network.bridge not in {name for _, name in socket.if_nameindex()}, lambda: f"left: {network.bridge}"
    )


async def test_the_engine_option_keeps_confined_tasks_in_the_network_of_the_node(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "engine", network="node")
    assert "network" not in (await bench.engine.probe()).extras
    unit = await bench.start("sleep 1000", level="baseline")
    assert await address_of(bench, unit) == ""
    await clear(bench)
