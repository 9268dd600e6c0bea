"""Heartbeats: receives the heartbeats of nodes and keeps their usage in memory.

The store gets a summary, at most once a second: the nodes whose heartbeats arrive here, and the usage of autoscaled
groups.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec import Struct

from mandor.api.applied import WAIT_SECONDS, AppliedAnswer, AppliedReport, AppliedRevisions, lowest_of
from mandor.api.tallies import Tallies
from mandor.errors import Conflict, MandorError, TooMany
from mandor.lib.clock import Clock
from mandor.model.codec import decode_as, encode
from mandor.model.meta import Key, Meta
from mandor.model.node import Node
from mandor.model.record import HeartbeatSummary, HeartbeatSummarySpec, Lease, LeaseSpec
from mandor.model.usage import InstanceUsage, NodeUsage
from mandor.store.base import WRITES_MOST, Delete, Put, Store, Write

log = logging.getLogger("mandor.heartbeats")

R = TypeVar("R", Lease, HeartbeatSummary)

LEASE_SECONDS = 10.0
RENEW_SHARE = 0.2
"""Share of a lease's duration after which it is renewed."""
LIVE_SECONDS = 15.0
"""Time after its last heartbeat at which a node is dropped; agents send one about every ten seconds."""
GATEWAYS_MOST = 1000
TICK_SECONDS = 1.0
OTHERS_SECONDS = 0.25
"""Seconds between looks at the summaries of other servers while a node waits for the data paths."""


class Report(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """One heartbeat. A newer agent may send fields that this server ignores."""

    cluster: str = ""
    """The id of the agent's cluster; a server of another cluster refuses the heartbeat."""
    usage: NodeUsage = NodeUsage()
    instances: dict[str, InstanceUsage] = {}
    """Usage of instances, by `namespace/name`."""


class UsageReport(Struct, frozen=True, omit_defaults=True, kw_only=True):
    node: str
    age_seconds: float
    usage: NodeUsage = NodeUsage()
    instances: dict[str, InstanceUsage] = {}


@dataclass(slots=True)
class _LastReport:
    at: float
    report: bytes
    """Encoded, because thousands of objects that live for ten seconds would cost garbage collections."""


class Heartbeats:
    """The last reports of agents. `run` writes the server's lease and summary to the store."""

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
        self._reports: dict[str, _LastReport] = {}
        self._tallies = Tallies(server_id)
        self._applied = AppliedRevisions(clock)
        self._gateways: dict[str, float] = {}
        """Time of the last report of each gateway."""
        self._lease: Lease | None = None
        self._summary: HeartbeatSummary | None = None
        self._nodes_changed = True
        """Whether the nodes, or what their data paths have applied, differ from the stored summary."""
        self._renewals = 0
        self._renewed_at = 0.0

    def beat(self, node: str, report: Report) -> None:
        last = self._reports.get(node)
        if last is None:
            self._nodes_changed = True
            self._reports[node] = _LastReport(self._clock.monotonic(), encode(report))
        else:
            last.at, last.report = self._clock.monotonic(), encode(report)
        self._tallies.record(node, report.instances)

    async def applied(self, node: str, report: AppliedReport) -> AppliedAnswer:
        """Take what the data path of a node has applied; return what all nodes of all servers have.

        A request with `asks` is answered when all nodes have applied these revisions, or after `WAIT_SECONDS`.
        """
        if report.namespaces is not None and self._applied.report(node, report.namespaces):
            self._nodes_changed = True
        if not report.asks:
            return AppliedAnswer(complete=self._applied.complete)
        deadline = self._clock.monotonic() + WAIT_SECONDS
        while True:
            answer = await self._answer(report.asks)
            left = deadline - self._clock.monotonic()
            if answer.reaches(report.asks) or left <= 0:
                return answer
            if not await self._applied.wait(node, min(left, OTHERS_SECONDS)):
                return answer

    def gateway_applied(self, gateway: str, namespaces: Mapping[str, int]) -> None:
        """Take what a gateway has applied; it counts as a data path until it has been silent for `LIVE_SECONDS`."""
        name = f"gateway:{gateway}"  # a node has no colon in its name
        if name not in self._gateways and len(self._gateways) >= GATEWAYS_MOST:
            raise TooMany(f"{GATEWAYS_MOST} gateways report to this server already")
        self._gateways[name] = self._clock.monotonic()
        if self._applied.report(name, namespaces):
            self._nodes_changed = True

    async def _answer(self, asks: Mapping[str, int]) -> AppliedAnswer:
        found = (await self._store.list(HeartbeatSummary.kind)).items
        others = [
            each.spec.applied
            for each in found
            if isinstance(each, HeartbeatSummary) and each.meta.name != self.server_id
        ]
        lowest = lowest_of([self._applied.lowest(), *others])
        return AppliedAnswer(
            complete=self._applied.complete, lowest={name: lowest[name] for name in asks if name in lowest}
        )

    def usage(self, node: str) -> UsageReport | None:
        """Return the last report of a node; None: its heartbeats do not arrive here."""
        last = self._reports.get(node)
        return self._describe(node, last) if last is not None else None

    def all_usage(self) -> list[UsageReport]:
        return [self._describe(node, last) for node, last in sorted(self._reports.items())]

    def forget(self, node: str) -> None:
        if self._reports.pop(node, None) is not None:
            self._nodes_changed = True
        self._tallies.forget(node)
        self._applied.forget(node)

    def _describe(self, node: str, last: _LastReport) -> UsageReport:
        age = round(self._clock.monotonic() - last.at, 3)
        report = decode_as(last.report, Report)
        return UsageReport(node=node, age_seconds=age, usage=report.usage, instances=report.instances)

    # Writes to the store.

    async def run(self) -> None:
        """Renew the lease and write the summary until cancelled; then delete both."""
        try:
            with suppress(MandorError):
                if not (await self._store.list(Node.kind)).items:
                    self._applied.begin_without_nodes()
            while True:
                try:
                    await self.tick()
                except Conflict:
                    self._lease = self._summary = None
                except MandorError as error:
                    # The commit may have succeeded: read both again, and repeat it.
                    self._lease = self._summary = None
                    log.warning("cannot write the summary of heartbeats: %s", error)
                await self._clock.sleep(self._tick_seconds)
        finally:
            await self._release()

    def _lease_is_due(self, now: float) -> bool:
        return now - self._renewed_at >= self._renew_seconds

    async def tick(self) -> None:
        """Drop silent nodes, and commit the changes."""
        now = self._clock.monotonic()
        for node in [node for node, last in self._reports.items() if now - last.at > LIVE_SECONDS]:
            self.forget(node)
        for gateway in [name for name, at in self._gateways.items() if now - at > LIVE_SECONDS]:
            del self._gateways[gateway]
            self._applied.forget(gateway)
            self._nodes_changed = True
        if self._lease is None:
            await self._read_back()
        writes: list[Write] = []
        lease = self._next_lease(now)
        if lease is not None:
            writes.append(Put(lease))
        summary = self._next_summary()
        if summary is not None:
            writes.append(Put(summary))
        writes += (await self._tallies.writes(self._store, now))[: WRITES_MOST - 2]
        if not writes:
            return
        revision = await self._store.commit(*writes)
        if lease is not None:
            self._lease = await self._as_stored(lease, revision)
            self._renewed_at = now
        if summary is not None:
            self._summary = await self._as_stored(summary, revision)

    async def _as_stored(self, written: R, revision: int) -> R:
        """Return the written object as it is stored: the store gives a new object its uid."""
        if written.meta.uid:
            return written.stamped(version=revision)
        found = await self._store.get(written.key)
        return found if isinstance(found, type(written)) else written

    async def _read_back(self) -> None:
        lease = await self._store.get(Key("lease", "", self._lease_name))
        summary = await self._store.get(Key("hearing", "", self.server_id))
        self._lease = lease if isinstance(lease, Lease) else None
        self._summary = summary if isinstance(summary, HeartbeatSummary) else None
        self._nodes_changed = True
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
        # A restarted server starts at 1 again, and observers take every changed number as a renewal.
        if spec.renewals <= self._lease.spec.renewals:
            self._renewals = self._lease.spec.renewals + 1
            spec = msgspec.structs.replace(spec, renewals=self._renewals)
        return self._lease.changed(spec=spec)

    def _next_summary(self) -> HeartbeatSummary | None:
        if self._summary is not None and not self._nodes_changed:
            return None
        self._nodes_changed = False
        spec = HeartbeatSummarySpec(tuple(sorted(self._reports)), self._applied.lowest())
        if self._summary is None:
            return HeartbeatSummary(meta=Meta(name=self.server_id), spec=spec)
        return None if self._summary.spec == spec else self._summary.changed(spec=spec)

    async def _release(self) -> None:
        """Delete the lease of a server that stops, so that other servers need not wait for its expiry."""
        try:
            await asyncio.shield(asyncio.wait_for(self._delete(), 2))
        except (MandorError, TimeoutError) as error:
            log.info("cannot delete the lease, which expires by itself: %s", error)

    async def _delete(self) -> None:
        tallies = await self._tallies.stored(self._store)
        writes: list[Write] = [
            Delete(each.key, each.meta.version)
            for each in (self._lease, self._summary, *tallies[: WRITES_MOST - 2])
            if each is not None
        ]
        if writes:
            await self._store.commit(*writes)
