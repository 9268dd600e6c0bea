"""Writes preemptions: stops the victims and records the nomination, all in one commit or not at all."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from mandor.errors import Conflict, Unavailable
from mandor.lib.clock import Clock
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.model.phase import Phase
from mandor.placement.framework.identity import names_shown
from mandor.scheduler.metrics import SchedulerMetrics
from mandor.scheduler.store_retry import AFTER_OUTAGE, stored_now
from mandor.store.base import WRITES_MOST, Check, Put, Store, Write
from mandor.store.recorder import Recorder

log = logging.getLogger(__name__)

PREEMPTED = "Preempted"
COMMITS_MOST = 16
"""Commits in progress at a time."""
TRIES = 5
"""Tries of one commit: agents may update the victims meanwhile."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The room that a preemption makes for an instance."""

    instance: Instance
    node: str
    node_version: int


@dataclass(frozen=True, slots=True)
class Preemption:
    """A decided preemption."""

    claims: tuple[Claim, ...]
    """One claim, or those of a gang."""
    victims: tuple[Instance, ...]
    """Instances to stop, each on the node of a claim."""
    reason: str
    message: str
    at: float
    """Time of the decision, which is also that of the stop orders: the table counts it before they are written."""

    @property
    def nodes(self) -> dict[str, int]:
        """Versions of the nodes, by name."""
        return {each.node: each.node_version for each in self.claims}

    @property
    def name(self) -> str:
        return self.claims[0].instance.meta.name


class Stale(Exception):
    """An object has changed since the decision."""


class Preempting:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        recorder: Recorder,
        metrics: SchedulerMetrics,
        *,
        failed: Callable[[Preemption], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._recorder = recorder
        self._metrics = metrics
        self._failed = failed
        self._room = asyncio.Semaphore(COMMITS_MOST)

    async def carry_out(self, order: Preemption) -> None:
        """Write a preemption, in one commit if it fits; later commits are skipped after a failed one."""
        for part in _parts(order):
            async with self._room:
                try:
                    victims = await self._write(part)
                except Stale as stale:
                    log.info("%s does not preempt on %s: %s", order.name, ", ".join(part.nodes), stale)
                    self._failed(order)
                    return
            self._metrics.victims += len(victims)
            self._record_events(part, victims)

    async def _write(self, order: Preemption) -> Sequence[Instance]:
        """Write one part; return the victims that were stopped by it, not those that were stopping already."""
        now, victims = [each.instance for each in order.claims], order.victims
        failures, at = 0, order.at
        for _ in range(TRIES):
            left = _not_stopping(order, victims)
            try:
                await self._store.commit(*self._writes(order, now, left, at))
            except Conflict as error:
                self._check_ours(order, error)
            except Unavailable as error:
                # The commit may have succeeded; the stored objects show that.
                failures += 1
                nodes = ", ".join(order.nodes)
                log.warning("the store is unavailable, the preemption on %s is retried: %s", nodes, error)
                await self._clock.sleep(AFTER_OUTAGE.pause(failures))
            else:
                return left
            now, victims = await self._read_again(order)
            at = self._clock.now()  # A late order must not shorten the grace period.
            written = all(
                each.status.nominated == claim.node for claim, each in zip(order.claims, now, strict=True)
            ) and not _not_stopping(order, victims)
            if written:
                return order.victims  # An earlier commit succeeded, though its reply was lost.
        raise Stale(f"its instances changed during each of {TRIES} tries")

    def _writes(
        self, order: Preemption, now: Sequence[Instance], victims: Sequence[Instance], at: float
    ) -> list[Write]:
        writes: list[Write] = [Check(Key(Node.kind, "", node), version) for node, version in order.nodes.items()]
        for claim, each in zip(order.claims, now, strict=True):
            status = msgspec.structs.replace(
                each.status, reason=order.reason, message=order.message, nominated=claim.node
            )
            writes.append(Put(each.changed(status=status)))
        return [*writes, *(Put(each.stopping(PREEMPTED, at=at)) for each in victims)]

    def _check_ours(self, order: Preemption, conflict: Conflict) -> None:
        key = conflict.facts.get("key")
        if key in {Key(Node.kind, "", node) for node in order.nodes}:
            raise Stale("the node has changed")
        if key not in {each.key for each in (*(claim.instance for claim in order.claims), *order.victims)}:
            raise conflict  # The fence: another scheduler leads now.

    async def _read_again(self, order: Preemption) -> tuple[list[Instance], tuple[Instance, ...]]:
        now = []
        for claim in order.claims:
            instance = await stored_now(self._store, self._clock, claim.instance.key)
            if not isinstance(instance, Instance) or instance.meta.uid != claim.instance.meta.uid:
                raise Stale("the pending instance is gone")
            if not _waits(instance):
                raise Stale("the instance is not pending any more")
            now.append(instance)
        found = [await stored_now(self._store, self._clock, each.key) for each in order.victims]
        uids = {each.meta.uid for each in order.victims}
        return now, tuple(each for each in found if isinstance(each, Instance) and each.meta.uid in uids)

    def _record_events(self, order: Preemption, victims: Sequence[Instance]) -> None:
        for claim in {each.node: each for each in reversed(order.claims)}.values():
            mine, gone = claim.instance, [each for each in victims if each.node == claim.node]
            if not gone:
                continue
            names = names_shown((each.key for each in gone), mine.meta.namespace)
            self._recorder.note(mine, "Preempts", f"takes the place of {names} on {claim.node}", node=claim.node)
            for each in gone:
                whom = names_shown((mine.key,), each.meta.namespace)
                text = f"makes room on {claim.node} for {whom}, which has a higher priority"
                self._recorder.note(each, PREEMPTED, text, type="warning", node=claim.node)


def _parts(order: Preemption) -> Iterator[Preemption]:
    """Split a preemption into commits; a claim comes with or before its victims."""
    claims: list[Claim] = []
    victims: list[Instance] = []
    seen: set[str] = set()
    for claim in order.claims:
        mine = [each for each in order.victims if each.node == claim.node and claim.node not in seen]
        seen.add(claim.node)
        if claims and 2 * (len(claims) + 1) + len(victims) + len(mine) > WRITES_MOST:
            yield replace(order, claims=tuple(claims), victims=tuple(victims))
            claims, victims = [], []
        claims.append(claim)
        victims += mine
    yield replace(order, claims=tuple(claims), victims=tuple(victims))


def _not_stopping(order: Preemption, victims: Sequence[Instance]) -> list[Instance]:
    """Return the victims that are on their nodes and not stopping yet."""
    return [each for each in victims if each.node in order.nodes and each.spec.stop is None and not each.phase.over]


def _waits(instance: Instance) -> bool:
    return instance.phase is Phase.PENDING and not instance.spec.node and instance.spec.stop is None
