"""Heartbeats and usage, kept in this server's memory; the store gets only who is heard, at most once a second,
and what groups use whose count follows their load."""

import asyncio
import logging
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec import Struct

from mandor.api.tallies import Tallies
from mandor.errors import Conflict, MandorError
from mandor.lib.clock import Clock
from mandor.model.codec import decode_as, encode
from mandor.model.meta import Key, Meta
from mandor.model.record import HeartbeatSummary, HeartbeatSummarySpec, Lease, LeaseSpec
from mandor.model.usage import InstanceUsage, NodeUsage
from mandor.store.base import WRITES_MOST, Delete, Put, Store, Write

log = logging.getLogger("mandor.heartbeats")

R = TypeVar("R", Lease, HeartbeatSummary)

LEASE_SECONDS = 10.0
RENEW_SHARE = 0.2
"""A lease is renewed when so much of it has passed."""
HEARD_SECONDS = 15.0
"""A node is heard until so long after its last heartbeat; agents beat every ten seconds, more or less."""
TICK_SECONDS = 1.0


class Report(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """One heartbeat. A newer agent may tell more than this server understands."""

    cluster: str = ""
    """The id of the cluster the agent belongs to; a server of another one refuses."""
    usage: NodeUsage = NodeUsage()
    instances: dict[str, InstanceUsage] = {}
    """By `namespace/name`."""


class UsageReport(Struct, frozen=True, omit_defaults=True, kw_only=True):
    node: str
    age_seconds: float
    usage: NodeUsage = NodeUsage()
    instances: dict[str, InstanceUsage] = {}


@dataclass(slots=True)
class _Heard:
    at: float
    report: bytes
    """Encoded: thousands of reports that live for ten seconds each would keep the garbage collector busy."""


class Heartbeats:
    """What the agents told this server. `run` keeps the server's lease and hearing in the store."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        server_id: str,
        address: str,
        *,
        tick_seconds: float = TICK_SECONDS,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._store = store
        self._clock = clock
        self.server_id = server_id
        self._address = address
        self._tick_seconds, self._lease_seconds = tick_seconds, lease_seconds
        self._renew_seconds = lease_seconds * RENEW_SHARE
        self._heard: dict[str, _Heard] = {}
        self._tallies = Tallies(server_id)
        self._lease: Lease | None = None
        self._hearing: HeartbeatSummary | None = None
        self._others = True
        """Whether other nodes are heard than the hearing says."""
        self._renewals = 0
        self._renewed_at = 0.0

    def beat(self, node: str, report: Report) -> None:
        heard = self._heard.get(node)
        if heard is None:
            self._others = True
            self._heard[node] = _Heard(self._clock.monotonic(), encode(report))
        else:
            heard.at, heard.report = self._clock.monotonic(), encode(report)
        self._tallies.heard(node, report.instances)

    def usage(self, node: str) -> UsageReport | None:
        """What the node reported last; None: it is not heard here."""
        heard = self._heard.get(node)
        return self._describe(node, heard) if heard is not None else None

    def all_usage(self) -> list[UsageReport]:
        return [self._describe(node, heard) for node, heard in sorted(self._heard.items())]

    def forget(self, node: str) -> None:
        if self._heard.pop(node, None) is not None:
            self._others = True
        self._tallies.forget(node)

    def _describe(self, node: str, heard: _Heard) -> UsageReport:
        age = round(self._clock.monotonic() - heard.at, 3)
        report = decode_as(heard.report, Report)
        return UsageReport(node=node, age_seconds=age, usage=report.usage, instances=report.instances)

    # What the store gets.

    async def run(self) -> None:
        """Renew the lease and write the hearing, until cancelled; then take both back."""
        try:
            while True:
                try:
                    await self.tick()
                except Conflict:
                    self._lease = self._hearing = None
                except MandorError as error:
                    # Whether it was stored is not known: read it back, and say it again.
                    self._lease = self._hearing = None
                    log.warning("heartbeats cannot be summed up: %s", error)
                await self._clock.sleep(self._tick_seconds)
        finally:
            await self._leave()

    def _lease_is_due(self, now: float) -> bool:
        return now - self._renewed_at >= self._renew_seconds

    async def tick(self) -> None:
        """One round: silent nodes are dropped, and what changed is committed."""
        now = self._clock.monotonic()
        for node in [node for node, heard in self._heard.items() if now - heard.at > HEARD_SECONDS]:
            self.forget(node)
        if self._lease is None:
            await self._read_back()
        writes: list[Write] = []
        lease = self._next_lease(now)
        if lease is not None:
            writes.append(Put(lease))
        hearing = self._next_hearing()
        if hearing is not None:
            writes.append(Put(hearing))
        writes += (await self._tallies.writes(self._store, now))[: WRITES_MOST - 2]
        if not writes:
            return
        revision = await self._store.commit(*writes)
        if lease is not None:
            self._lease = await self._kept(lease, revision)
            self._renewed_at = now
        if hearing is not None:
            self._hearing = await self._kept(hearing, revision)

    async def _kept(self, written: R, revision: int) -> R:
        """As it is stored; a new object was given its uid there."""
        if written.meta.uid:
            return written.stamped(version=revision)
        found = await self._store.get(written.key)
        return found if isinstance(found, type(written)) else written

    async def _read_back(self) -> None:
        lease = await self._store.get(Key("lease", "", self._lease_name))
        hearing = await self._store.get(Key("hearing", "", self.server_id))
        self._lease = lease if isinstance(lease, Lease) else None
        self._hearing = hearing if isinstance(hearing, HeartbeatSummary) else None
        self._others = True
        self._renewed_at = -self._renew_seconds

    @property
    def _lease_name(self) -> str:
        return f"server-{self.server_id}"

    def _next_lease(self, now: float) -> Lease | None:
        if self._lease is not None and not self._lease_is_due(now):
            return None
        self._renewals += 1
        spec = LeaseSpec(self.server_id, self._lease_seconds, self._renewals, self._address)
        if self._lease is None:
            return Lease(meta=Meta(name=self._lease_name), spec=spec)
        # A restarted server starts counting anew, and an observer sees any other number as alive.
        if spec.renewals <= self._lease.spec.renewals:
            self._renewals = self._lease.spec.renewals + 1
            spec = msgspec.structs.replace(spec, renewals=self._renewals)
        return self._lease.changed(spec=spec)

    def _next_hearing(self) -> HeartbeatSummary | None:
        if self._hearing is not None and not self._others:
            return None
        self._others = False
        nodes = tuple(sorted(self._heard))
        if self._hearing is None:
            return HeartbeatSummary(meta=Meta(name=self.server_id), spec=HeartbeatSummarySpec(nodes))
        return None if self._hearing.spec.nodes == nodes else self._hearing.changed(spec=HeartbeatSummarySpec(nodes))

    async def _leave(self) -> None:
        """So that nobody waits for a lease to run out when the server stops as it should."""
        try:
            await asyncio.shield(asyncio.wait_for(self._take_back(), 2))
        except (MandorError, TimeoutError) as error:
            log.info("the lease runs out by itself: %s", error)

    async def _take_back(self) -> None:
        tallies = await self._tallies.stored(self._store)
        writes: list[Write] = [
            Delete(each.key, each.meta.version)
            for each in (self._lease, self._hearing, *tallies[: WRITES_MOST - 2])
            if each is not None
        ]
        if writes:
            await self._store.commit(*writes)
