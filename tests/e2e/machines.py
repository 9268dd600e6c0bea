"""A cluster with a network of its own per machine, and a capture of the packets that leave a machine."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.components.etcd import Etcd, Member, Tls
from tests.e2e.cluster import Program, end_units, eventually
from tests.faults.network import Machine, Network

ROOT = Path(__file__).resolve().parents[2]
ALL_PROTOCOLS = 3
OUTGOING = 4
IPV4, IPV6, TCP, UDP = 0x0800, 0x86DD, 6, 17
SYN, ACK = 0x02, 0x10


class Capture:
    """Connections that a machine opens to others, and datagrams that it sends, read from its network interface."""

    def __init__(self, machine: Machine) -> None:
        self._lock = threading.Lock()
        self._opened: set[tuple[str, int]] = set()
        with machine.inside():
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ALL_PROTOCOLS))
            self._socket.bind(("eth0", ALL_PROTOCOLS))
        self._socket.settimeout(0.2)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    @property
    def opened(self) -> set[tuple[str, int]]:
        """Addresses and ports to which the machine opened a TCP connection or sent a datagram."""
        with self._lock:
            return set(self._opened)

    def _read(self) -> None:
        while not self._ended.is_set():
            try:
                packet, (_, protocol, kind, *_) = self._socket.recvfrom(65_535)
            except TimeoutError:
                continue
            target = opened_by(packet, protocol) if kind == OUTGOING else None
            if target is not None:
                with self._lock:
                    self._opened.add(target)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._socket.close()


def opened_by(packet: bytes, protocol: int) -> tuple[str, int] | None:
    """Return the destination of a packet that opens a TCP connection or is a datagram; None for other packets."""
    if protocol == IPV4:
        family, target, inner, start = socket.AF_INET, packet[16:20], packet[9], (packet[0] & 15) * 4
    elif protocol == IPV6:
        family, target, inner, start = socket.AF_INET6, packet[24:40], packet[6], 40
    else:
        return None
    address = socket.inet_ntop(family, target)
    if inner == TCP and packet[start + 13] & (SYN | ACK) == SYN:
        return address, struct.unpack_from("!H", packet, start + 2)[0]
    if inner == UDP:
        return address, struct.unpack_from("!H", packet, start + 2)[0]
    return None


class Placed(Program):
    """A program on a machine."""

    machine: Machine

    def start(self) -> None:
        with self.machine.inside():
            super().start()


class Machines:
    """One server on an etcd, agents with the process engine, and a machine for clients: each with its own network."""

    def __init__(self, folder: Path, etcd: Path, agents: tuple[str, ...] = ("n1", "n2")) -> None:
        self.folder = folder
        self._stack = contextlib.ExitStack()
        self.network = Network(["server", "store", "people", *agents], real=True)
        self._stack.callback(self.network.close)
        self.machines = self.network.machines
        self.tls = Tls.make(folder / "tls", self.machines["server"].address)
        store = self.machines["store"]
        (folder / "etcd").mkdir()
        member = Member("store", folder / "etcd", 2379, 2380, store.address, store.inside)
        self.etcd = Etcd(etcd, folder / "etcd", [member], inside=store.inside)
        self.url = f"https://{self.machines['server'].address}:8080"
        self.server = self._make(
            "server",
            ["mandor.roots.server", "--data", str(folder / "server")],
            MANDOR_LISTEN=self.url.removeprefix("https://"),
            MANDOR_STORE=f"etcd://{store.address}:2379/planes/",
            MANDOR_TLS_CERT=str(self.tls.server_cert_file),
            MANDOR_TLS_KEY=str(self.tls.server_key_file),
            MANDOR_SUSPECT_AFTER="10s",
        )
        self.agents = {
            name: self._make(
                name,
                ["mandor.roots.agent", "--data", str(folder / name), "--name", name, "--engine", "process"],
                MANDOR_SERVER=self.url,
                MANDOR_SERVER_CA=str(self.tls.ca_file),
                MANDOR_JOIN_TOKEN_FILE=str(folder / "server" / "join.token"),
                MANDOR_HEARTBEAT="500ms",
            )
            for name in agents
        }

    def _make(self, name: str, words: list[str], **environ: str) -> Placed:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        program = Placed(
            name, [sys.executable, "-m", *words], self.folder / f"{name}.log", {"PYTHONPATH": path, **environ}
        )
        program.machine = self.machines[name]
        return program

    def __enter__(self) -> Machines:
        try:
            self._stack.callback(self.etcd.stop)
            self.etcd.start(0)
            self.capture = Capture(self.machines["server"])
            self._stack.callback(self.capture.close)
            self._stack.callback(self.server.kill)
            self.server.start()
            eventually("the server is ready", lambda: self.call("GET", "/readyz")[0] == 200, patience=120)
            for name, agent in self.agents.items():
                self._stack.callback(end_units, self.folder / name)
                self._stack.callback(agent.kill)
                agent.start()
            eventually("all nodes are ready", self._all_ready, patience=120)
        except BaseException:
            self._print_logs()
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._print_logs()
        self._stack.close()

    def _print_logs(self) -> None:
        for program in (self.server, *self.agents.values()):
            print(f"== end of the log of {program.name}:\n{program.text()[-4000:]}")

    def _all_ready(self) -> bool:
        nodes = self.call("GET", "/v1/nodes")[1]["items"]
        return {each["meta"]["name"] for each in nodes if each["status"]["phase"] == "Ready"} == self.agents.keys()

    def address(self, name: str) -> str:
        return self.machines[name].address

    def server_started_processes(self) -> bool:
        """Return whether the server has, or ever had, a child process, as the kernel counts them."""
        assert self.server.process is not None
        stat = Path(f"/proc/{self.server.process.pid}/stat").read_text()
        faults_of_ended_children = int(stat.rpartition(")")[2].split()[8])
        return faults_of_ended_children > 0 or bool(psutil.Process(self.server.process.pid).children())

    # What clients do.

    @property
    def token(self) -> str:
        return (self.folder / "server" / "admin.token").read_text().strip()

    def call(self, method: str, path: str, body: str | None = None) -> tuple[int, Any]:
        """Call the API from the machine of the clients."""
        trust = ssl.create_default_context(cafile=str(self.tls.ca_file))
        connection = http.client.HTTPSConnection(self.url.removeprefix("https://"), timeout=30, context=trust)
        with self.machines["people"].inside():
            connection.connect()
        with contextlib.closing(connection):
            headers = {"Content-Type": "application/yaml"}
            if (self.folder / "server" / "admin.token").exists():
                headers["Authorization"] = f"Bearer {self.token}"
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            raw = answer.read()
            return answer.status, json.loads(raw) if raw[:1] in {b"{", b"["} else raw.decode()

    def apply(self, manifest: str) -> None:
        status, answer = self.call("POST", "/v1/apply", manifest)
        assert status == 200, answer

    def instances(self, workload: str, phase: str | None = None) -> list[Any]:
        found = self.call("GET", "/v1/instances")[1]["items"]
        return [
            each for each in found if each["spec"]["workload"] == workload and phase in {None, each["status"]["phase"]}
        ]

    def mandor(self, *words: str) -> str:
        """Run a command on the machine of the clients; return what it prints."""
        environ = {"MANDOR_SERVER": self.url, "MANDOR_TOKEN": self.token, "MANDOR_CA": str(self.tls.ca_file)}
        with self.machines["people"].inside():
            done = subprocess.run(
                [sys.executable, "-m", "mandor.cli.main", *words],
                env={**os.environ, **environ},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextlib.contextmanager
    def traffic(self, source: str, target: str) -> Iterator[None]:
        """Send bytes from one machine to another until the block ends."""
        with self.machines[target].inside():
            server = socket.create_server((self.address(target), 0))
        with self.machines[source].inside():
            sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
        ended = threading.Event()

        def send() -> None:
            while not ended.wait(0.02):
                sender.sendall(bytes(1 << 18))

        def receive() -> None:
            while receiver.recv(1 << 18):
                pass

        threads = [threading.Thread(target=each) for each in (send, receive)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            threads[0].join()
            sender.close()
            threads[1].join()
            receiver.close()
            server.close()
