"""SpareRecord: reads and writes the state of a spare before and after every step."""

import logging

from mandor.baremetal.pipeline import Run, VmOrder
from mandor.errors import Conflict, NotFound
from mandor.lib.clock import Clock
from mandor.model.meta import Key
from mandor.model.spare import Spare, SparePhase, SpareVm
from mandor.store.base import Put, Store, Write
from mandor.store.recorder import Recorder

log = logging.getLogger(__name__)

TRIES = 20
MESSAGE_MOST = 500


class SpareRecord:
    def __init__(self, store: Store, clock: Clock, recorder: Recorder) -> None:
        self._store, self._clock, self._recorder = store, clock, recorder

    async def read(self, key: Key) -> Spare:
        found = await self._store.get(key)
        if not isinstance(found, Spare):
            raise NotFound(f"{key} does not exist")
        return found

    async def note(self, key: Key, index: int, **fields: object) -> SpareVm:
        for _ in range(TRIES):
            after = (await self.read(key)).with_vm(index, self._clock.now(), **fields)
            if await self._written(Put(after)):
                return after.status.vms[index]
        raise Conflict(f"{key} keeps changing", key=key)

    async def move(self, key: Key, phase: SparePhase, why: str) -> None:
        """Change the phase and record an event in the same commit."""
        bad = phase in {"Failing", "Failed"}
        for _ in range(TRIES):
            after = (await self.read(key)).moved(phase, self._clock.now(), why)
            names = ", ".join(vm.name for vm in after.status.vms)
            message = (f"{names}: {why}" if phase == "Ready" else why)[:MESSAGE_MOST]
            event = await self._recorder.event(after, f"Spare{phase}", message, "warning" if bad else "normal")
            if await self._written(Put(after), Put(event)):
                log.log(logging.WARNING if bad else logging.INFO, "%s is %s: %s", key, phase, why)
                return
        raise Conflict(f"{key} keeps changing", key=key)

    def warn(self, spare: Spare, reason: str, message: str) -> None:
        log.warning("%s: %s", spare.key, message)
        self._recorder.note(spare, reason, message[:MESSAGE_MOST], type="warning")

    def run(self, key: Key, index: int, vm: SpareVm) -> Run:
        async def keep(run: str) -> None:
            if run != memory.id:
                await self.note(key, index, run=run)
                memory.id = run

        memory = Run(vm.run, keep)
        return memory

    async def _written(self, *writes: Write) -> bool:
        """Return False if another writer was faster."""
        try:
            await self._store.commit(*writes)
        except Conflict:
            return False
        return True


def order_of(spare: Spare, vm: SpareVm) -> VmOrder:
    return VmOrder(
        name=vm.name,
        cluster=spare.spec.cluster,
        node=vm.node,
        address=vm.address,
        cpu=spare.spec.cpu,
        memory_mib=spare.spec.memory_mib,
    )
