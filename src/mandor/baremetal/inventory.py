"""The inventory: machines listed by another system become nodes; the last valid list is used until the next one."""

import asyncio
import logging
from abc import ABC, abstractmethod
from pathlib import Path

import aiohttp

from mandor.baremetal.inventory_plan import InventoryState, plan_inventory
from mandor.baremetal.machine import KNOWN_KEYS, Machine, MachineList, read_machines
from mandor.errors import Conflict, Invalid, MandorError, Unavailable
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.lib.quantity import Seconds
from mandor.lib.steps import FEW, WRITTEN, Steps, pieces
from mandor.lib.turns import in_turns
from mandor.model.instance import Instance
from mandor.model.inventory import Inventory, InventorySpec, InventoryStatus
from mandor.model.meta import Key, Meta
from mandor.model.node import Node
from mandor.model.vm_request import VmRequest
from mandor.store.base import Put, Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder

log = logging.getLogger(__name__)

NAME = "machines"
ANSWER_MOST = 64 * 1024 * 1024
TIMEOUT_SECONDS = 10.0
LOOK_SECONDS = 1.0
"""Seconds between two checks of a file."""
BACKOFF = Backoff(first_seconds=1.0, most_seconds=60.0, jitter=0.3)
TRIES = 3


class MachineSource(ABC):
    text: str
    """The address of the list, for messages."""

    @abstractmethod
    async def fetch(self) -> MachineList:
        """Return all machines; raise `Unavailable` or `Invalid` if the list cannot be read."""

    async def wait(self, clock: Clock, seconds: float) -> None:
        """Wait until the next refresh is due."""
        await clock.sleep(seconds)


class NodeApi(MachineSource):
    def __init__(self, url: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.text = url
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)

    async def fetch(self) -> MachineList:
        try:
            async with aiohttp.ClientSession(timeout=self._timeout) as session, session.get(self.text) as response:
                if response.status != 200:
                    raise Unavailable(f"{self.text} answered with status {response.status}")
                body = bytearray()
                async for piece in response.content.iter_chunked(1 << 16):
                    body += piece
                    if len(body) > ANSWER_MOST:
                        raise Invalid(f"{self.text} answered with more than {ANSWER_MOST:,} bytes")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unavailable(f"{self.text} does not answer: {str(error) or type(error).__name__}") from error
        return read_machines(bytes(body))


class MachineFile(MachineSource):
    """A file; it is read again when it changes."""

    def __init__(self, path: Path) -> None:
        self.text = str(path)
        self._path = path
        self._seen: object = None

    async def fetch(self) -> MachineList:
        self._seen = self._stamp()
        try:
            return read_machines(await asyncio.to_thread(self._path.read_bytes))
        except OSError as error:
            raise Unavailable(f"cannot read {self.text}: {error.strerror}") from error

    async def wait(self, clock: Clock, seconds: float) -> None:
        until = clock.monotonic() + seconds
        while clock.monotonic() < until and self._stamp() == self._seen:
            await clock.sleep(min(LOOK_SECONDS, seconds))

    def _stamp(self) -> object:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def source_of(text: str) -> MachineSource:
    return NodeApi(text) if text.startswith(("http://", "https://")) else MachineFile(Path(text).absolute())


class InventoryRefresher:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        recorder: Recorder,
        source: MachineSource,
        mirrors: tuple[Mirror, Mirror, Mirror],
        *,
        every_seconds: float = 30.0,
    ) -> None:
        """`mirrors`: of requests, of claims, of nodes."""
        self._store, self._clock, self._recorder, self._source = store, clock, recorder, source
        self._requests, self._claims, self._nodes = mirrors
        self._every = every_seconds

    async def run(self) -> None:
        """Refresh the inventory until cancelled."""
        while True:
            failures = await self.look()
            pause = min(BACKOFF.pause(failures), self._every) if failures else self._every
            await self._source.wait(self._clock, pause)

    async def look(self) -> int:
        """Refresh once; return the number of failed refreshes in a row."""
        began = self._clock.now()
        before = await self._store.get(_KEY)
        known = before.status if isinstance(before, Inventory) else InventoryStatus()
        try:
            machines, unknown = await self._source.fetch()
            if not machines and known.machines:
                raise Invalid(f"{self._source.text} lists no machines any more: an empty list is not accepted")
            trouble = await self._apply(machines, began)
        except Conflict as error:
            log.info("retrying to write the inventory: %s", error)
            return 1
        except MandorError as error:
            age = f"using the list from {Seconds(round(began - known.refreshed_at))} ago"
            message = f"{error}; {age if known.refreshed_at else 'there is no list yet'}"
            status = InventoryStatus(
                refreshed_at=known.refreshed_at,
                machines=known.machines,
                failures=known.failures + 1,
                error=message,
                unknown=known.unknown,
            )
            log.warning("the inventory was not refreshed: %s", message)
        else:
            status = InventoryStatus(refreshed_at=began, machines=len(machines), error=trouble, unknown=unknown)
        await self._write_status(before if isinstance(before, Inventory) else None, status, known.unknown)
        return status.failures

    async def _apply(self, machines: list[Machine], began: float) -> str:
        """Write the plan; return a message about machines that were skipped."""
        for attempt in range(TRIES):
            seen = await in_turns(self._seen())
            plan = await in_turns(plan_inventory(machines, seen, NAME, began, self._clock.now()))
            try:
                for writes in plan.commits:
                    revision = await self._store.commit(*writes)
            except Conflict:
                if attempt == TRIES - 1:
                    raise
                await self._clock.sleep(LOOK_SECONDS)  # until the mirrors show the conflicting change
                continue
            if plan.commits:
                await self._nodes.reached(revision)
            return f"skipped, because nodes have these names: {', '.join(plan.taken[:10])}" if plan.taken else ""
        raise AssertionError("unreachable")

    def _seen(self) -> Steps[InventoryState]:
        claims: dict[str, list[Instance]] = {}
        requests: dict[str, VmRequest] = {}
        for piece in pieces(list(self._claims.items()), FEW):
            for each in piece:
                if isinstance(each, Instance) and each.spec.claim is not None and each.node:
                    claims.setdefault(each.node, []).append(each)
                    request = self._requests.get(Key(VmRequest.kind, each.meta.namespace, each.spec.claim.task))
                    if isinstance(request, VmRequest):
                        requests[str(each.key)] = request
            yield WRITTEN * len(piece)
        nodes = {each.meta.name: each for each in self._nodes.items() if isinstance(each, Node)}
        return InventoryState(nodes, claims, requests)

    async def _write_status(self, before: Inventory | None, status: InventoryStatus, reported: tuple[str, ...]) -> None:
        """Write the status, and report failures and keys that are not understood, unless these are `reported`."""
        meta = before.meta if before is not None else Meta(name=NAME)
        after = Inventory(meta=meta, spec=InventorySpec(source=self._source.text), status=status)
        await self._store.commit(Put(after))
        if status.failures:
            self._recorder.note(after, "InventoryStale", status.error, type="warning")
        if status.unknown and status.unknown != reported:
            message = f"{self._source.text} has keys that are not understood and ignored: {', '.join(status.unknown)}"
            log.warning("%s; known keys: %s", message, ", ".join(sorted(KNOWN_KEYS)))
            self._recorder.note(after, "InventoryKeysUnknown", message, type="warning")


_KEY = Key(Inventory.kind, "", NAME)
