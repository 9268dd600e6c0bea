"""The decision log: stores remarkable decisions and a sample of the others, in the background."""

import asyncio
import logging
from collections.abc import Sequence

from msgspec.structs import replace

from mandor.errors import Conflict, Invalid, MandorError
from mandor.lib.clock import Clock
from mandor.model.decision import MESSAGE_MOST, DecisionRecord, DecisionSpec, NodeScore
from mandor.model.meta import Meta
from mandor.placement.built_in import BUILT_IN
from mandor.placement.decision import Decision
from mandor.placement.explain import best_nodes
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.runtime import PluginFault
from mandor.placement.framework.watch import Overrun
from mandor.placement.table import Table
from mandor.scheduler.attempt import Attempt
from mandor.scheduler.watchdog import Watchdog
from mandor.store.base import Put, Store

log = logging.getLogger(__name__)

PAUSE_SECONDS = 1.0
"""Seconds between two writes."""
REMARKABLE_MOST = 64
"""Decisions stored per second that are relaxed, refused, placed after a refusal, preempting or faulty."""
ORDINARY_MOST = 16
"""Ordinary decisions stored per second."""
SCORED_NODES = 20_000
"""Nodes per second whose scores are computed again for the stored decisions."""


class DecisionLog:
    """`note` is called for every decision and mostly returns after two comparisons."""

    def __init__(self, store: Store, clock: Clock, watchdog: Watchdog) -> None:
        self._store = store
        self._clock = clock
        self._watchdog = watchdog
        self._kept: dict[tuple[str, str], DecisionSpec] = {}
        self._remarkable = REMARKABLE_MOST
        self._ordinary = ORDINARY_MOST
        self._scored = SCORED_NODES
        self._noted = asyncio.Event()

    @property
    def full(self) -> bool:
        """Return whether ordinary decisions are neither stored at present nor logged."""
        return not self._ordinary and not log.isEnabledFor(logging.DEBUG)

    def note(self, attempt: Attempt, profile: Profile, decision: Decision, table: Table) -> None:
        """Note a decision before it is counted in the table."""
        if log.isEnabledFor(logging.DEBUG):
            _log_decision(attempt, profile, decision)
        if decision.node and not (attempt.failures or decision.relaxed or decision.message):
            if not self._ordinary:
                return
            self._ordinary -= 1
        elif not self._remarkable:
            return
        else:
            self._remarkable -= 1
        self._noted.set()
        key = decision.key
        before = self._kept.get((key.namespace, key.name))
        self._kept[key.namespace, key.name] = DecisionSpec(
            at=self._clock.now(),
            uid=attempt.uid,
            workload=attempt.request.identity.workload,
            profile=profile.name,
            node=decision.node,
            message=decision.message[:MESSAGE_MOST] or (before.message if before is not None else ""),
            relaxed=decision.relaxed,
            form=_form(decision),
            victims=tuple(each.name for each in decision.victims if each.namespace == key.namespace),
            fault=decision.fault,
            attempts=attempt.number,
            best=self._best(profile, decision, table),
            versions=profile.versions,
        )

    def _best(self, profile: Profile, decision: Decision, table: Table) -> tuple[NodeScore, ...]:
        """Return the best nodes by scoring again; not with third-party plugins, which may count their calls."""
        if not decision.node or self._scored <= 0 or not _is_built_in(profile):
            return ()
        self._scored -= len(table) + 1
        watchdog = self._watchdog
        trail, watchdog.trail = watchdog.trail, None  # These calls are not part of the decision.
        try:
            return tuple(watchdog.run(lambda: best_nodes(profile, decision, table.snapshot(), watch=watchdog)))
        except (PluginFault, Overrun):
            return ()  # The decision stands; the scores are information only.
        finally:
            watchdog.end()
            watchdog.trail = trail

    async def run(self) -> None:
        """Write the noted decisions once per second, until cancelled."""
        while True:
            await self._noted.wait()
            await self._clock.sleep(PAUSE_SECONDS)
            self._noted.clear()
            try:
                await self.flush()
            except MandorError as error:
                log.warning("%d decisions are not stored: %s", len(self._kept), error)
                self._kept.clear()
            self._remarkable, self._ordinary, self._scored = REMARKABLE_MOST, ORDINARY_MOST, SCORED_NODES

    async def flush(self) -> None:
        kept, self._kept = self._kept, {}
        records = [await self._record(namespace, name, spec) for (namespace, name), spec in kept.items()]
        if not records:
            return
        try:
            await self._store.commit(*(Put(each) for each in records))
        except (Conflict, Invalid):
            await self._one_by_one(records)

    async def _one_by_one(self, records: Sequence[DecisionRecord]) -> None:
        """Write records one at a time, so that one that was deleted meanwhile does not affect the others."""
        for each in records:
            try:
                await self._store.commit(Put(each))
            except (Conflict, Invalid) as error:
                log.debug("the decision about %s is not stored: %s", each.meta.name, error)

    async def _record(self, namespace: str, name: str, spec: DecisionSpec) -> DecisionRecord:
        """Return the record that replaces the stored one; the message of an earlier refusal is kept after a bind."""
        meta = Meta(name=name, namespace=namespace, labels={"workload": spec.workload} if spec.workload else {})
        stored = await self._store.get(DecisionRecord(meta=meta, spec=spec).key)
        if not isinstance(stored, DecisionRecord):
            return DecisionRecord(meta=meta, spec=spec)
        if not spec.message and stored.spec.uid == spec.uid:
            spec = replace(spec, message=stored.spec.message)
        return stored.changed(spec=spec)


def _log_decision(attempt: Attempt, profile: Profile, decision: Decision) -> None:
    key = decision.key
    facts = {
        "decision": f"{attempt.uid}.{attempt.number}",
        "namespace": key.namespace,
        "instance": key.name,
        "workload": attempt.request.identity.workload,
        "profile": profile.name,
        "node": decision.node,
    }
    log.debug("%s: %s", key.name, decision.node or decision.message, extra={"facts": facts})


def _form(decision: Decision) -> str:
    shape = decision.request.shape if decision.request is not None else None
    return shape.form_name if shape is not None and shape.variant else ""


def _is_built_in(profile: Profile) -> bool:
    return all(BUILT_IN.get(each.plugin.name) is type(each.plugin) for each in profile.enabled)
