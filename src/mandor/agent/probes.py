"""Runs health, readiness and startup probes and counts their results."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from mandor.engines.base import Engine, Observed
from mandor.errors import MandorError
from mandor.lib.clock import Clock
from mandor.model.task import Probe, ProbeCheck

log = logging.getLogger(__name__)

LOCAL = "127.0.0.1"
LINE_MOST = 8192
URL_SAFE = "/?:@!$&'()*+,;=%~-._[]#"


@dataclass(slots=True)
class ProbeCounter:
    """Result of a probe, which changes after several equal results in a row: pure."""

    probe: Probe
    good: bool
    """The current result."""
    streak: int = 0
    """Number of contrary results in a row."""

    def count(self, answer: bool, running_seconds: float) -> bool:
        """Take a result; return whether `good` has changed."""
        if answer == self.good:
            self.streak = 0
            return False
        if not answer and running_seconds < self.probe.start_period:
            return False
        self.streak += 1
        if self.streak < (self.probe.successes if answer else self.probe.failures):
            return False
        self.good, self.streak = answer, 0
        return True


@dataclass(slots=True)
class StartupCounter(ProbeCounter):
    """Counts the results of a startup probe: `good` until `failures` in a row, `passed` after `successes` in a row."""

    passed: bool = False
    run: int = 0
    """Number of successes in a row."""

    def count(self, answer: bool, running_seconds: float) -> bool:
        changed = ProbeCounter.count(self, answer, running_seconds)
        self.run = self.run + 1 if answer else 0
        if self.run < self.probe.successes or self.passed:
            return changed
        self.passed = True
        return True


RunProbe = Callable[[Probe, Observed, Engine, Mapping[str, int]], Awaitable[str]]
"""Runs a probe of a unit once; returns an empty string if it passed, otherwise the failure."""


async def run_probe(probe: Probe, observed: Observed, engine: Engine, ports: Mapping[str, int]) -> str:
    """Run all checks of a probe of a unit once; return an empty string if all passed, otherwise the first failure."""
    for check in probe.checks:
        if wrong := await _run_check(check, observed, engine, ports):
            return wrong
    return ""


async def _run_check(probe: Probe | ProbeCheck, observed: Observed, engine: Engine, ports: Mapping[str, int]) -> str:
    try:
        async with asyncio.timeout(probe.timeout):
            if probe.command is not None:
                return await _run_command(probe.command, observed, engine)
            host = observed.address or LOCAL
            wanted = probe.port if probe.http is not None else probe.tcp
            port = ports[wanted] if isinstance(wanted, str) else wanted
            assert port is not None, "the model requires a port for every HTTP and TCP probe"
            return await (check_tcp(host, port) if probe.http is None else check_http(host, port, probe.http))
    except TimeoutError:
        return f"no answer within {probe.timeout}"
    except (OSError, MandorError) as error:
        return str(error) or type(error).__name__


async def check_http(host: str, port: int, path: str) -> str:
    """Send a request on a new connection and read the status line of the response."""
    reader, writer = await asyncio.open_connection(host, port, limit=LINE_MOST)
    try:
        shown = f"[{host}]" if ":" in host else host
        request = (
            f"GET {path} HTTP/1.1\r\nHost: {shown}:{port}\r\nUser-Agent: mandor-probe\r\nConnection: close\r\n\r\n"
        )
        writer.write(request.encode())
        line = await reader.readline()
    except ValueError:
        return "no HTTP answer"
    finally:
        writer.close()
    version, _, rest = line.partition(b" ")
    status = rest[:3]
    if not version.startswith(b"HTTP/") or not status.isdigit():
        return "no HTTP answer"
    return "" if 200 <= int(status) < 400 else f"HTTP status {status.decode()}"


async def check_tcp(host: str, port: int) -> str:
    """Open a connection and close it."""
    _, writer = await asyncio.open_connection(host, port)
    writer.close()
    return ""


async def _run_command(command: tuple[str, ...], observed: Observed, engine: Engine) -> str:
    running = await engine.exec(observed.unit, command)
    try:
        while await running.read() is not None:
            pass  # The output is not used, but must not fill the pipe.
        code = await running.wait()
    finally:
        await running.close()
    return "" if code == 0 else f"exit code {code}"


async def run_probe_loop(
    probe: Probe,
    observed: Observed,
    engine: Engine,
    ports: Mapping[str, int],
    clock: Clock,
    tally: ProbeCounter,
    changed: Callable[[str], None],
    run_probe: RunProbe = run_probe,
) -> None:
    """Run a probe at its interval until cancelled; call `changed` with the failure (empty: passed) on each change."""
    began = clock.monotonic()
    while True:
        try:
            wrong = await run_probe(probe, observed, engine, ports)
        except Exception as error:  # A third-party engine may raise anything; it counts as a failure.
            log.exception("probe of unit %s raised an exception", observed.unit)
            wrong = type(error).__name__
        if tally.count(not wrong, clock.monotonic() - began):
            changed(wrong)
        await clock.sleep(probe.interval)
