"""Keeps decisions for those who ask later: the remarkable ones, and a few of the others, written in the background."""

import asyncio
import logging
from collections.abc import Sequence

from msgspec.structs import replace

from mandor.errors import Conflict, Invalid, MandorError
from mandor.lib.clock import Clock
from mandor.model.decision import MESSAGE_MOST, DecisionSpec, KeptDecision, NodeScore
from mandor.model.meta import Meta
from mandor.placement.built_in import BUILT_IN
from mandor.placement.cycle import Decision
from mandor.placement.explain import best_nodes
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.runtime import PluginFault
from mandor.placement.framework.watch import Overrun
from mandor.placement.table import Table
from mandor.scheduler.queue import Entry
from mandor.scheduler.watchdog import Watchdog
from mandor.store.base import Put, Store

log = logging.getLogger(__name__)

PAUSE_SECONDS = 1.0
REMARKABLE_MOST = 64
"""So many are kept of each second: relaxed, refused, placed after a refusal, with victims, with a fault."""
ORDINARY_MOST = 16
SCORED_NODES = 20_000
"""The scores of so many nodes are worked out again in each second, for the decisions that are kept."""


class DecisionLog:
    """`note` is called for every decision, and mostly does nothing: it costs a comparison or two."""

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
        """Of ordinary decisions no more are kept for now, and nobody reads them in the log."""
        return not self._ordinary and not log.isEnabledFor(logging.DEBUG)

    def note(self, entry: Entry, profile: Profile, decision: Decision, table: Table) -> None:
        """A decision that has just been made, and is not counted yet."""
        if log.isEnabledFor(logging.DEBUG):
            _tell(entry, profile, decision)
        if decision.node and not (entry.attempts or decision.relaxed or decision.message):
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
            uid=entry.uid,
            workload=entry.request.identity.workload,
            profile=profile.name,
            node=decision.node,
            message=decision.message[:MESSAGE_MOST] or (before.message if before is not None else ""),
            relaxed=decision.relaxed,
            form=_form(decision),
            victims=tuple(each.name for each in decision.victims if each.namespace == key.namespace),
            fault=decision.fault,
            attempts=entry.attempts + 1,
            best=self._best(profile, decision, table),
            versions=profile.versions,
        )

    def _best(self, profile: Profile, decision: Decision, table: Table) -> tuple[NodeScore, ...]:
        """By asking once more; others' plugins, which may count how often they are asked, are not."""
        if not decision.node or self._scored <= 0 or not _our_own(profile):
            return ()
        self._scored -= len(table) + 1
        watchdog = self._watchdog
        trail, watchdog.trail = watchdog.trail, None  # Nothing is decided by it.
        try:
            return tuple(watchdog.run(lambda: best_nodes(profile, decision, table.snapshot(), watch=watchdog)))
        except (PluginFault, Overrun):
            return ()  # It is decided; the scores are for people.
        finally:
            watchdog.end()
            watchdog.trail = trail

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._noted.wait()
            await self._clock.sleep(PAUSE_SECONDS)
            self._noted.clear()
            try:
                await self.flush()
            except MandorError as error:
                log.warning("%d decisions are not kept: %s", len(self._kept), error)
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

    async def _one_by_one(self, records: Sequence[KeptDecision]) -> None:
        """One that was cleared away meanwhile must not take the others with it."""
        for each in records:
            try:
                await self._store.commit(Put(each))
            except (Conflict, Invalid) as error:
                log.debug("the decision about %s is not kept: %s", each.meta.name, error)

    async def _record(self, namespace: str, name: str, spec: DecisionSpec) -> KeptDecision:
        """In place of the one before, whose refusal stays known when there is a node now."""
        meta = Meta(name=name, namespace=namespace, labels={"workload": spec.workload} if spec.workload else {})
        stored = await self._store.get(KeptDecision(meta=meta, spec=spec).key)
        if not isinstance(stored, KeptDecision):
            return KeptDecision(meta=meta, spec=spec)
        if not spec.message and stored.spec.uid == spec.uid:
            spec = replace(spec, message=stored.spec.message)
        return stored.changed(spec=spec)


def _tell(entry: Entry, profile: Profile, decision: Decision) -> None:
    key = decision.key
    facts = {
        "decision": f"{entry.uid}.{entry.attempts + 1}",
        "namespace": key.namespace,
        "instance": key.name,
        "workload": entry.request.identity.workload,
        "profile": profile.name,
        "node": decision.node,
    }
    log.debug("%s: %s", key.name, decision.node or decision.message, extra={"facts": facts})


def _form(decision: Decision) -> str:
    shape = decision.request.shape if decision.request is not None else None
    return shape.form_name if shape is not None and shape.variant else ""


def _our_own(profile: Profile) -> bool:
    return all(BUILT_IN.get(each.plugin.name) is type(each.plugin) for each in profile.enabled)
