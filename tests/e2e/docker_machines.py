"""Machines with a dockerd, an agent and a network of their own, beside a server on this machine."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from scripts.components import environment, find
from tests.components.docker import Docker
from tests.e2e.cluster import Cluster
from tests.faults.network import Machine, new_namespace

_BYTES = 65_536


@dataclass(frozen=True)
class DockerMachine:
    name: str
    address: str
    docker: Docker

    def fetch(self, address: str, port: int) -> str:
        """The page at `/` as this machine gets it; empty while nothing answers."""
        return self.docker.fetch(address, port)


@contextmanager
def docker_machines(names: tuple[str, ...], new_docker: Callable[[], Docker]) -> Iterator[list[DockerMachine]]:
    """Machines on one bridge, which is in a network namespace of its own."""
    hub = Machine("hub", namespace=new_namespace())
    try:
        hub.ip("link add hub type bridge", "link set hub up", "link set lo up")
        made = []
        for number, name in enumerate(names, start=1):
            machine = DockerMachine(name, f"10.98.7.{number}", new_docker())
            peer = f"/proc/{os.getpid()}/fd/{hub.descriptor}"
            for line in (
                f"link add eth0 type veth peer name to-{name} netns {peer}",
                f"addr add {machine.address}/24 dev eth0",
                "link set eth0 up",
            ):
                words = [str(find("iproute2")), *line.split()]
                machine.docker.enclosure.run(words, environ=environment("iproute2"))
            hub.ip(f"link set to-{name} master hub", f"link set to-{name} up")
            made.append(machine)
        yield made
    finally:
        hub.close()


@contextmanager
def agents(cluster: Cluster, machines: list[DockerMachine]) -> Iterator[None]:
    """Agents on the machines that balance services with nftables, and reach the server on their own loopback."""
    with ExitStack() as lines:
        for each in machines:
            port = lines.enter_context(_forwarded(each.docker, int(cluster.urls[0].rpartition(":")[2])))
            cluster.start_agent(
                each.name,
                engines=("docker",),
                environ={
                    "DOCKER_HOST": f"unix://{each.docker.socket}",
                    "MANDOR_ADDRESS": each.address,
                    "MANDOR_BALANCER": "nftables",
                },
                inside=each.docker.enclosure,
                server=f"http://127.0.0.1:{port}",
            )
        cluster.wait_nodes(*(each.name for each in machines))
        yield


@contextmanager
def _forwarded(docker: Docker, port: int) -> Iterator[int]:
    """A port on the loopback of a machine that leads to a port on the loopback of this one."""
    listener = docker.enclosure.listen("127.0.0.1")
    pairs: list[tuple[socket.socket, socket.socket]] = []
    threads: list[threading.Thread] = []

    def start(target: Callable[..., None], *arguments: socket.socket) -> None:
        threads.append(threading.Thread(target=target, args=arguments))
        threads[-1].start()

    def accept() -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", port))
                pairs.append((near, far))
                start(_copy, near, far)
                start(_copy, far, near)

    start(accept)
    try:
        found: int = listener.getsockname()[1]
        yield found
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        threads[0].join()
        for each in (one for pair in pairs for one in pair):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for each in (listener, *(one for pair in pairs for one in pair)):
            each.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(_BYTES):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
