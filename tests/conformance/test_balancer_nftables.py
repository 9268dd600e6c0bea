"""The nftables balancer keeps the promises of every balancer, in namespaces: a client, a node, an endpoint."""

import asyncio
import ctypes
import os
import socket
import subprocess
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mandor.network.base import Balancer
from mandor.network.nftables import NftablesBalancer
from mandor.testing.balancer import BalancerSuite

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.real("nftables", "iproute2"),
]


def enter(path: str) -> None:
    """Move the calling thread into a network namespace."""
    handle = os.open(path, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(handle, 0x40000000):
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(handle)


def socket_in(name: str, kind: socket.SocketKind) -> socket.socket:
    """Return a socket of a namespace; the thread goes back to its own."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        enter(f"/run/netns/{name}")
        try:
            return socket.socket(socket.AF_INET, kind)
        finally:
            enter(f"/proc/self/fd/{home}")
    finally:
        os.close(home)


class TestNftablesBalancer(BalancerSuite):
    virtual, endpoint = "10.200.0.7", "10.201.2.2"

    @pytest.fixture(autouse=True)
    async def machines(self, tmp_path: Path) -> AsyncIterator[None]:
        self.prefix = f"mb{os.getpid()}"
        client, node, far = (f"{self.prefix}{each}" for each in "cne")
        for each in (client, node, far):
            subprocess.run(["ip", "netns", "add", each], check=True)
        for number, other in ((1, client), (2, far)):
            lines = (
                f"-n {node} link add v{number} type veth peer name eth0 netns {other}",
                f"-n {node} address add 10.201.{number}.1/24 dev v{number}",
                f"-n {node} link set v{number} up",
                f"-n {other} address add 10.201.{number}.2/24 dev eth0",
                f"-n {other} link set eth0 up",
                f"-n {other} route add default via 10.201.{number}.1",
            )
            for line in lines:
                subprocess.run(["ip", *line.split()], check=True)
        subprocess.run(["ip", "netns", "exec", node, "sysctl", "-qw", "net.ipv4.ip_forward=1"], check=True)
        subprocess.run(["ip", "-n", node, "link", "set", "lo", "up"], check=True)
        threads = ThreadPoolExecutor(4, initializer=enter, initargs=(f"/run/netns/{node}",))
        asyncio.get_running_loop().set_default_executor(threads)
        yield
        threads.shutdown()
        for each in (client, node, far):
            subprocess.run(["ip", "netns", "delete", each], check=True)

    def make(self) -> Balancer:
        return NftablesBalancer("node-1", ["10.200.0.0/16"])

    def client_socket(self, kind: socket.SocketKind) -> socket.socket:
        return socket_in(f"{self.prefix}c", kind)

    def endpoint_socket(self, kind: socket.SocketKind) -> socket.socket:
        return socket_in(f"{self.prefix}e", kind)
