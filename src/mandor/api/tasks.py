"""VmRequestIntake: accepts requests for virtual machines."""

from dataclasses import dataclass, field

import msgspec

from mandor.api.audit import Auditor
from mandor.api.caller import Caller
from mandor.errors import Invalid, TooMany
from mandor.lib.clock import Clock
from mandor.lib.ids import random_uuid
from mandor.lib.steps import chosen
from mandor.lib.turns import in_turns
from mandor.lib.words import did_you_mean
from mandor.model.claim import Dedication
from mandor.model.meta import Meta, Object
from mandor.model.node import Node
from mandor.model.vm_request import Step, VmRequest, VmRequestSpec, VmRequestStatus
from mandor.store.base import Put, Store
from mandor.store.batching import BatchingStore

OPEN_MOST = 100_000
"""Requests that may be in progress at once."""
REFRESH_SECONDS = 2.0
"""Age at which the cached pools and the number of open requests are read again."""


@dataclass(slots=True)
class VmRequestIntake:
    """Checks and stores requests; pools and the number of open requests are cached."""

    store: Store
    clock: Clock
    auditor: Auditor
    dedication: Dedication = "host"
    """Meaning of `dedicated` in requests."""
    _gathered: Store = field(init=False)
    """Combines concurrent requests into one commit."""
    _refreshed_at: float = field(default=float("-inf"), init=False)
    _pools: frozenset[str] = field(default=frozenset(), init=False)
    _open: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._gathered = BatchingStore(self.store)

    async def take(self, caller: Caller, spec: VmRequestSpec, namespace: str, address: str) -> VmRequest:
        """Store a request and return it."""
        check_may_place(caller, namespace)
        if spec.dedicated:
            spec = msgspec.structs.replace(spec, dedication=self.dedication)
        await self.check_pool(spec.pool)
        if self._open >= OPEN_MOST:
            raise TooMany(
                f"{self._open:,} requests for virtual machines are in progress",
                hint="slow down and try again",
                seconds=REFRESH_SECONDS,
            )
        self._open += 1
        now = self.clock.now()
        first = Step("Queued", now, f"requested by {caller.identity}")
        task = VmRequest(
            meta=Meta(name=random_uuid(), namespace=namespace),
            spec=spec,
            status=VmRequestStatus(since=now, history=(first,)),
        )
        made = Put(task)
        await self._gathered.commit(made, *self.auditor.of_commit(caller, "schedule", address, [(made, None)]))
        return task

    async def check_pool(self, pool: str) -> None:
        await self._refresh()
        if pool not in self._pools:
            await self._refresh(again=True)
        if pool not in self._pools:
            hint = did_you_mean(pool, self._pools) if self._pools else "no machine has joined yet"
            raise Invalid(f"there is no pool {pool}", hint=hint, path="pool")

    async def _refresh(self, *, again: bool = False) -> None:
        now = self.clock.monotonic()
        if not again and now - self._refreshed_at < REFRESH_SECONDS:
            return
        self._refreshed_at = now
        nodes = (await self.store.list(Node.kind)).items
        self._pools = frozenset(each.spec.pool for each in nodes if isinstance(each, Node))
        tasks = (await self.store.list(VmRequest.kind)).items
        self._open = sum(await in_turns(chosen(tasks, lambda piece: map(_open, piece))))


def _open(task: Object) -> bool:
    return isinstance(task, VmRequest) and task.status.state in {"Queued", "Processing"}


def check_may_place(caller: Caller, namespace: str) -> None:
    caller.require("create", VmRequest.kind, namespace, what=f"place virtual machines in the namespace {namespace}")
