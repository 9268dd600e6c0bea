"""SpareRemover: deletes the machines of a spare and releases the resources that were reserved for them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from mandor.baremetal.request_change import change_request, request_key
from mandor.baremetal.spare_record import MESSAGE_MOST, SpareRecord, order_of
from mandor.baremetal.targets import Target
from mandor.errors import MandorError, NotFound, Unavailable
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.lib.quantity import Seconds
from mandor.model.meta import Key
from mandor.model.spare import Spare, SpareVm
from mandor.model.vm_request import VmRequest
from mandor.store.base import Store

BACKOFF = Backoff(first_seconds=2.0, most_seconds=600.0, jitter=0.3)
Pause = Callable[[Spare, float], Awaitable[None]]


class SpareRemover:
    def __init__(
        self, store: Store, clock: Clock, record: SpareRecord, targets: Mapping[str, Target], pause: Pause
    ) -> None:
        """`pause`: waits for the given seconds, or until the spare is deleted."""
        self._store, self._clock, self._record = store, clock, record
        self._targets, self._pause = targets, pause

    async def remove_all(self, spare: Spare) -> None:
        removals = (self._remove(spare.key, index) for index in range(len(spare.status.vms)))
        for error in await asyncio.gather(*removals, return_exceptions=True):
            if error is not None:
                raise error

    async def _remove(self, key: Key, index: int) -> None:
        """Delete one machine, retrying until it is gone; its resources are released only then."""
        failures = 0
        while True:
            spare = await self._record.read(key)
            vm = spare.status.vms[index]
            if vm.state == "Gone":
                return
            try:
                if vm.state != "Placing" and not spare.spec.gone:
                    await self._delete(spare, index, vm)
                await self._give_back(vm.task, spare.meta.namespace)
                await self._record.note(key, index, state="Gone", message="")
                return
            except MandorError as error:
                failures += 1
                message = f"cannot be deleted: {error}"[:MESSAGE_MOST]
                self._record.warn(spare, "SpareStays", f"{vm.name} {message}")
                await self._record.note(key, index, message=message)
            await self._pause(spare, BACKOFF.pause(failures))

    async def _delete(self, spare: Spare, index: int, vm: SpareVm) -> None:
        target = self._targets.get(spare.spec.cluster)
        if target is None:
            raise Unavailable(f"there is no longer a pipeline for the cluster {spare.spec.cluster}")
        try:
            async with asyncio.timeout(target.create_seconds):
                await target.pipeline.delete(order_of(spare, vm), self._record.run(spare.key, index, vm))
        except TimeoutError as error:
            raise Unavailable(f"not deleted within {Seconds(target.create_seconds)}") from error

    async def _give_back(self, request: str, namespace: str) -> None:
        def over(found: VmRequest) -> VmRequest:
            if found.ended:
                return found
            confirmed = found.status.state == "Confirmed"
            return found.moved("Released" if confirmed else "Cancelled", self._clock.now(), "the spare is gone")

        try:
            await change_request(self._store, request_key(request, namespace), over, free=True)
        except NotFound:
            return
