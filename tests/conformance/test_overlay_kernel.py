"""The kernel overlay keeps the promises of every overlay, and drops packets with addresses of others."""

import asyncio
import json
import os
import socket
import struct
import subprocess
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from mandor.network.base import Bridge, NetworkPart, Overlay
from mandor.network.overlay import KernelOverlay
from mandor.network.overlay.plan import FIRST_IDENTIFIER, device_mac
from mandor.testing.overlay import OverlaySuite
from tests.conformance.test_balancer_nftables import enter

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.real("nftables", "iproute2"),
]
PORT = 7000


def ip(*lines: str) -> None:
    for line in lines:
        subprocess.run(["ip", *line.split()], check=True)


class TestKernelOverlay(OverlaySuite):
    node_addresses = ("192.168.77.1", "192.168.77.2", "192.168.77.3")

    @pytest.fixture(autouse=True)
    async def machines(self) -> AsyncIterator[None]:
        self.prefix = f"mo{os.getpid()}"
        self.servers: list[socket.socket] = []
        names = [f"{self.prefix}{each}" for each in ("s", *range(3), "i0", "i1", "i2")]
        ip(*(f"netns add {each}" for each in names))
        ip(f"-n {names[0]} link add br0 type bridge", f"-n {names[0]} link set br0 up")
        for number, address in enumerate(self.node_addresses):
            node = f"{self.prefix}{number}"
            ip(
                f"-n {names[0]} link add p{number} type veth peer name eth0 netns {node}",
                f"-n {names[0]} link set p{number} master br0 up",
                f"-n {node} address add {address}/24 dev eth0",
                f"-n {node} link set eth0 up",
                f"-n {node} link set lo up",
            )
        self.threads = [
            ThreadPoolExecutor(4, initializer=enter, initargs=(f"/run/netns/{self.prefix}{each}",)) for each in range(3)
        ]
        yield
        for each in self.servers:
            each.close()
        for pool in self.threads:
            pool.shutdown()
        ip(*(f"netns delete {each}" for each in names))

    def make(self, node: int) -> Overlay:
        return KernelOverlay(f"node-{node}")

    def enter(self, node: int) -> None:
        asyncio.get_running_loop().set_default_executor(self.threads[node])

    def attach(self, node: int, bridge: Bridge, part: NetworkPart) -> None:
        inside, outside = f"{self.prefix}i{node}", f"{self.prefix}{node}"
        gateway6 = part.slice6.replace("::/56", "::1")
        ip(
            f"-n {outside} link add v0 mtu {bridge.mtu} type veth peer name eth0 mtu {bridge.mtu} netns {inside}",
            f"-n {outside} link set v0 master {bridge.interface} up",
            f"-n {inside} address add 10.92.{node}.5/24 dev eth0",
            f"-n {inside} address add {part.slice6.replace('::/56', '::5')}/56 dev eth0 nodad",
            f"-n {inside} link set eth0 up",
            f"-n {inside} route add default via 10.92.{node}.1",
            f"-n {inside} route add default via {gateway6}",
        )
        for family in (socket.AF_INET, socket.AF_INET6):
            listening = self.socket_in(inside, family)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(("", PORT))
            listening.listen()
            listening.settimeout(5)
            self.servers.append(listening)

    def socket_in(self, name: str, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM) -> socket.socket:
        """Return a socket of a namespace."""
        with ThreadPoolExecutor(1, initializer=enter, initargs=(f"/run/netns/{name}",)) as aside:
            return aside.submit(socket.socket, family, kind).result()

    def reach(self, source: int, target: str, *, node: bool = False) -> str:
        family = socket.AF_INET6 if ":" in target else socket.AF_INET
        name = f"{self.prefix}{source}" if node else f"{self.prefix}i{source}"
        server = int(target.split(".")[2]) if family == socket.AF_INET else int(target.split(":")[3][0]) - 1
        until = time.monotonic() + 2
        with self.socket_in(name, family) as client:
            client.settimeout(2 if family == socket.AF_INET else 15)  # IPv6 interfaces take a moment
            while True:
                try:
                    client.connect((target, PORT))
                    break
                except TimeoutError:
                    return ""
                except OSError:  # no route, or the interface is not up yet
                    if time.monotonic() > until:
                        return ""
                    time.sleep(0.05)
            listening = self.servers[2 * server + (family == socket.AF_INET6)]
            accepted, address = listening.accept()
            accepted.close()
            return str(address[0])

    def devices(self, node: int) -> set[str]:
        text = subprocess.run(
            ["ip", "-n", f"{self.prefix}{node}", "-json", "link"], check=True, capture_output=True, text=True
        ).stdout
        return {each["ifname"] for each in json.loads(text)}

    def dropped(self, node: int, counter: str) -> int:
        """Return how many packets a rule of a node has dropped."""
        overlay = KernelOverlay(f"node-{node}")
        words = ["nft", "--json", "list", "counter", "inet", overlay.table, counter]
        done = self.threads[node].submit(subprocess.run, words, check=True, capture_output=True, text=True).result()
        (found,) = [each["counter"] for each in json.loads(done.stdout)["nftables"] if "counter" in each]
        return int(found["packets"])

    @pytest.mark.usefixtures("attached")
    async def test_attack_vxlan_packets_of_a_machine_that_is_no_node_of_the_network_are_dropped(self) -> None:
        inner = bytes.fromhex((device_mac(1, 0) + device_mac(1, 1)).replace(":", "")) + b"\x08\x00" + bytes(46)
        packet = struct.pack(">II", 0x08000000, (FIRST_IDENTIFIER + 1) << 8) + inner
        ip(f"-n {self.prefix}1 address add 192.168.77.66/24 dev eth0")
        for source, dropped in (("192.168.77.2", 0), ("192.168.77.66", 1)):
            with self.socket_in(f"{self.prefix}1", kind=socket.SOCK_DGRAM) as sender:
                sender.bind((source, 0))
                sender.sendto(packet, ("192.168.77.1", 4789))
            assert self.reach(0, "10.92.1.5"), "packets of the network pass"
            assert self.dropped(0, "foreign_nodes") == dropped

    @pytest.mark.usefixtures("attached")
    async def test_attack_an_instance_cannot_send_from_an_address_of_another_node(self) -> None:
        ip(f"-n {self.prefix}i0 address add 10.92.1.77/32 dev eth0")
        before = self.dropped(0, "spoofed")
        with self.socket_in(f"{self.prefix}i0", kind=socket.SOCK_DGRAM) as sender:
            sender.bind(("10.92.1.77", 0))
            sender.sendto(b"hello", ("10.92.2.5", 9))
        assert self.reach(0, "10.92.2.5") == "10.92.0.5"
        assert self.dropped(0, "spoofed") == before + 1

    @pytest.mark.usefixtures("attached")
    async def test_attack_packets_from_outside_with_an_address_of_the_network_are_dropped(self) -> None:
        ip(
            f"-n {self.prefix}2 address add 10.92.1.88/32 dev eth0",
            f"-n {self.prefix}2 route add 10.92.0.5/32 via 192.168.77.1",
        )
        before = self.dropped(0, "spoofed")
        with self.socket_in(f"{self.prefix}2", kind=socket.SOCK_DGRAM) as sender:
            sender.bind(("10.92.1.88", 0))
            sender.sendto(b"hello", ("10.92.0.5", 9))
        assert self.reach(0, "10.92.1.5") == "10.92.0.5"
        assert self.dropped(0, "spoofed") == before + 1

    async def test_nodes_on_one_link_reach_each_other_without_encapsulation(self) -> None:
        for node in (0, 1):
            whole = self.part(node, (0, 1))
            given = {each: getattr(whole, each) for each in whole.__slots__}
            peers = tuple(each._replace(slice6="") for each in whole.peers)
            part = NetworkPart(**given | {"backend": "routed", "range6": "", "slice6": "", "peers": peers})
            bridge = await self.bridge(node, part)
            assert bridge.mtu == 1500
            self.attach(node, bridge, whole)
        assert self.reach(0, "10.92.1.5") == "10.92.0.5"
        assert not any(each.startswith("mdx") for each in self.devices(0))
