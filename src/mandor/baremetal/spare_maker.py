"""SpareMaker: places and reserves each machine of a spare, runs the pipeline, and waits until the machine is ready.

Each machine continues from the step that is stored."""

import asyncio

from mandor.baremetal.request_change import change_request, request_key
from mandor.baremetal.spare_record import MESSAGE_MOST, SpareRecord, order_of
from mandor.baremetal.targets import Target
from mandor.errors import Conflict, Invalid, MandorError, Unavailable
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.lib.quantity import Seconds
from mandor.model.meta import Key, Meta
from mandor.model.spare import Spare, SpareVm
from mandor.model.vm_request import Step, VmRequest, VmRequestSpec, VmRequestStatus
from mandor.store.base import Put, Store

POLL_SECONDS = 1.0
PLACE_SECONDS = 300.0
HOLD_SECONDS_MOST = 30 * 86_400.0
BACKOFF = Backoff(first_seconds=2.0, most_seconds=120.0, jitter=0.3)


class SpareFailed(Exception):
    """The spare cannot be made; other errors (of the store) are retried."""


class SpareMaker:
    def __init__(self, store: Store, clock: Clock, record: SpareRecord) -> None:
        self._store, self._clock, self._record = store, clock, record

    async def make_all(self, spare: Spare, target: Target) -> None:
        """Make all machines; raise `SpareFailed` as soon as one of them fails."""
        makings = [asyncio.ensure_future(self._make(spare, index, target)) for index in range(spare.spec.count)]
        try:
            for making in asyncio.as_completed(makings):
                await making
        finally:
            for each in makings:
                each.cancel()
            await asyncio.gather(*makings, return_exceptions=True)

    async def _make(self, spare: Spare, index: int, target: Target) -> None:
        key = spare.key
        vm = spare.status.vms[index]
        if vm.state == "Placing":
            request = await self._placed(spare, vm, target)
            where = {"node": request.status.node, "address": request.status.address}
            vm = await self._record.note(key, index, state="Creating", **where)
        if vm.state == "Creating":
            await self._create(spare, index, vm, target)
            vm = await self._record.note(key, index, state="Joining", message="")
        if vm.state == "Joining":
            await self._join(key, index, vm, target)
            await self._confirm(vm, spare.meta.namespace)
            await self._record.note(key, index, state="Ready", message="")

    async def _placed(self, spare: Spare, vm: SpareVm, target: Target) -> VmRequest:
        key = request_key(vm.task, spare.meta.namespace)
        if await self._store.get(key) is None:
            await self._store.commit(Put(self._request(spare, vm, target)))
        while True:
            request = await self._store.get(key)
            if not isinstance(request, VmRequest):
                raise SpareFailed(f"{vm.name}: its task was deleted")
            if request.status.state in {"Placed", "Confirmed"}:
                return request
            if request.ended:
                raise SpareFailed(f"{vm.name}: {request.status.error or request.status.state}")
            await self._clock.sleep(POLL_SECONDS / 2)

    def _request(self, spare: Spare, vm: SpareVm, target: Target) -> VmRequest:
        now, spec = self._clock.now(), spare.spec
        return VmRequest(
            meta=Meta(name=vm.task, namespace=spare.meta.namespace),
            spec=VmRequestSpec(
                purpose="spare",
                cpu=spec.cpu,
                memory_mib=spec.memory_mib,
                pool=spec.pool,
                vm=vm.name,
                owner=f"spare/{spare.meta.name}",
                place_seconds=PLACE_SECONDS,
                hold_seconds=min(target.hold_seconds, HOLD_SECONDS_MOST),
            ),
            status=VmRequestStatus(since=now, history=(Step("Queued", now, f"for the spare {spare.meta.name}"),)),
        )

    async def _create(self, spare: Spare, index: int, vm: SpareVm, target: Target) -> None:
        for attempt in range(1, target.attempts + 1):
            try:
                async with asyncio.timeout(target.create_seconds):
                    await target.pipeline.create(order_of(spare, vm), self._record.run(spare.key, index, vm))
                return
            except TimeoutError:
                error = f"not created within {Seconds(target.create_seconds)}"
            except (Unavailable, Conflict) as failed:
                error = str(failed)
            except MandorError as never:
                raise SpareFailed(f"{vm.name}: {never}") from never
            if attempt == target.attempts:
                raise SpareFailed(f"{vm.name} was not created in {attempt} attempts: {error}")
            vm = await self._record.note(spare.key, index, message=f"attempt {attempt}: {error}"[:MESSAGE_MOST])
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
                raise SpareFailed(f"{vm.name} was not ready within {Seconds(target.ready_seconds)}: {waits}")
            if waits != vm.message:
                vm = await self._record.note(key, index, message=waits[:MESSAGE_MOST])
            await self._clock.sleep(POLL_SECONDS)

    async def _confirm(self, vm: SpareVm, namespace: str) -> None:
        def confirm(found: VmRequest) -> VmRequest:
            if found.status.state == "Confirmed":
                return found
            try:
                return found.moved("Confirmed", self._clock.now(), "the spare is ready")
            except ValueError as error:
                raise Invalid(str(error)) from error

        try:
            await change_request(self._store, request_key(vm.task, namespace), confirm)
        except Invalid as error:
            raise SpareFailed(f"{vm.name}: {error}") from error
