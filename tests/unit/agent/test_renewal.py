"""An agent renews its credential and its certificate when they are due or requested, and retries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from mandor.agent.link import Link
from mandor.agent.renewal import CertificateKeeper, CredentialKeeper
from mandor.errors import Unavailable
from mandor.lib.clock import ManualClock, settle
from mandor.lib.metrics import Counts
from mandor.model.node import Renewal

DAY = 86_400.0


class Servers:
    """A link to servers that want a credential and a certificate renewed every day."""

    renewing = False

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.renew_at: float | None = clock.monotonic() + DAY
        self.certify_at: float | None = clock.monotonic() + DAY
        self.renewed = 0
        self.certified = 0
        self.recent_silence = False

    async def renew_credential(self) -> None:
        if self.recent_silence:
            raise Unavailable("nobody answers")
        self.renewed += 1
        self.renew_at = self._clock.monotonic() + DAY

    async def renew_certificate(self) -> None:
        if self.recent_silence:
            raise Unavailable("nobody answers")
        self.certified += 1
        self.certify_at = self._clock.monotonic() + DAY


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.servers = Servers(self.clock)
        self.order: Renewal | None = None
        self.counts = Counts()
        self.keeper = CredentialKeeper(cast(Link, self.servers), self.clock, lambda: self.order, self.counts)

    async def wait(self, seconds: float) -> None:
        await self.clock.advance(seconds)
        await settle()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    running = asyncio.create_task(made.keeper.run())
    await settle()
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_credential_is_renewed_whenever_it_is_due(bench: Bench) -> None:
    await bench.wait(DAY - 1)
    assert bench.servers.renewed == 0
    await bench.wait(1)
    assert bench.servers.renewed == 1
    await bench.wait(DAY)
    assert bench.servers.renewed == 2
    assert bench.counts == {("ok",): 2}


async def test_a_failed_renewal_is_retried(bench: Bench) -> None:
    bench.servers.recent_silence = True
    await bench.wait(DAY)
    await bench.wait(60)
    assert bench.counts["failed",] > 1
    bench.servers.recent_silence = False
    await bench.wait(120)
    assert bench.servers.renewed == 1


async def test_without_a_due_time_only_a_request_renews_the_credential_once(bench: Bench) -> None:
    bench.servers.renew_at = None
    bench.keeper.wake()
    await bench.wait(1000 * DAY)
    assert bench.servers.renewed == 0
    bench.order = Renewal(1.0)
    for _ in range(2):
        bench.keeper.wake()
        await bench.wait(0)
    assert bench.servers.renewed == 1


async def test_a_later_join_changes_the_due_time(bench: Bench) -> None:
    bench.servers.renew_at = bench.clock.monotonic() + 60
    bench.keeper.wake()
    await bench.wait(60)
    assert bench.servers.renewed == 1


async def test_a_certificate_is_renewed_when_it_is_due_and_a_failed_renewal_is_retried() -> None:
    clock, counts = ManualClock(), Counts()
    servers = Servers(clock)
    keeper = CertificateKeeper(cast(Link, servers), clock, counts)
    running = asyncio.create_task(keeper.run())
    await settle()
    await clock.advance(DAY - 1)
    assert servers.certified == 0
    servers.recent_silence = True
    await clock.advance(60)
    assert counts["failed",] > 1
    servers.recent_silence = False
    await clock.advance(300)
    assert (servers.certified, servers.renewed) == (1, 0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
