"""Turnstile: lets requests in as `turn_plan` decides, and keeps count of who waited and who was turned away."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from time import perf_counter

from mandor.api.caller import Caller
from mandor.api.rate import Rates
from mandor.api.turn_plan import Lane, Turn, Turns
from mandor.errors import TooMany
from mandor.lib.metrics import Counts, Family, Spreads, counter, gauge, histogram

WAIT_SECONDS_MOST = 25.0
"""Clients give up after thirty: who would be told too late is told to come again."""


class Turnstile:
    """Use: `turn = ask(…)`, `await wait(turn)` unless it is seated, and `leave(turn)`, whatever happened."""

    def __init__(self, turns: Turns, requests: Rates, beats: Rates, strangers: Rates) -> None:
        self._turns = turns
        self._requests, self._beats, self._strangers = requests, beats, strangers
        self._waiters: dict[Lane, dict[Turn, tuple[float, asyncio.Future[None]]]] = {lane: {} for lane in Lane}
        """Since when each waits; who has waited longest comes first."""
        self._waits = Spreads()
        self._refused = Counts()
        self._names = [(lane.name.lower(),) for lane in Lane]

    def ask(self, lane: Lane, caller: Caller, *, weight: int = 1, cost: int = 1, size_bytes: int = 0) -> Turn:
        """`TooMany`: they ask too often, or too many wait."""
        self.pass_by(lane, caller)
        try:
            return self._turns.ask(lane, caller.identity, weight=weight, cost=cost, size_bytes=size_bytes)
        except TooMany:
            self._refused[lane.name.lower(), caller.role, "queue"] += 1
            raise

    def pass_by(self, lane: Lane, caller: Caller) -> None:
        """For what is over before anybody could wait for it: `TooMany` if they ask too often."""
        if not caller.token:
            return
        try:
            (self._beats if lane is Lane.HEARTBEAT else self._requests).spend(caller.identity, 1)
        except TooMany:
            self._refused[lane.name.lower(), caller.role, "rate"] += 1
            raise

    def stranger(self, address: str) -> None:
        """Somebody without a token, or with one that nobody knows: `TooMany` if that happens too often from there."""
        try:
            self._strangers.spend(address, 1)
        except TooMany:
            self._refused["", "stranger", "rate"] += 1
            raise

    async def wait(self, turn: Turn) -> None:
        """Until it is seated; `TooMany` if that takes too long."""
        waiters = self._waiters[turn.lane]
        began, waiter = waiters[turn] = perf_counter(), asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(WAIT_SECONDS_MOST):
                await waiter
        except TimeoutError as error:
            self._refused[turn.lane.name.lower(), "", "wait"] += 1
            raise TooMany(
                f"the server was busy for {WAIT_SECONDS_MOST:g} s",
                hint="try again in a moment, or ask another server",
                seconds=2.0,
                lane=turn.lane.name.lower(),
            ) from error
        finally:
            del waiters[turn]
            self._waits[self._names[turn.lane]].add(perf_counter() - began)

    @asynccontextmanager
    async def turn(self, lane: Lane, caller: Caller) -> AsyncIterator[None]:
        """A turn for work that goes on after its request was answered; `TooMany` as for `ask` and `wait`."""
        turn = self.ask(lane, caller)
        try:
            if not turn.seated:
                await self.wait(turn)
            yield
        finally:
            self.leave(turn)

    def waited_seconds(self, *lanes: Lane) -> float:
        """How long the one in these lanes that has waited longest waits by now."""
        first = [since for lane in lanes for since, _ in islice(self._waiters[lane].values(), 1)]
        return perf_counter() - min(first) if first else 0.0

    def leave(self, turn: Turn) -> None:
        seated = self._turns.leave(turn)
        if seated:
            self._call(seated)

    def limit(self, lane: Lane, seats: int | None = None) -> None:
        """So many of this lane are worked on at once from now on; None: as at first."""
        self._call(self._turns.limit(lane, seats))

    def _call(self, seated: Sequence[Turn]) -> None:
        for turn in seated:
            _, waiter = self._waiters[turn.lane].get(turn, (0.0, None))
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    def families(self) -> Iterator[Family]:
        turns = self._turns
        waiting = {(lane.name.lower(),): float(turns.waiting(lane)) for lane in Lane}
        yield gauge("mandor_api_requests_waiting", "Requests that wait for their turn.", waiting, "lane")
        seated = {(lane.name.lower(),): float(turns.seated(lane)) for lane in Lane}
        yield gauge("mandor_api_requests_seated", "Requests that have their turn.", seated, "lane")
        yield gauge("mandor_api_waiting_bytes", "Bodies of requests that wait.", turns.held_bytes)
        yield histogram(
            "mandor_api_wait_seconds",
            "How long requests waited for their turn, of those that did.",
            self._waits,
            "lane",
        )
        yield counter(
            "mandor_api_refused_total",
            "Requests turned away: too many waited (queue), for too long (wait), or too often sent (rate).",
            self._refused,
            *("lane", "role", "reason"),
        )
