"""RequestAdmission: lets requests in as `FairQueue` decides, limits their rate, and counts waits and refusals."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from time import perf_counter

from mandor.api.caller import Caller
from mandor.api.http.fair_queue import FairQueue, Lane, Ticket
from mandor.api.http.rate_limiter import RateLimiter
from mandor.errors import TooMany
from mandor.lib.metrics import Counts, Family, Spreads, counter, gauge, histogram

WAIT_SECONDS_MOST = 25.0
"""Longest wait for a slot; shorter than the 30 seconds after which clients give up."""


class RequestAdmission:
    """Use: `ticket = enqueue(…)`, `await wait(ticket)` unless it is admitted, and `release(ticket)` in any case."""

    def __init__(
        self, queue: FairQueue, requests: RateLimiter, heartbeats: RateLimiter, unauthenticated: RateLimiter
    ) -> None:
        self._queue = queue
        self._requests, self._heartbeats, self._unauthenticated = requests, heartbeats, unauthenticated
        self._waiters: dict[Lane, dict[Ticket, tuple[float, asyncio.Future[None]]]] = {lane: {} for lane in Lane}
        """Start of the wait of each ticket, and the future that ends it; the longest wait first."""
        self._waits = Spreads()
        self._refused = Counts()
        self._names = [(lane.name.lower(),) for lane in Lane]

    def enqueue(self, lane: Lane, caller: Caller, *, weight: int = 1, cost: int = 1, size_bytes: int = 0) -> Ticket:
        """Return a ticket; raise `TooMany` if the caller is over its rate limit or the queue is full."""
        self.count(lane, caller)
        try:
            return self._queue.enqueue(lane, caller.identity, weight=weight, cost=cost, size_bytes=size_bytes)
        except TooMany:
            self._refused[lane.name.lower(), caller.role, "queue"] += 1
            raise

    def count(self, lane: Lane, caller: Caller) -> None:
        """Count a request against the caller's rate limit; raise `TooMany` if it is over it."""
        if not caller.token:
            return
        try:
            (self._heartbeats if lane is Lane.HEARTBEAT else self._requests).spend(caller.identity, 1)
        except TooMany:
            self._refused[lane.name.lower(), caller.role, "rate"] += 1
            raise

    def count_unauthenticated(self, address: str) -> None:
        """Count a request without a valid token against the limit of its address; raise `TooMany` if it is over it."""
        try:
            self._unauthenticated.spend(address, 1)
        except TooMany:
            self._refused["", "stranger", "rate"] += 1
            raise

    async def wait(self, ticket: Ticket) -> None:
        """Wait until the ticket is admitted; raise `TooMany` after `WAIT_SECONDS_MOST`."""
        waiters = self._waiters[ticket.lane]
        began, waiter = waiters[ticket] = perf_counter(), asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(WAIT_SECONDS_MOST):
                await waiter
        except TimeoutError as error:
            self._refused[ticket.lane.name.lower(), "", "wait"] += 1
            raise TooMany(
                f"the server is overloaded: the request waited {WAIT_SECONDS_MOST:g} s",
                hint="try again in a few seconds, or use another server",
                seconds=2.0,
                lane=ticket.lane.name.lower(),
            ) from error
        finally:
            del waiters[ticket]
            self._waits[self._names[ticket.lane]].add(perf_counter() - began)

    @asynccontextmanager
    async def slot(self, lane: Lane, caller: Caller) -> AsyncIterator[None]:
        """Hold a slot for work that continues after its request was answered; raise `TooMany` as `enqueue`, `wait`."""
        ticket = self.enqueue(lane, caller)
        try:
            if not ticket.admitted:
                await self.wait(ticket)
            yield
        finally:
            self.release(ticket)

    def longest_wait_seconds(self, *lanes: Lane) -> float:
        """Return how long the request that has waited longest in these lanes has waited so far."""
        first = [since for lane in lanes for since, _ in islice(self._waiters[lane].values(), 1)]
        return perf_counter() - min(first) if first else 0.0

    def others_wait(self, lane: Lane, identity: str) -> bool:
        """Return whether a request of another identity waits in the lane; may be called from any thread."""
        return self._queue.waiting_others(lane, identity) > 0

    def release(self, ticket: Ticket) -> None:
        admitted = self._queue.release(ticket)
        if admitted:
            self._wake(admitted)

    def set_slots(self, lane: Lane, slots: int | None = None) -> None:
        """Change the number of requests of a lane that are processed at once; None: the configured number."""
        self._wake(self._queue.set_slots(lane, slots))

    def _wake(self, admitted: Sequence[Ticket]) -> None:
        for ticket in admitted:
            _, waiter = self._waiters[ticket.lane].get(ticket, (0.0, None))
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    def families(self) -> Iterator[Family]:
        queue = self._queue
        waiting = {(lane.name.lower(),): float(queue.waiting(lane)) for lane in Lane}
        yield gauge("mandor_api_requests_waiting", "Requests waiting for a slot, by lane.", waiting, "lane")
        admitted = {(lane.name.lower(),): float(queue.admitted(lane)) for lane in Lane}
        yield gauge("mandor_api_requests_seated", "Requests that hold a slot, by lane.", admitted, "lane")
        yield gauge("mandor_api_waiting_bytes", "Bytes of the bodies of waiting requests.", queue.held_bytes)
        yield histogram(
            "mandor_api_wait_seconds",
            "Seconds that requests waited for a slot; requests that did not wait are not counted.",
            self._waits,
            "lane",
        )
        yield counter(
            "mandor_api_refused_total",
            "Requests refused because the queue was full (queue), the wait too long (wait), or the rate too high "
            "(rate).",
            self._refused,
            *("lane", "role", "reason"),
        )
