"""RequestSweeper: fails overdue requests, requeues abandoned ones, and deletes orphaned claims and old requests."""

import logging
from collections.abc import Callable, Iterable
from functools import partial

from mandor.baremetal.request_change import change_request
from mandor.baremetal.request_event import event_of
from mandor.baremetal.request_plan import plan_sweep
from mandor.baremetal.settings import VmRequestSettings
from mandor.errors import Conflict, MandorError, NotFound
from mandor.lib.clock import Clock
from mandor.lib.steps import chosen
from mandor.lib.turns import in_turns
from mandor.model.instance import Instance
from mandor.model.node import Node
from mandor.model.vm_request import VmRequest
from mandor.store.base import WRITES_MOST, Delete, Store, Write
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder

log = logging.getLogger(__name__)


class RequestSweeper:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        recorder: Recorder,
        mirrors: tuple[Mirror, Mirror, Mirror],
        offer: Callable[[VmRequest], None],
        settings: VmRequestSettings,
    ) -> None:
        """`mirrors`: of requests, of claims, of nodes. `offer`: puts a request into the queue again."""
        self._store, self._clock, self._recorder = store, clock, recorder
        self._requests, self._claims, self._nodes = mirrors
        self._offer, self._settings = offer, settings
        self._offered: dict[str, float] = {}
        """Time of the last requeue by uid, so that a request is not requeued at each sweep."""

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            try:
                await self.look()
            except MandorError as error:
                log.warning("the sweep of VM requests failed: %s", error)
            await self._clock.sleep(self._settings.sweep_seconds)

    async def look(self) -> None:
        now = self._clock.now()
        known = list(self._requests.items())
        requests = await in_turns(chosen(known, lambda piece: [each for each in piece if isinstance(each, VmRequest)]))
        claims = [each for each in self._claims.items() if isinstance(each, Instance)]
        nodes = {each.meta.name for each in self._nodes.items() if isinstance(each, Node)}
        sweep = await in_turns(plan_sweep(requests, claims, nodes, self._settings, now))
        for request, reason, error in sweep.failed:
            await self._fail(request, reason, error)
        self._hand_out(sweep.published, now)
        await self._delete_orphans(sweep.orphans)
        await self._delete([Delete(each.key, each.meta.version) for each in sweep.forgotten])

    async def _fail(self, seen: VmRequest, reason: str, error: str) -> None:
        def fail(request: VmRequest) -> VmRequest:
            if request.status.state != seen.status.state:
                return request
            return request.moved("Failed", self._clock.now(), error, error=error, reason=reason)

        try:
            after = await change_request(
                self._store, seen.key, fail, free=True, event=partial(event_of, self._recorder)
            )
        except NotFound:
            return
        if after.status.state == "Failed":
            log.warning("VM request %s failed: %s", seen.meta.name, error)

    def _hand_out(self, requests: Iterable[VmRequest], now: float) -> None:
        before, self._offered = self._offered, {}
        for request in requests:
            last = before.get(request.meta.uid, 0.0)
            if now - last >= self._settings.stuck_seconds:
                log.warning("VM request %s was abandoned by its worker and is queued again", request.meta.name)
                self._recorder.note(request, "TaskStuck", "no worker processes this task: queued again", type="warning")
                self._offer(request)
                last = now
            self._offered[request.meta.uid] = last

    async def _delete_orphans(self, claims: Iterable[Instance]) -> None:
        """Delete claims without a request; the store is read, because the mirrors may lag behind each other."""
        writes = []
        for claim in claims:
            assert claim.spec.claim is not None
            key = claim.key._replace(kind=VmRequest.kind, name=claim.spec.claim.task)
            request = await self._store.get(key)
            if not (isinstance(request, VmRequest) and request.holds):
                writes.append(Delete(claim.key, claim.meta.version))
        await self._delete(writes)

    async def _delete(self, writes: list[Delete]) -> None:
        for start in range(0, len(writes), WRITES_MOST):
            some: list[Write] = [*writes[start : start + WRITES_MOST]]
            try:
                await self._store.commit(*some)
            except Conflict as error:
                log.debug("some objects changed and are handled by the next sweep: %s", error)
