"""Asks a server for machines over many cheap connections, and looks afterwards at what its store holds."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import psutil

from mandor.model.instance import Instance
from mandor.model.node import Node
from mandor.model.vm_request import VmRequest
from mandor.store.open import open_store

READY_SECONDS = 30.0
POLL_SECONDS = 0.5
CPUS, MEMORIES = (1, 2, 4, 8), (2, 4, 8)
"""Cores, and GiB for each of them."""


@dataclass(frozen=True)
class Target:
    process: psutil.Popen
    port: int

    def cpu_seconds(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)


@contextmanager
def target(folder: Path, port: int, **environ: str) -> Iterator[Target]:
    """A whole server in a process of its own, as `make api-up` starts it, with its state in SQLite."""
    command = [sys.executable, "-m", "mandor.roots.server", "--dev", "--data", str(folder / "data")]
    command += ["--listen", f"127.0.0.1:{port}"]
    with (folder / "server.log").open("wb") as log:
        process = psutil.Popen(command, env=os.environ | environ, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            yield Target(process, port)
        finally:
            process.terminate()
            process.wait(60)


def write_machines(path: Path, count: int) -> None:
    machines = [
        {"name": f"bm-{number:04}", "ip": f"10.0.{number // 250}.{number % 250 + 1}", "cpu": 64, "memory": 256 * 1024}
        for number in range(count)
    ]
    path.write_text(json.dumps([each | {"max_vms": 40} for each in machines]))


@dataclass
class Load:
    """Send requests over several connections; each connection sends the next one after its answer."""

    requests: list[bytes]
    accepted: list[str] = field(default_factory=list)
    refused: Counter[int] = field(default_factory=Counter)
    retries: int = 0

    @classmethod
    def of(cls, count: int, port: int, seed: int) -> Load:
        rng = random.Random(seed)
        return cls([_request(port, rng) for _ in range(count)])

    async def send(self, port: int, connections: int) -> float:
        """Wait for all answers and return the seconds that took."""
        loop = asyncio.get_running_loop()
        askers = [Asker(self, loop.create_future()) for _ in range(connections)]
        for each in askers:
            await loop.create_connection(lambda each=each: each, "127.0.0.1", port)  # type: ignore[misc]
        began = time.monotonic()
        for each in askers:
            each.ask()
        await asyncio.gather(*(each.done for each in askers))
        took = time.monotonic() - began
        for each in askers:
            each.close()
        return took


def _request(port: int, rng: random.Random) -> bytes:
    cpu = rng.choice(CPUS)
    wanted = {"requested_cpu": cpu, "requested_memory": cpu * rng.choice(MEMORIES) * 1024, "requested_pool": "default"}
    body = json.dumps(wanted | {"dedicated": False}).encode()
    head = f"POST /schedule HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


class Asker(asyncio.Protocol):
    """One connection."""

    def __init__(self, load: Load, done: asyncio.Future[None]) -> None:
        self._load, self.done = load, done
        self._transport: asyncio.Transport | None = None
        self._request = self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def ask(self) -> None:
        if not self._load.requests:
            self.done.set_result(None)
            return
        self._request = self._load.requests.pop()
        self._send()

    def _send(self) -> None:
        assert self._transport is not None
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, split, body = self._got.partition(b"\r\n\r\n")
        if not split:
            return
        size = head.lower().index(b"content-length: ") + 16
        if len(body) < int(head[size:].split(b"\r\n", 1)[0]):
            return
        self._got = b""
        status = int(head[9:12])
        if status == 200:
            self._load.accepted.append(body[12:48].decode())
        elif status in {429, 503}:  # it is told when to come again
            self._load.refused[status] += 1
            wait = head.lower().index(b"retry-after: ") + 13
            asyncio.get_running_loop().call_later(float(head[wait:].split(b"\r\n", 1)[0]), self._send)
            return
        else:
            self._load.refused[status] += 1
        self.ask()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(f"the server went away: {error}"))

    def close(self) -> None:
        assert self._transport is not None
        self._transport.abort()


async def fetch(port: int, path: str) -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return json.loads(answer.partition(b"\r\n\r\n")[2])


async def until_ready(port: int, machines: int) -> None:
    """Return whether the server answers and lists the last machine."""
    async with asyncio.timeout(READY_SECONDS):
        while True:
            try:
                if "spec" in await fetch(port, f"/v1/nodes/bm-{machines - 1:04}"):
                    return
            except (OSError, ValueError):
                pass
            await asyncio.sleep(POLL_SECONDS)


async def until_idle(port: int) -> None:
    """No task waits or is in hand."""
    for state in ("Queued", "Processing", "Queued"):
        while await fetch(port, f"/tasks?state={state}&limit=1"):
            await asyncio.sleep(POLL_SECONDS)


@dataclass
class Held:
    """Return the objects in the store after the server has ended."""

    states: Counter[str] = field(default_factory=Counter)
    missing: int = 0
    """Accepted, and not there."""
    twice: int = 0
    """Tasks that were placed more than once."""
    overcommitted: int = 0
    """Machines that hold more than they have."""
    used: int = 0
    """Machines with anything on them."""


async def held(path: Path, accepted: list[str]) -> Held:
    found = Held()
    async with await open_store(f"sqlite:{path}") as store:
        tasks = {
            each.meta.name: each for each in (await store.list(VmRequest.kind)).items if isinstance(each, VmRequest)
        }
        found.states.update(each.status.state for each in tasks.values())
        found.missing = len(set(accepted) - set(tasks))
        found.twice = sum(_placings(each) > 1 for each in tasks.values())
        cpu, memory, vms = Counter[str](), Counter[str](), Counter[str]()
        for each in (await store.list(Instance.kind)).items:
            if isinstance(each, Instance) and each.spec.claim is not None and each.spec.node:
                cpu[each.spec.node] += each.spec.claim.cpu_milli
                memory[each.spec.node] += each.spec.claim.memory_bytes
                vms[each.spec.node] += 1
        for node in (await store.list(Node.kind)).items:
            if isinstance(node, Node):
                name, most = node.meta.name, node.status.capacity
                over = cpu[name] > most.cpu_milli or memory[name] > most.memory_bytes or vms[name] > 40
                found.overcommitted += over
        found.used = len(vms)
    return found


def _placings(task: VmRequest) -> int:
    return sum(step.state == "Placed" for step in task.status.history)
