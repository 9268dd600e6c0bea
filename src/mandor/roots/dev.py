"""`mandor dev`: a server and its agents on this machine, restarted when one of them dies."""

import asyncio
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from mandor.engines.base import Engine, UnitPhase
from mandor.errors import Conflict, EngineDown, Invalid, NotFound, Unavailable
from mandor.lib.egress import EVERYWHERE, LOOPBACK
from mandor.lib.lock import LockHeld, hold
from mandor.lib.loopback import is_loopback
from mandor.model.node import USUAL_PORTS, PortRange
from mandor.model.volume import may_be_allowed
from mandor.roots.settings import Settings, default_name, split_address
from mandor.roots.tracing import target_of

QUICK_DEATH_SECONDS = 5.0
PAUSE_MOST_SECONDS = 10.0
START_SECONDS = 60.0
NODES_SECONDS = 10.0
"""Seconds that the greeting waits for ready nodes."""
STOP_SECONDS = 15.0
NODES_MOST = 50

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Traces:
    """Receiver of spans and share of recorded traces; tasks get the receiver's address, too."""

    url: str = ""
    share: str = ""

    @property
    def options(self) -> list[str]:
        found = ["--otlp-traces", self.url] if self.url else []
        return [*found, "--trace-share", self.share] if self.share else found


NO_TRACES = Traces()


@dataclass(frozen=True, slots=True)
class Extras:
    """Settings of the server and the agents that `mandor dev` passes on."""

    record: str = ""
    """File for a recording of the cluster."""
    scheduler_config: str = ""
    plugins: str = ""
    """Folder of scheduler plugins."""
    host_paths: tuple[str, ...] = ()
    """Host paths that tasks may mount."""
    traces: Traces = NO_TRACES

    def check(self) -> None:
        """Raise `Invalid` for settings with which a program would not start."""
        target_of(Settings(otlp_traces=self.traces.url, trace_share=self.traces.share))
        if self.scheduler_config and not Path(self.scheduler_config).is_file():
            raise Invalid(f"there is no scheduler configuration {self.scheduler_config}", hint="name a YAML file")
        if self.plugins and not Path(self.plugins).is_dir():
            raise Invalid(f"there is no folder of plugins {self.plugins}", hint="name a folder with `.py` files")
        for path in self.host_paths:
            if not may_be_allowed(path):
                raise Invalid(f"{path} cannot be allowed as a host path", hint="write an absolute path without `..`")

    @property
    def of_server(self) -> list[str]:
        named = {"--record": self.record, "--scheduler-config": self.scheduler_config, "--plugins": self.plugins}
        paths = [word for option, path in named.items() if path for word in (option, str(Path(path).absolute()))]
        return [*paths, *self.traces.options]

    @property
    def of_agents(self) -> list[str]:
        paths = [word for path in self.host_paths for word in ("--allow-host-path", path)]
        return [*paths, *self.traces.options, *(("--otlp", self.traces.url) if self.traces.url else ())]


NO_EXTRAS = Extras()


@dataclass
class Child:
    """One program of the cluster, and the time when it may be restarted."""

    name: str
    command: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    not_before: float = 0.0
    pause: float = 0.0

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is handled by this program, which then ends its children in order
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - this program has no threads
            )
        self.started = time.monotonic()

    def keep_running(self, say: Say) -> None:
        """Restart the program if it died, with a pause that grows while it dies quickly."""
        now = time.monotonic()
        if self.process is not None:
            code = self.process.poll()
            if code is None:
                return
            quick = now - self.started < QUICK_DEATH_SECONDS
            self.pause = min(max(self.pause * 2, 0.5), PAUSE_MOST_SECONDS) if quick else 0.0
            self.not_before = now + self.pause
            say(f"{self.name} ended with status {code} and is restarted (log: {self.log})")
            self.process = None
        if now >= self.not_before:
            self.start()

    @property
    def dead(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def end(self) -> None:
        if self.process is None or self.dead:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def run(
    *,
    data: str = ".mandor",
    listen: str = "127.0.0.1:8080",
    nodes: int = 1,
    extras: Extras = NO_EXTRAS,
    say: Say,
) -> None:
    """Run a cluster until a signal."""
    directory = Path(data).absolute()
    host, port = split_address(listen)
    if not is_loopback(host):
        raise Invalid(
            f"`mandor dev` listens on loopback only, not on {host}",
            hint="use `mandor server` for other addresses, with TLS and tokens",
        )
    if not 1 <= nodes <= NODES_MOST:
        raise Invalid(f"{nodes} nodes are not possible; choose 1 to {NODES_MOST}")
    extras.check()  # errors are reported before anything starts
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    with _locked(directory, f"another `mandor dev` is running in {directory}"):
        (directory / "url").write_text(url + "\n")
        server, *agents = _children(directory, listen, url, nodes, extras)
        with _signals() as signals:
            try:
                server.start()
                _wait_ready(server, host, port, signals)
                for agent in agents:
                    agent.start()
                greet_by: float | None = time.monotonic() + NODES_SECONDS
                while not signals:
                    for child in (server, *agents):
                        child.keep_running(say)
                    # A workload that is applied before a node is ready would be reported as unschedulable.
                    if greet_by is not None and (_nodes_ready(host, port) >= nodes or time.monotonic() > greet_by):
                        greet_by = None
                        _greet(url, port, directory, say)
                    time.sleep(0.2)
            finally:
                for child in (*agents, server):
                    child.end()
    say(f"ended; instances keep running, `{_command()} dev` continues with them, `{_command()} dev --stop` ends them")


def stop(*, data: str = ".mandor", say: Say) -> None:
    """Stop and remove everything that a dev cluster in `data` left running."""
    from mandor.roots.agent import ALL_ENGINES, make_engines
    from mandor.roots.balancing import remove_balancing
    from mandor.roots.guard import dismiss
    from mandor.roots.name_server import remove_name_server

    directory = Path(data).absolute()
    with _locked(directory, f"`mandor dev` is still running in {directory}: end it first"):
        homes = sorted(path for path in (directory / "nodes").glob("*") if path.is_dir())
        for home in homes:
            dismiss(home)
        count = sum(asyncio.run(stop_units(make_engines((ALL_ENGINES,), home))) for home in homes)
        for home in homes:
            asyncio.run(remove_balancing(home.name, home))
            asyncio.run(remove_name_server(home))
    say(f"ended {count} unit{'' if count == 1 else 's'}")


async def stop_units(engines: dict[str, Engine]) -> int:
    """Stop and remove every unit of these engines; return how many were running."""
    count = 0
    for engine in engines.values():
        async with engine:
            try:
                seen = await engine.list()
            except (NotFound, EngineDown):  # Not installed or not running: it has no units that could be stopped.
                continue
            running = [one.unit for one in seen if one.phase != UnitPhase.EXITED]
            await asyncio.gather(*(engine.stop(unit, grace_seconds=5) for unit in running))
            for one in seen:
                await engine.remove(one.unit)
            count += len(running)
    return count


def _children(directory: Path, listen: str, url: str, nodes: int, extras: Extras) -> list[Child]:
    python = [sys.executable, "-m"]
    command = [*python, "mandor.roots.server", "--dev", "--data", str(directory), "--listen", listen]
    command += extras.of_server
    children = [Child("the server", command, directory / "server.log")]
    for number in range(nodes):
        name = f"{default_name()}-{number}" if nodes > 1 else default_name()
        home = directory / "nodes" / name
        command = [*python, "mandor.roots.agent", "--data", str(home), "--server", url, "--name", name]
        command += ["--engine", "all"]
        command += ["--join-token-file", str(directory / "join.token"), "--port-range", _port_range(number, nodes)]
        command += [option for each in (EVERYWHERE, *LOOPBACK) for option in ("--egress-allow", each)]
        command += extras.of_agents
        children.append(Child(f"the agent of {name}", command, home / "agent.log"))
    return children


def _port_range(number: int, nodes: int) -> str:
    """Return the part of the default port range for one of several agents on this machine."""
    whole = USUAL_PORTS
    each = (whole.last - whole.first + 1) // nodes
    first = whole.first + number * each
    return str(PortRange(first, whole.last if number == nodes - 1 else first + each - 1))


def _wait_ready(server: Child, host: str, port: int, signals: list[int]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not signals and not _ready(host, port):
        if server.dead:
            raise Unavailable("the server did not start", hint=f"the last lines of {server.log}:\n{_tail(server.log)}")
        if time.monotonic() > deadline:
            raise Unavailable(
                f"the server did not answer within {START_SECONDS:.0f} s", hint=f"see its log: {server.log}"
            )
        time.sleep(0.05)


def _ready(host: str, port: int) -> bool:
    return _get(host, port, "/readyz") is not None


def _nodes_ready(host: str, port: int) -> int:
    listed = json.loads(_get(host, port, "/v1/nodes") or b"{}")
    return sum(node.get("status", {}).get("phase") == "Ready" for node in listed.get("items", ()))


def _get(host: str, port: int, path: str) -> bytes | None:
    """Return the answer; None: no answer, or an error."""
    connection = HTTPConnection(host, port, timeout=2)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        return body if response.status == 200 else None
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()


def _greet(url: str, port: int, directory: Path, say: Say) -> None:
    say(f"mandor is at {url} (panel: {url}/ui/; API documentation: {url}/docs; data: {directory})")
    example = "examples/hello.yaml" if Path("examples/hello.yaml").exists() else "FILE"
    server = "" if url == "http://127.0.0.1:8080" else f" --server {url}"
    say(f"next, in another terminal: {_command()}{server} apply -f {example}")
    say(
        f"the API has port {port} of this machine; if a workload publishes that port, end the cluster and start "
        f"`{_command()} dev --listen 127.0.0.1:PORT` with another one"
    )
    say("Ctrl-C ends the cluster")


def _command() -> str:
    """Return the command that starts this program, as the user can type it."""
    own = Path(sys.executable).with_name("mandor")
    if shutil.which("mandor") == str(own):
        return "mandor"
    try:
        return str(own.relative_to(Path.cwd()))
    except ValueError:
        return str(own)


@contextmanager
def _locked(directory: Path, refusal: str) -> Iterator[None]:
    try:
        with hold(directory / "dev.lock"):
            yield
    except LockHeld as held:
        raise Conflict(refusal, hint=str(held)) from None


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Yield the signals that ask this program to end."""
    received: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, lambda got, _: received.append(got)) for number in numbers]
    try:
        yield received
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _end_with_parent() -> None:
    """In the child: deliver SIGTERM when the parent dies for any reason."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
    if os.getppid() == 1:
        os._exit(1)


def _tail(log: Path, lines: int = 5) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""
