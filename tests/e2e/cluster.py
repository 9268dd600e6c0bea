"""A real cluster for a test: a server and agents as processes of their own, killed and started at will."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlencode

from mandor.engines.registry import known_engines
from mandor.errors import EngineDown, NotFound
from mandor.roots.agent import make_engines
from mandor.roots.guard import dismiss
from tests.components.enclosure import Enclosure
from tests.components.ports import free_port

PATIENCE = 60.0


def eventually(what: str, true: Callable[[], Any], *, patience: float = PATIENCE) -> Any:
    """Ask again and again until the answer is true; the last answer, or error, is in the failure."""
    deadline = time.monotonic() + patience
    last: Any = None
    while time.monotonic() < deadline:
        try:
            last = true()
        except (OSError, http.client.HTTPException) as error:
            last = error
        else:
            if last:
                return last
        time.sleep(0.1)
    raise AssertionError(f"not within {patience:.0f} s: {what}; last seen: {last!r}")


@dataclass
class Program:
    """One process of the cluster, with its log."""

    name: str
    command: list[str]
    log: Path
    env: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert not self.running, f"{self.name} runs already"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **self.env}
            )

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def end(self, patience: float = 30.0) -> None:
        """Ask it to end; whoever does not is killed."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


NODE_SETTINGS = {"MANDOR_HEARTBEAT": "500ms", "MANDOR_BALANCER": "off"}
"""Settings of agents, unless a test changes them. Clusters of several tests share one network, so their virtual
addresses could collide."""


def end_units(home: Path, environ: Mapping[str, str] | None = None) -> None:
    """What the engines of an agent's folder still run ends at once; the agent itself is over."""
    dismiss(home)
    engines = tuple(sorted(path.name for path in (home / "engines").glob("*"))) or ("process",)
    if not set(engines) <= set(known_engines()):  # One of a package that only the agent's own path leads to.
        script = (
            "import asyncio, sys; from pathlib import Path; from mandor.roots.agent import make_engines; "
            "from mandor.roots.dev import stop_units; "
            "asyncio.run(stop_units(make_engines(tuple(sys.argv[2:]), Path(sys.argv[1]))))"
        )
        command = [sys.executable, "-c", script, str(home), *engines]
        subprocess.run(command, check=True, timeout=60, env={**os.environ, **(environ or {})})
        return
    # In a thread, because the test may be in a loop of its own.
    with patch.dict(os.environ, environ or {}), ThreadPoolExecutor(1) as aside:
        aside.submit(asyncio.run, remove_units(engines, home)).result()


async def remove_units(engines: tuple[str, ...], home: Path) -> None:
    for engine in make_engines(engines, home).values():
        # Of an engine that is not on this machine, or not running, nothing can be ended.
        async with asyncio.timeout(60), engine:
            with suppress(NotFound, EngineDown):
                await asyncio.gather(*(engine.remove(one.unit) for one in await engine.list()))


class Cluster:
    """`with Cluster(directory) as cluster`: one server (or several on one etcd) and any number of agents."""

    def __init__(self, directory: Path, *, store: str = "", settings: dict[str, str] | None = None) -> None:
        self.directory = directory
        self.store = store
        self.settings = {"MANDOR_SUSPECT_AFTER": "2s", "MANDOR_LOST_AFTER": "5s", "MANDOR_LEASE": "3s"} | (
            settings or {}
        )
        self.servers: list[Program] = []
        self.urls: list[str] = []
        self.agents: dict[str, Program] = {}

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for program in [*self.servers, *self.agents.values()]:
                print(f"== the log of {program.name} ends:\n{program.text()[-4000:]}")
        for name in self.agents:
            self.stop_work(name)
        for program in [*self.agents.values(), *self.servers]:
            program.kill()

    # Programs.

    def start_server(self, *, share_key: bool = True, **environ: str) -> Program:
        """`share_key`: it gets the first server's key for secrets, as all servers of a cluster do."""
        number = len(self.servers)
        home = self.directory / f"server{number}"
        home.mkdir(parents=True)
        if number and share_key:
            shutil.copy(self.directory / "server0" / "secrets.key", home)
        port = free_port()
        command = [sys.executable, "-m", "mandor.roots.server", "--dev", "--data", str(home)]
        env = self.settings | ({"MANDOR_STORE": self.store} if self.store else {}) | environ
        server = Program(f"server{number}", [*command, "--listen", f"127.0.0.1:{port}"], home / "log", env)
        self.servers.append(server)
        self.urls.append(f"http://127.0.0.1:{port}")
        server.start()
        self.wait_ready(number)
        return server

    def wait_ready(self, number: int = 0) -> None:
        server = self.servers[number]

        def ready() -> bool:
            assert server.running, f"{server.name} ended:\n{server.text()[-3000:]}"
            return self.call("GET", "/readyz", server=number)[0] == 200

        eventually(f"{server.name} is ready", ready)

    def start_agent(
        self,
        name: str,
        *,
        engines: tuple[str, ...] = ("process",),
        options: tuple[str, ...] = (),
        environ: dict[str, str] | None = None,
        inside: Enclosure | None = None,
        server: str = "",
    ) -> Program:
        """`inside`: namespaces in which it runs. `server`: the address of the API there."""
        home = self.home(name)
        home.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "mandor.roots.agent", "--data", str(home), "--name", name]
        command += [
            "--server",
            server or ",".join(self.urls),
            "--join-token-file",
            str(self.directory / "server0" / "join.token"),
        ]
        for engine in engines:
            command += ["--engine", engine]
        command += options
        command = inside.command(command) if inside is not None else command
        agent = Program(f"agent {name}", command, home / "log", NODE_SETTINGS | (environ or {}))
        self.agents[name] = agent
        agent.start()
        return agent

    def home(self, name: str) -> Path:
        return self.directory / "nodes" / name

    def wait_nodes(self, *names: str, phase: str = "Ready") -> None:
        def so() -> bool:
            return {node["meta"]["name"] for node in self.items("nodes") if node["status"]["phase"] == phase} >= set(
                names
            )

        eventually(f"{names} are {phase}", so)

    def stop_work(self, name: str) -> None:
        """End whatever the engines of a node still run."""
        agent = self.agents[name]
        agent.kill()
        end_units(self.home(name), agent.env)

    # The API.

    def call(
        self, method: str, path: str, body: Any = None, *, server: int = 0, content: str = "application/json"
    ) -> tuple[int, Any]:
        host = self.urls[server].removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=30)
        try:
            data = body if isinstance(body, bytes | None) else (body if isinstance(body, str) else json.dumps(body))
            connection.request(method, path, data, {"Content-Type": content} if body is not None else {})
            answer = connection.getresponse()
            raw = answer.read()
            kind = answer.headers.get("Content-Type", "")
            return answer.status, json.loads(raw) if "json" in kind and raw else raw
        finally:
            connection.close()

    def apply(self, manifest: str, *, server: int = 0) -> Any:
        status, answer = self.call("POST", "/v1/apply", manifest, server=server, content="application/yaml")
        assert status == 200, answer
        return answer

    def mandor(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The command, as a person types it."""
        command = [sys.executable, "-m", "mandor.cli.main", "--server", self.urls[0], *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def items(self, plural: str, *, server: int = 0, **query: str) -> list[Any]:
        """Return the objects of all pages."""
        found: list[Any] = []
        after = ""
        while True:
            page = {**query, "after": after} if after else query
            status, answer = self.call("GET", f"/v1/{plural}?{urlencode(page)}", server=server)
            assert status == 200, answer
            found += answer["items"]
            after = answer.get("after", "")
            if not after:
                return found

    def instances(self, workload: str | None = None, *, phase: str | None = None) -> list[Any]:
        return [
            one
            for one in self.items("instances")
            if (workload is None or one["spec"]["workload"] == workload)
            and (phase is None or one["status"]["phase"] == phase)
        ]

    def wait_running(self, workload: str, count: int, *, patience: float = PATIENCE) -> list[Any]:
        def so() -> list[Any]:
            found = self.instances(workload)
            running = [one for one in found if one["status"]["phase"] == "Running"]
            return running if len(running) == count and len(found) == count else []

        found: list[Any] = eventually(f"{count} of {workload} run", so, patience=patience)
        return found

    # What really runs.

    def units(self, name: str) -> Iterator[Path]:
        yield from (self.home(name) / "engines" / "process" / "units").glob("*")
