"""An agent renews its credential when it is told to or the time has come, and tries until it is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from mandor.agent.link import Link
from mandor.agent.renewal import CredentialKeeper
from mandor.errors import Unavailable
from mandor.lib.clock import ManualClock, settle
from mandor.lib.metrics import Counts
from mandor.model.node import Renewal

DAY = 86_400.0

pytestmark = pytest.mark.req("S0-22", "S0-30")


class Servers:
    """A link to servers that want a credential renewed every day."""

    renewing = False
    certify_at = None

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.renew_at: float | None = clock.monotonic() + DAY
        self.renewed = 0
        self.recent_silence = False

    async def renew_credential(self) -> None:
        if self.recent_silence:
            raise Unavailable("nobody answers")
        self.renewed += 1
        self.renew_at = self._clock.monotonic() + DAY


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


async def test_it_is_renewed_at_its_age_again_and_again(bench: Bench) -> None:
    await bench.wait(DAY - 1)
    assert bench.servers.renewed == 0
    await bench.wait(1)
    assert bench.servers.renewed == 1
    await bench.wait(DAY)
    assert bench.servers.renewed == 2
    assert bench.counts == {("ok",): 2}


async def test_servers_that_are_away_are_asked_again(bench: Bench) -> None:
    bench.servers.recent_silence = True
    await bench.wait(DAY)
    await bench.wait(60)
    assert bench.counts["failed",] > 1
    bench.servers.recent_silence = False
    await bench.wait(120)
    assert bench.servers.renewed == 1


async def test_without_an_age_only_an_order_renews_it_and_once(bench: Bench) -> None:
    bench.servers.renew_at = None
    bench.keeper.wake()
    await bench.wait(1000 * DAY)
    assert bench.servers.renewed == 0
    bench.order = Renewal(1.0)
    for _ in range(2):
        bench.keeper.wake()
        await bench.wait(0)
    assert bench.servers.renewed == 1


async def test_what_a_later_join_says_holds(bench: Bench) -> None:
    bench.servers.renew_at = bench.clock.monotonic() + 60
    bench.keeper.wake()
    await bench.wait(60)
    assert bench.servers.renewed == 1
