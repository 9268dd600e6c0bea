"""Checks the addresses outside of the cluster that services send traffic to, and applies the egress policy to them."""

import asyncio
import heapq
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from ipaddress import ip_address

from mandor.agent.probes import ProbeCounter, check_http, check_tcp
from mandor.lib.clock import Clock, wait_event
from mandor.lib.egress import Egress, Refused
from mandor.lib.tasks import Background
from mandor.model.meta import Key
from mandor.model.service import Service, ServiceHealth
from mandor.model.task import Probe
from mandor.network.external_plan import CheckedAddress, check_plan, is_virtual

log = logging.getLogger(__name__)

CHECKS_MOST = 32
"""Checks that run at the same time."""
PACE_SECONDS = 0.005
"""Shortest time between the starts of two checks of this node."""

Check = Callable[[CheckedAddress], Awaitable[str]]
"""Checks an address once; returns an empty string if it passed, otherwise the failure."""


class ExternalChecks:
    """Runs the checks of `external` addresses of services; one heap of due times serves all of them."""

    def __init__(self, egress: Egress, clock: Clock, check: Check | None = None) -> None:
        self._egress, self._clock, self._check = egress, clock, check or run_check
        self._counters: dict[CheckedAddress, ProbeCounter] = {}
        self._failures: dict[CheckedAddress, str] = {}
        """Reasons of the addresses whose check fails."""
        self._refused: Mapping[Key, Mapping[str, str]] = {}
        self._due: list[tuple[float, int, CheckedAddress, ProbeCounter]] = []
        self._number = 0
        self._services: tuple[tuple[Key, int], ...] = ()
        self._news = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []

    def listen(self, changed: Callable[[], None]) -> None:
        """Call `changed` after an address begins or stops to fail."""
        self._listeners.append(changed)

    def sync(self, services: Iterable[Service]) -> None:
        """Check exactly the addresses of these services; results of other addresses are dropped."""
        chosen = [each for each in services if each.spec.external]
        versions = tuple((each.key, each.meta.version) for each in chosen)
        if versions == self._services:
            return
        self._services = versions
        wanted, refused = check_plan(chosen, self._refusal)
        for key, reasons in refused.items():
            for text, reason in reasons.items():
                if self._refused.get(key, {}).get(text) != reason:
                    log.warning("%s: address %s gets no traffic from this node: %s", key, text, reason)
        self._refused = refused
        kept = set(wanted)
        for gone in [each for each in self._counters if each not in kept]:
            del self._counters[gone]
            self._failures.pop(gone, None)
        for target in wanted:
            if target not in self._counters:
                counter = self._counters[target] = ProbeCounter(_counted(target.health), good=True)
                self._push(self._clock.monotonic(), target, counter)
        self._news.set()

    def excluded(self) -> dict[Key, dict[str, str]]:
        """Return the addresses of each service that get no traffic, with their reasons."""
        found = {key: dict(reasons) for key, reasons in self._refused.items()}
        for target, reason in self._failures.items():
            found.setdefault(target.service, {})[target.text] = reason
        return found

    def counts(self) -> Mapping[str, int]:
        """Return the number of addresses by the state of their check."""
        failing = len(self._failures)
        refused = sum(map(len, self._refused.values()))
        return Counter(passing=len(self._counters) - failing, failing=failing, refused=refused)

    async def run(self) -> None:
        """Check until cancelled."""
        free = asyncio.Semaphore(CHECKS_MOST)
        async with Background() as tasks:
            while True:
                self._news.clear()
                wait = self._due[0][0] - self._clock.monotonic() if self._due else None
                if wait is None or wait > 0:
                    await wait_event(self._clock, wait, self._news)
                    continue
                _, _, target, counter = heapq.heappop(self._due)
                if self._counters.get(target) is not counter:
                    continue
                await free.acquire()
                tasks.start(self._run_once(target, counter, free), f"check of {target.text}")
                await self._clock.sleep(PACE_SECONDS)

    async def _run_once(self, target: CheckedAddress, counter: ProbeCounter, free: asyncio.Semaphore) -> None:
        began = self._clock.monotonic()
        try:
            reason = await self._check(target)
        finally:
            free.release()
        if self._counters.get(target) is not counter:
            return
        changed = counter.count(not reason, 0.0)
        if counter.good:
            self._failures.pop(target, None)
        elif reason:
            self._failures[target] = reason
        self._push(began + float(target.health.every), target, counter)
        self._news.set()
        if changed:
            what = f"gets no traffic from this node: {reason}" if reason else "gets traffic again"
            log.log(logging.WARNING if reason else logging.INFO, "%s: address %s %s", target.service, target.text, what)
            for each in self._listeners:
                each()

    def _push(self, at: float, target: CheckedAddress, counter: ProbeCounter) -> None:
        self._number += 1
        heapq.heappush(self._due, (at, self._number, target, counter))

    def _refusal(self, address: str, port: int) -> str:
        if is_virtual(address):
            return f"{address} is in a range of virtual addresses of services"
        try:
            if not self._egress.names(address, port):
                self._egress.judge(ip_address(address), address, port)
        except Refused as error:
            return str(error)
        return ""


async def run_check(target: CheckedAddress) -> str:
    """Connect to an address, and send a request if its check has a path."""
    health = target.health
    try:
        async with asyncio.timeout(float(health.timeout)):
            if health.http:
                return await check_http(target.address, target.port, health.http)
            return await check_tcp(target.address, target.port)
    except TimeoutError:
        return f"no answer within {health.timeout}"
    except OSError as error:
        return str(error) or type(error).__name__


def _counted(health: ServiceHealth) -> Probe:
    """Return a probe with the limits of the check."""
    return Probe(tcp=1, interval=health.every, timeout=health.timeout, failures=health.failures)
