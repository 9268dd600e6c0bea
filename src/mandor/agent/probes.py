"""Health and readiness: the same question again and again, and what to make of the answers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from mandor.engines.base import Engine, Observed
from mandor.errors import MandorError
from mandor.lib.clock import Clock
from mandor.model.task import Probe

log = logging.getLogger(__name__)

LOCAL = "127.0.0.1"
LINE_MOST = 8192
URL_SAFE = "/?:@!$&'()*+,;=%~-._[]#"


@dataclass(slots=True)
class Tally:
    """An opinion that so many answers in a row can change: pure."""

    probe: Probe
    good: bool
    """The opinion."""
    streak: int = 0
    """So many answers in a row spoke against it."""

    def count(self, answer: bool, running_seconds: float) -> bool:
        """True: the opinion has changed."""
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
class Beginning(Tally):
    """Of a startup probe: alive until so many bad answers in a row; over with so many good ones."""

    passed: bool = False
    run: int = 0
    """So many good answers in a row."""

    def count(self, answer: bool, running_seconds: float) -> bool:
        changed = Tally.count(self, answer, running_seconds)
        self.run = self.run + 1 if answer else 0
        if self.run < self.probe.successes or self.passed:
            return changed
        self.passed = True
        return True


Ask = Callable[[Probe, Observed, Engine, Mapping[str, int]], Awaitable[str]]
"""Empty: a good answer; otherwise what was wrong with it."""


async def ask(probe: Probe, observed: Observed, engine: Engine, ports: Mapping[str, int]) -> str:
    """Empty: a good answer; otherwise what was wrong with it."""
    try:
        async with asyncio.timeout(probe.timeout):
            if probe.command is not None:
                return await _ask_command(probe.command, observed, engine)
            host = observed.address or LOCAL
            asked = probe.port if probe.http is not None else probe.tcp
            port = ports[asked] if isinstance(asked, str) else asked
            assert port is not None, "the model sees to it that a probe has a port"
            return await (_ask_tcp(host, port) if probe.http is None else _ask_http(host, port, probe.http))
    except TimeoutError:
        return f"no answer within {probe.timeout}"
    except (OSError, MandorError) as error:
        return str(error) or type(error).__name__


async def _ask_http(host: str, port: int, path: str) -> str:
    """Only the first line of the answer counts, and a connection of its own shows that somebody still listens."""
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


async def _ask_tcp(host: str, port: int) -> str:
    _, writer = await asyncio.open_connection(host, port)
    writer.close()
    return ""


async def _ask_command(command: tuple[str, ...], observed: Observed, engine: Engine) -> str:
    running = await engine.exec(observed.unit, command)
    try:
        while await running.read() is not None:
            pass  # What it prints is for nobody, but it must not fill a pipe.
        code = await running.wait()
    finally:
        await running.close()
    return "" if code == 0 else f"exit code {code}"


async def keep_asking(
    probe: Probe,
    observed: Observed,
    engine: Engine,
    ports: Mapping[str, int],
    clock: Clock,
    tally: Tally,
    changed: Callable[[str], None],
    ask: Ask = ask,
) -> None:
    """For as long as the unit runs; `changed` is told when the opinion has changed, and why."""
    began = clock.monotonic()
    while True:
        try:
            wrong = await ask(probe, observed, engine, ports)
        except Exception as error:  # An engine from elsewhere may raise anything: no answer is a bad answer.
            log.exception("the probe of %s broke", observed.unit)
            wrong = type(error).__name__
        if tally.count(not wrong, clock.monotonic() - began):
            changed(wrong)
        await clock.sleep(probe.interval)
