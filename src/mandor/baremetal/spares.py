"""Spares: a machine is found for each, the pipeline makes it, it is watched until it is ready, and taken away again.

Where each of them is stands in the store before and after every step, so another leader goes on from there. Whatever
fails, all that was made is taken away, and all that was held is given back, before the spare itself has failed.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from mandor.baremetal.pipeline import Run, VmOrder
from mandor.baremetal.targets import Target
from mandor.errors import Conflict, Invalid, MandorError, NotFound, Unavailable
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.lib.quantity import Seconds
from mandor.lib.tasks import Background
from mandor.model.meta import Key, Meta
from mandor.model.spare import Spare, SparePhase, SpareVm
from mandor.model.vm_task import Step, VmTask, VmTaskSpec, VmTaskStatus
from mandor.store.base import Change, Put, Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder
from mandor.store.tasks import change_task, task_key

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
PLACE_SECONDS = 300.0
TRIES = 20
BACKOFF = Backoff(first_seconds=2.0, most_seconds=120.0, jitter=0.3)
REMOVE_BACKOFF = Backoff(first_seconds=2.0, most_seconds=600.0, jitter=0.3)


class Spares:
    def __init__(self, store: Store, clock: Clock, recorder: Recorder, targets: Mapping[str, Target]) -> None:
        self._store, self._clock, self._recorder, self._targets = store, clock, recorder, targets
        self._changed = asyncio.Event()
        self._driven: dict[Key, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """For ever."""
        async with Mirror(self._store, Spare.kind) as mirror, Background() as tasks:
            mirror.listen(self._notice)
            await mirror.synced()
            while True:
                self._changed.clear()
                for each in list(mirror.items()):
                    if isinstance(each, Spare) and not each.ended and each.key not in self._driven:
                        task = self._driven[each.key] = tasks.start(self._drive(each.key), str(each.key))
                        task.add_done_callback(partial(self._over, each.key))
                await self._changed.wait()

    def _notice(self, changes: Sequence[Change]) -> None:
        self._changed.set()

    def _over(self, key: Key, task: asyncio.Task[None]) -> None:
        self._driven.pop(key, None)
        self._changed.set()

    async def _drive(self, key: Key) -> None:
        failures = 0
        while True:
            try:
                spare = await self._read(key)
                if spare.ended:
                    return
                await self._advance(spare)
                failures = 0
            except NotFound:
                return
            except MandorError as error:
                failures += 1
                log.warning("%s waits: %s", key, error)
                await self._clock.sleep(BACKOFF.pause(failures))

    async def _advance(self, spare: Spare) -> None:
        phase = spare.status.phase
        if phase in {"Failing", "Releasing"}:
            await asyncio.gather(*(self._remove(spare.key, index) for index in range(len(spare.status.vms))))
            over: SparePhase = "Failed" if phase == "Failing" else "Released"
            await self._move(spare.key, over, spare.status.message)
        elif spare.spec.released:
            await self._move(spare.key, "Releasing", spare.spec.released)
        elif phase == "Ready":
            await self._keep(spare)
        else:
            await self._prepare(spare)

    # Making them.

    async def _prepare(self, spare: Spare) -> None:
        """Until all are ready, one has failed, or nobody needs them any more."""
        making = asyncio.ensure_future(self._make_all(spare))
        leaving = asyncio.ensure_future(self._released(spare.key))
        try:
            await asyncio.wait({making, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (making, leaving):
                task.cancel()
            await asyncio.wait({making, leaving})
        if making.cancelled():
            return
        error = making.exception()
        if error is None:
            await self._move(spare.key, "Ready", "all have joined and are ready")
        elif isinstance(error, MandorError):
            await self._move(spare.key, "Failing", str(error))
        else:
            raise error

    async def _make_all(self, spare: Spare) -> None:
        target = self._targets.get(spare.spec.cluster)
        if target is None:
            raise Invalid(f"there is no pipeline for the cluster {spare.spec.cluster}")
        makings = [asyncio.ensure_future(self._make(spare, index, target)) for index in range(spare.spec.count)]
        try:
            for making in asyncio.as_completed(makings):
                await making
        finally:
            for making in makings:
                making.cancel()
            await asyncio.wait(makings)

    async def _released(self, key: Key) -> None:
        while not (await self._read(key)).spec.released:
            await self._clock.sleep(POLL_SECONDS)

    async def _make(self, spare: Spare, index: int, target: Target) -> None:
        key = spare.key
        vm = spare.status.vms[index]
        if vm.state == "Placing":
            task = await self._placed(spare, vm, target)
            vm = await self._note(key, index, state="Creating", node=task.status.node, address=task.status.address)
        if vm.state == "Creating":
            await self._create(spare, index, vm, target)
            vm = await self._note(key, index, state="Joining", message="")
        if vm.state == "Joining":
            await self._join(key, index, vm, target)
            await self._confirm(vm.task, spare.meta.namespace)
            await self._note(key, index, state="Ready", message="")

    async def _placed(self, spare: Spare, vm: SpareVm, target: Target) -> VmTask:
        key = task_key(vm.task, spare.meta.namespace)
        if await self._store.get(key) is None:
            await self._store.commit(Put(self._task(spare, vm, target)))
        while True:
            task = await self._store.get(key)
            if not isinstance(task, VmTask):
                raise Invalid(f"{vm.name}: its task is gone")
            if task.status.state in {"Placed", "Confirmed"}:
                return task
            if task.ended:
                raise Invalid(f"{vm.name}: {task.status.error or task.status.state}")
            await self._clock.sleep(POLL_SECONDS / 2)

    def _task(self, spare: Spare, vm: SpareVm, target: Target) -> VmTask:
        now, spec = self._clock.now(), spare.spec
        return VmTask(
            meta=Meta(name=vm.task, namespace=spare.meta.namespace),
            spec=VmTaskSpec(
                purpose="spare",
                cpu=spec.cpu,
                memory_mib=spec.memory_mib,
                pool=spec.pool,
                vm=vm.name,
                owner=f"spare/{spare.meta.name}",
                place_seconds=PLACE_SECONDS,
                hold_seconds=min(target.hold_seconds, 30 * 86_400.0),
            ),
            status=VmTaskStatus(since=now, history=(Step("Queued", now, f"for the spare {spare.meta.name}"),)),
        )

    async def _create(self, spare: Spare, index: int, vm: SpareVm, target: Target) -> None:
        for attempt in range(1, target.attempts + 1):
            try:
                async with asyncio.timeout(target.create_seconds):
                    await target.pipeline.create(_order(spare, vm), self._run(spare.key, index, vm))
                return
            except TimeoutError:
                error: MandorError = Unavailable(f"not made within {Seconds(target.create_seconds)}")
            except Unavailable as failed:
                error = failed
            if attempt == target.attempts:
                raise Unavailable(f"{vm.name} was not made in {attempt} tries: {error}") from error
            vm = await self._note(spare.key, index, message=f"try {attempt}: {error}"[:500])
            await self._clock.sleep(BACKOFF.pause(attempt))

    async def _join(self, key: Key, index: int, vm: SpareVm, target: Target) -> None:
        until = vm.since + target.ready_seconds
        while True:
            try:
                waits = await target.ready.check(vm.name)
            except Unavailable as error:
                waits = str(error)
            if not waits:
                return
            if self._clock.now() > until:
                raise Unavailable(f"{vm.name} was not ready within {Seconds(target.ready_seconds)}: {waits}")
            if waits != vm.message:
                vm = await self._note(key, index, message=waits[:500])
            await self._clock.sleep(POLL_SECONDS)

    async def _confirm(self, task: str, namespace: str) -> None:
        def confirm(found: VmTask) -> VmTask:
            if found.status.state == "Confirmed":
                return found
            try:
                return found.moved("Confirmed", self._clock.now(), "its spare is ready")
            except ValueError as error:
                raise Invalid(str(error)) from error

        await change_task(self._store, task_key(task, namespace), confirm)

    # Keeping them, and taking them away.

    async def _keep(self, spare: Spare) -> None:
        until = spare.status.since + spare.spec.release_after
        if spare.spec.release_after and self._clock.now() >= until:
            await self._move(spare.key, "Releasing", f"{Seconds(spare.spec.release_after)} are over")
        else:
            await self._clock.sleep(POLL_SECONDS)

    async def _remove(self, key: Key, index: int) -> None:
        """Until it is gone: room that a virtual machine still takes is not given to others."""
        failures = 0
        while True:
            spare = await self._read(key)
            vm = spare.status.vms[index]
            if vm.state == "Gone":
                return
            try:
                if vm.state != "Placing":
                    await self._delete(spare, index, vm)
                await self._give_back(vm.task, spare.meta.namespace)
                await self._note(key, index, state="Gone", message="")
                return
            except (MandorError, TimeoutError) as error:
                failures += 1
                log.warning("%s: %s cannot be taken away: %s", key, vm.name, error)
                await self._note(key, index, message=f"cannot be taken away: {error}"[:500])
                await self._clock.sleep(REMOVE_BACKOFF.pause(failures))

    async def _delete(self, spare: Spare, index: int, vm: SpareVm) -> None:
        target = self._targets.get(spare.spec.cluster)
        if target is None:
            raise Unavailable(f"there is no pipeline for the cluster {spare.spec.cluster} any more")
        async with asyncio.timeout(target.create_seconds):
            await target.pipeline.delete(_order(spare, vm), self._run(spare.key, index, vm))

    async def _give_back(self, task: str, namespace: str) -> None:
        def over(found: VmTask) -> VmTask:
            if found.ended:
                return found
            confirmed = found.status.state == "Confirmed"
            return found.moved("Released" if confirmed else "Cancelled", self._clock.now(), "its spare is gone")

        try:
            await change_task(self._store, task_key(task, namespace), over, free=True)
        except NotFound:
            return

    # Remembering.

    def _run(self, key: Key, index: int, vm: SpareVm) -> Run:
        async def keep(run: str) -> None:
            await self._note(key, index, run=run)
            memory.id = run

        memory = Run(vm.run, keep)
        return memory

    async def _read(self, key: Key) -> Spare:
        found = await self._store.get(key)
        if not isinstance(found, Spare):
            raise NotFound(f"there is no {key}")
        return found

    async def _note(self, key: Key, index: int, **fields: object) -> SpareVm:
        after = await self._change(key, lambda spare: spare.with_vm(index, self._clock.now(), **fields))
        return after.status.vms[index]

    async def _move(self, key: Key, phase: SparePhase, why: str) -> None:
        after = await self._change(key, lambda spare: spare.moved(phase, self._clock.now(), why))
        bad = phase in {"Failing", "Failed"}
        names = ", ".join(vm.name for vm in after.status.vms)
        told = f"{names}: {why}" if phase == "Ready" else why
        self._recorder.note(after, f"Spare{phase}", told[:500], type="warning" if bad else "normal")
        log.log(logging.WARNING if bad else logging.INFO, "%s is %s: %s", key, phase, why)

    async def _change(self, key: Key, change: Callable[[Spare], Spare]) -> Spare:
        for _ in range(TRIES):
            after = change(await self._read(key))
            try:
                await self._store.commit(Put(after))
                return after
            except Conflict:
                continue
        raise Conflict(f"{key} keeps changing", key=key)


def _order(spare: Spare, vm: SpareVm) -> VmOrder:
    return VmOrder(
        name=vm.name,
        cluster=spare.spec.cluster,
        node=vm.node,
        address=vm.address,
        cpu=spare.spec.cpu,
        memory_mib=spare.spec.memory_mib,
    )
