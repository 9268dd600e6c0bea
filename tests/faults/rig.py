"""A whole cluster of real processes, each on a machine of its own: three servers, three members of etcd, agents."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mandor.roots.guard import dismiss
from tests.components.etcd import Etcd, Member, Tls
from tests.e2e.cluster import Program, end_units, eventually
from tests.faults import lives, observer
from tests.faults.history import Final, Life, Stored
from tests.faults.network import Machine, Network
from tests.faults.program import set_clock

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "/faults/"
SERVERS, MEMBERS = 3, 3
AGENT_DISK, MEMBER_DISK = 24, 224
"""Mebibytes of the disks that can be full; etcd takes 64 at once for its log."""
CALL_SECONDS = 10.0


class NotReached(ConnectionError):
    """Nothing was sent."""


@dataclass
class Placed(Program):
    """A program of Mandor on a machine of the rig, with a clock that can be wrong."""

    machine: Machine = field(kw_only=True)
    clock: Path = field(kw_only=True)

    def start(self) -> None:
        with self.machine.inside():
            super().start()

    def pause(self) -> None:
        if self.process is not None and self.running:
            self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self.process is not None and self.running:
            self.process.send_signal(signal.SIGCONT)


class Rig:
    def __init__(
        self, folder: Path, etcd: Path, *, fakes: int = 8, processes: int = 4, lease: float = 3.0, real: bool = True
    ) -> None:
        self.folder = folder
        self.lease = lease
        self.fakes = [f"f{number}" for number in range(fakes)]
        self.processes = [f"p{number}" for number in range(processes)]
        self.members = [f"e{number}" for number in range(MEMBERS)]
        self.names = [f"s{number}" for number in range(SERVERS)]
        self.network = Network([*self.names, *self.members, "people", *self.fakes, *self.processes], real=real)
        self.disks: dict[str, Path] = {}
        """Small ones, by machine."""
        self._stack = contextlib.ExitStack()
        self._stack.callback(self.network.close)
        try:
            self._prepare(etcd)
        except BaseException:
            self._stack.close()
            raise

    def _prepare(self, binary: Path) -> None:
        addresses = [machine.address for machine in self.network.machines.values()]
        self.tls = Tls.make(self.folder / "tls", *addresses)
        self._trust = ssl.create_default_context(cafile=str(self.tls.ca_file))
        if os.geteuid() == 0:
            self._mount("e0", self.folder / "etcd" / "e0", MEMBER_DISK)
            self._mount("p0", self.home("p0"), AGENT_DISK)
        self.etcd = self._make_etcd(binary)
        self.servers = [self._make_server(name) for name in self.names]
        self.urls = [f"https://{each.command[-1]}" for each in self.servers]
        self.agents = {name: self._make_agent(name, "fake") for name in self.fakes}
        self.agents |= {name: self._make_agent(name, "process") for name in self.processes}
        self.seen = self.folder / "changes"
        self.observer = self._make("people", "tests.faults.observer", self.store, str(self.seen))
        self.roll = lives.Roll(self.folder / "roll")
        self._stack.callback(self.roll.lives)

    def _mount(self, name: str, folder: Path, mebibytes: int) -> None:
        folder.mkdir(parents=True)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=700", "tmpfs", folder], check=False
        )
        if done.returncode == 0:
            self.disks[name] = folder
            self._stack.callback(lambda: subprocess.run(["umount", "-l", folder], check=True))

    # Programs.

    @property
    def people(self) -> Machine:
        return self.network.machines["people"]

    @property
    def store(self) -> str:
        return f"etcd://{','.join(self.etcd.endpoints)}{PREFIX}"

    def home(self, name: str) -> Path:
        return self.folder / name

    def _make_etcd(self, binary: Path) -> Etcd:
        folder = self.folder / "etcd"
        folder.mkdir(exist_ok=True)
        found = []
        for name in self.members:
            machine = self.network.machines[name]
            found.append(Member(name, folder, machine.port(2379), machine.port(2380), machine.address, machine.inside))
        etcd = Etcd(binary, folder, found, inside=self.people.inside)
        self._stack.callback(etcd.stop)
        return etcd

    def _make(self, name: str, module: str, *arguments: str, **environ: str) -> Placed:
        logs = self.folder / "logs"
        logs.mkdir(exist_ok=True)
        clock = logs / f"{name}.clock"
        set_clock(clock, 0.0)
        command = [sys.executable, "-m", "tests.faults.program", str(clock), module, *arguments]
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        program = Placed(
            name,
            command,
            logs / f"{name}.log",
            {"PYTHONPATH": path, **environ},
            machine=self.network.machines[name],
            clock=clock,
        )
        self._stack.callback(program.kill)
        return program

    def _make_server(self, name: str) -> Placed:
        machine = self.network.machines[name]
        key = self.home(name) / "secrets.key"
        key.parent.mkdir(parents=True, exist_ok=True)
        key.write_text("5e" * 32)
        key.chmod(0o600)
        return self._make(
            *(name, "mandor.roots.server", "--data", str(self.home(name))),
            *("--listen", f"{machine.address}:{machine.port(8080)}"),
            MANDOR_STORE=self.store,
            MANDOR_TLS_CERT=str(self.tls.server_cert_file),
            MANDOR_TLS_KEY=str(self.tls.server_key_file),
            MANDOR_LEASE=f"{self.lease}s",
            MANDOR_SUSPECT_AFTER="3s",
            MANDOR_LOST_AFTER="6s",
        )

    def _make_agent(self, name: str, engine: str) -> Placed:
        if engine == "fake":
            lives.keep_diary(self.home(name) / "engines" / "fake")
        turn = int(name[1:]) % SERVERS
        return self._make(
            *(name, "mandor.roots.agent", "--data", str(self.home(name)), "--name", name, "--engine", engine),
            MANDOR_SERVER=",".join([*self.urls[turn:], *self.urls[:turn]]),
            MANDOR_SERVER_CA=str(self.tls.ca_file),
            MANDOR_JOIN_TOKEN_FILE=str(self.home("s0") / "join.token"),
            MANDOR_HEARTBEAT="1s",
            MANDOR_PRESSURE="disk=off,inodes=off,memory=off",
        )

    def __enter__(self) -> Rig:
        try:
            for index in range(MEMBERS):
                self.etcd.start(index, wait=False)
            self.etcd.wait_ready()
            self.observer.start()
            eventually("the observer looks", self.seen.exists)
            # The first one makes the cluster; the others find it.
            for number, server in enumerate(self.servers):
                server.start()
                if number == 0:
                    self.wait_ready(0)
            for agent in self.agents.values():
                agent.start()
            for number in range(SERVERS):
                self.wait_ready(number)
            eventually("all nodes are ready", self.all_ready, patience=120)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.tell()
        for program in [*self.agents.values(), *self.servers]:
            program.kill()
        for name in self.fakes:
            dismiss(self.home(name))
        for name in self.processes:
            end_units(self.home(name))
        self._stack.close()

    def tell(self) -> None:
        for program in [*self.servers, *self.agents.values(), self.observer]:
            print(f"== the log of {program.name} ends:\n{program.text()[-6000:]}")

    # The API.

    def token(self, server: int) -> str:
        return (self.home(f"s{server}") / "admin.token").read_text().strip()

    def call(
        self, server: int, method: str, path: str, body: Any = None, *, content: str = "application/json"
    ) -> tuple[int, Any]:
        """Call the API from the clients' machine; safe in any thread."""
        host = self.urls[server].removeprefix("https://")
        headers = {"Authorization": f"Bearer {self.token(server)}", "Content-Type": content}
        with self.people.inside():
            connection = http.client.HTTPSConnection(host, timeout=CALL_SECONDS, context=self._trust)
            try:
                connection.connect()
            except OSError as error:
                connection.close()
                raise NotReached(str(error)) from error
        with contextlib.closing(connection):
            data = body if isinstance(body, str | None) else json.dumps(body)
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            raw = answer.read()
            return answer.status, json.loads(raw) if raw[:1] in {b"{", b"["} else raw

    def items(self, plural: str, server: int = 0) -> tuple[list[Any], int]:
        status, answer = self.call(server, "GET", f"/v1/{plural}")
        if status != 200:
            raise ConnectionError(f"{status}: {answer}")
        return answer["items"], answer["revision"]

    def wait_ready(self, number: int) -> None:
        server = self.servers[number]

        def ready() -> bool:
            assert server.running, f"{server.name} ended:\n{server.text()[-3000:]}"
            return self.call(number, "GET", "/readyz")[0] == 200

        eventually(f"{server.name} is ready", ready, patience=120)

    def all_ready(self) -> bool:
        nodes, _ = self.items("nodes")
        return {each["meta"]["name"] for each in nodes if each["status"]["phase"] == "Ready"} == self.agents.keys()

    # What is so.

    def changes(self) -> list[Stored]:
        return observer.read(self.seen)

    def leaders(self) -> dict[str, int]:
        """Return the number of the leading server of each election, without released leases."""
        found: dict[str, int] = {}
        for each in self.changes():
            if each.kind == "lease" and each.name.startswith("leader-") and not each.gone:
                election = each.name.removeprefix("leader-")
                found.pop(election, None)
                if each.facts["holder"]:
                    found[election] = self.urls.index(each.facts["address"])
        return found

    def lives(self) -> list[Life]:
        found = self.roll.lives()
        for name in self.fakes:
            found += lives.read_diary(name, self.home(name) / "engines" / "fake")
        return found

    def versions(self) -> tuple[dict[str, int], int]:
        """Return all keys of etcd, read without Mandor's code, and the revision."""
        answer = json.loads(self.etcd.etcdctl("get", "--prefix", f"{PREFIX}objects/", "--keys-only", "-w", "json"))
        found = {}
        for each in answer.get("kvs", []):
            key = base64.b64decode(each["key"]).decode().removeprefix(f"{PREFIX}objects/")
            kind, namespace, name = key.split("/")
            found[f"{kind}/{name if namespace in {'', 'default'} else f'{namespace}/{name}'}"] = each["mod_revision"]
        return found, answer["header"]["revision"]

    def final(self) -> Final:
        """End the run: collect the state and kill everything except units and etcd."""
        listings = []
        for number in range(SERVERS):
            found, _ = self.items("workloads", number)
            listings.append({each["meta"]["name"]: each["spec"]["groups"]["main"]["replicas"] for each in found})
        instances = [summary(each) for each in self.items("instances")[0]]
        for program in [*self.agents.values(), *self.servers]:
            program.kill()
        versions, revision = self.versions()
        newest = max(versions.values())
        eventually(
            f"the observer saw revision {newest} of {revision}",
            lambda: any(each.revision >= newest for each in self.changes()[-50:]),
        )
        return Final(listings, versions, instances)


def summary(instance: Any) -> dict[str, str]:
    meta, spec = instance["meta"], instance["spec"]
    return {
        "name": meta["name"],
        "uid": meta["uid"],
        "workload": spec["workload"],
        "node": spec.get("node", ""),
        "phase": instance["status"]["phase"],
    }
