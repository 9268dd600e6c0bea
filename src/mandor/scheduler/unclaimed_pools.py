"""Says of work for a pool that no living scheduler owns that it waits for one: else nobody would say why it waits."""

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
UNCLAIMED = "Unclaimed"
_LEADER = "leader-"


class UnclaimedPools:
    """Of all schedulers that live, the one whose election comes first by name speaks for those who are not there."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        pools: Pools,
        waiting: Mapping[Key, tuple[str, str]],
        status: StatusWriter,
    ) -> None:
        """`waiting`: those whose pool is not ours, with their uid and pool."""
        self._store = store
        self._clock = clock
        self._pools = pools
        self._waiting = waiting
        self._some = asyncio.Event()
        self._status = status
        self._seen: dict[str, tuple[int, float]] = {}
        """The version of each leader's lease, and since when it is that."""

    def changed(self) -> None:
        """Others may be waiting than before."""
        if self._waiting:
            self._some.set()

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._some.wait()
            await self._clock.sleep(LOOK_SECONDS)
            if not self._waiting:
                self._some.clear()
                continue
            try:
                await self._look()
            except Unavailable:
                continue  # It is said a little later.

    async def _look(self) -> None:
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
        """Elections whose leader renews his lease, or has not been watched for long enough."""
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
