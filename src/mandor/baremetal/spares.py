"""Spares: places machines, has the pipeline create them, waits until they are ready, and deletes them again.

The state of each spare is stored before and after every step, so that another leader can continue. After a
failure, all machines are deleted and all resources released before the spare itself is marked as failed.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial

from mandor.baremetal.request_plan import outdated
from mandor.baremetal.settings import VmRequestSettings
from mandor.baremetal.spare_maker import SpareFailed, SpareMaker
from mandor.baremetal.spare_record import SpareRecord
from mandor.baremetal.spare_remover import SpareRemover
from mandor.baremetal.targets import Target
from mandor.errors import MandorError, NotFound
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.lib.quantity import Seconds
from mandor.lib.tasks import Background
from mandor.lib.turns import in_turns
from mandor.model.meta import Key
from mandor.model.spare import Spare, SparePhase
from mandor.store.base import WRITES_MOST, Change, Delete, Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder

log = logging.getLogger(__name__)

LOOK_SECONDS = 60.0
BACKOFF = Backoff(first_seconds=2.0, most_seconds=120.0, jitter=0.3)


class Spares:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        recorder: Recorder,
        targets: Mapping[str, Target],
        settings: VmRequestSettings | None = None,
    ) -> None:
        self._store, self._clock, self._targets = store, clock, targets
        self._settings = settings or VmRequestSettings()
        self._record = SpareRecord(store, clock, recorder)
        self._maker = SpareMaker(store, clock, self._record)
        self._remover = SpareRemover(store, clock, self._record, targets, self._pause)
        self._mirror = Mirror(store, Spare.kind)
        self._changed = asyncio.Event()
        self._driven: dict[Key, asyncio.Task[None]] = {}
        self._waiting: dict[Key, set[asyncio.Event]] = {}

    async def run(self) -> None:
        """Process spares until cancelled."""
        self._mirror.listen(self._notice)
        async with self._mirror, Background() as background:
            await self._mirror.synced()
            background.start(self._forget(), "past spares")
            while True:
                self._changed.clear()
                for each in self._known():
                    if not each.ended and each.key not in self._driven:
                        task = self._driven[each.key] = background.start(self._drive(each.key), str(each.key))
                        task.add_done_callback(partial(self._over, each.key))
                await self._changed.wait()

    def _known(self) -> list[Spare]:
        return [each for each in self._mirror.items() if isinstance(each, Spare)]

    def _notice(self, changes: Sequence[Change]) -> None:
        self._changed.set()
        for change in changes:
            before, after = change.before, change.after
            if isinstance(after, Spare) and not (isinstance(before, Spare) and before.spec == after.spec):
                for wake in self._waiting.get(after.key, ()):
                    wake.set()

    def _over(self, key: Key, task: asyncio.Task[None]) -> None:
        self._driven.pop(key, None)
        self._changed.set()

    async def _forget(self) -> None:
        """Delete old spares until cancelled."""
        settings = self._settings
        while True:
            over = [each for each in self._known() if each.ended]
            now = self._clock.now()
            old = await in_turns(outdated(over, settings.spares_kept_most, settings.spares_kept_seconds, now))
            try:
                for start in range(0, len(old), WRITES_MOST):
                    some = old[start : start + WRITES_MOST]
                    await self._store.commit(*(Delete(each.key, each.meta.version) for each in some))
            except MandorError as error:
                log.warning("cannot delete old spares: %s", error)
            await self._clock.sleep(LOOK_SECONDS)

    async def _drive(self, key: Key) -> None:
        failures = 0
        while True:
            try:
                spare = await self._record.read(key)
                if spare.ended:
                    return
                await self._advance(spare)
                failures = 0
            except NotFound:
                return
            except MandorError as error:
                failures += 1
                log.warning("%s is retried later: %s", key, error)
                await self._clock.sleep(BACKOFF.pause(failures))

    async def _advance(self, spare: Spare) -> None:
        phase = spare.status.phase
        if phase in {"Failing", "Releasing"}:
            await self._remover.remove_all(spare)
            over: SparePhase = "Failed" if phase == "Failing" else "Released"
            await self._record.move(spare.key, over, spare.status.message)
        elif spare.spec.released:
            await self._record.move(spare.key, "Releasing", spare.spec.released)
        elif phase == "Ready":
            await self._keep(spare)
        else:
            await self._prepare(spare)

    async def _prepare(self, spare: Spare) -> None:
        """Make the machines until all are ready, one has failed, or the spare is released."""
        target = self._targets.get(spare.spec.cluster)
        if target is None:
            await self._record.move(spare.key, "Failing", f"there is no pipeline for the cluster {spare.spec.cluster}")
            return
        making = asyncio.ensure_future(self._maker.make_all(spare, target))
        leaving = asyncio.ensure_future(self._called_off(spare))
        try:
            await asyncio.wait({making, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            making.cancel()
            leaving.cancel()
            made, left = await asyncio.gather(making, leaving, return_exceptions=True)
        if isinstance(made, SpareFailed):
            await self._record.move(spare.key, "Failing", str(made))
        elif made is None:
            await self._record.move(spare.key, "Ready", "all machines have joined and are ready")
        else:
            for error in (made, left):
                if isinstance(error, Exception):
                    raise error

    async def _called_off(self, spare: Spare) -> None:
        while not spare.spec.released:
            await self._pause(spare, LOOK_SECONDS)
            spare = await self._record.read(spare.key)

    async def _keep(self, spare: Spare) -> None:
        """Wait until the spare expires or is released."""
        after = spare.spec.release_after
        left = spare.status.since + after - self._clock.now() if after else LOOK_SECONDS
        if left > 0:
            await self._pause(spare, min(left, LOOK_SECONDS))
        else:
            await self._record.move(spare.key, "Releasing", f"{Seconds(after)} are over")

    async def _pause(self, spare: Spare, seconds: float) -> None:
        """Wait for at most `seconds`, or until the spare's spec changes."""
        known = self._mirror.get(spare.key)
        if isinstance(known, Spare) and known.meta.version > spare.meta.version and known.spec != spare.spec:
            return
        wake = asyncio.Event()
        waiting = self._waiting.setdefault(spare.key, set())
        waiting.add(wake)
        alarm = self._clock.alarm(seconds, wake.set)
        try:
            await wake.wait()
        finally:
            alarm.cancel()
            waiting.discard(wake)
            if not waiting:
                self._waiting.pop(spare.key, None)
