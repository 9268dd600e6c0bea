"""Reports instances that wait for a pool without a live scheduler, which no other scheduler would explain."""

import asyncio
from collections.abc import Iterable, Mapping

from mandor.errors import Unavailable
from mandor.lib.clock import Clock
from mandor.model.meta import Key
from mandor.model.record import Lease
from mandor.scheduler.pool_ownership import EVERY, ONE, ROLE, Pools, election_of
from mandor.scheduler.status_writer import StatusWriter
from mandor.store.base import Store

LOOK_SECONDS = 2.0
"""Seconds between two checks while such instances exist."""
UNCLAIMED = "Unclaimed"
_LEADER = "leader-"


class UnclaimedPools:
    """Runs in every scheduler; among the live ones, the first by the name of its election writes the reports."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        pools: Pools,
        waiting: Mapping[Key, tuple[str, str]],
        status: StatusWriter,
    ) -> None:
        """`waiting`: instances for pools of other schedulers, with uid and pool."""
        self._store = store
        self._clock = clock
        self._pools = pools
        self._waiting = waiting
        self._some = asyncio.Event()
        self._status = status
        self._seen: dict[str, tuple[int, float]] = {}
        """Version of each leader's lease, and the monotonic time since when it has not changed."""

    def changed(self) -> None:
        """Start checking if instances wait for other pools."""
        if self._waiting:
            self._some.set()

    async def run(self) -> None:
        """Check every `LOOK_SECONDS`, until cancelled."""
        while True:
            await self._some.wait()
            await self._clock.sleep(LOOK_SECONDS)
            if not self._waiting:
                self._some.clear()
                continue
            try:
                await self._check()
            except Unavailable:
                continue  # The next check reports it.

    async def _check(self) -> None:
        leases = [each for each in (await self._store.list(Lease.kind)).items if isinstance(each, Lease)]
        alive = {*self._alive(leases), election_of(self._pools)}
        if min(alive) != election_of(self._pools):
            return
        owners = {each.meta.name: each.spec.holder for each in leases}
        for key, (uid, pool) in list(self._waiting.items()):
            owner = owners.get(EVERY) or owners.get(ONE + pool)
            if owner is None:
                self._status.refused(key, uid, UNCLAIMED, f"no scheduler takes the pool {pool}")
            elif owner not in alive:
                self._status.refused(key, uid, UNCLAIMED, f"no scheduler takes the pool {pool}: its owner is gone")

    def _alive(self, leases: Iterable[Lease]) -> Iterable[str]:
        """Return the elections whose leader renews its lease, or has not been observed for the whole lease duration."""
        now = self._clock.monotonic()
        for each in leases:
            election = each.meta.name.removeprefix(_LEADER)
            if election == each.meta.name or not election.startswith(ROLE) or not each.spec.holder:
                continue
            version, since = self._seen.get(election, (0, now))
            if version != each.meta.version:
                version, since = self._seen[election] = (each.meta.version, now)
            if now - since <= each.spec.seconds:
                yield election
