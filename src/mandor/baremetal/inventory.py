"""The inventory: machines that another system knows become nodes; its last good list holds until the next one."""

import asyncio
import logging
from abc import ABC, abstractmethod
from pathlib import Path

import aiohttp

from mandor.baremetal.inventory_plan import Seen, plan_inventory
from mandor.baremetal.machine import Machine, read_machines
from mandor.errors import Conflict, Invalid, MandorError, Unavailable
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.lib.quantity import Seconds
from mandor.lib.steps import FEW, WRITTEN, Steps, in_turns, pieces
from mandor.model.instance import Instance
from mandor.model.inventory import Inventory, InventorySpec, InventoryStatus
from mandor.model.meta import Key, Meta
from mandor.model.node import Node
from mandor.model.vm_task import VmTask
from mandor.store.base import Put, Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder

log = logging.getLogger(__name__)

NAME = "machines"
ANSWER_MOST = 64 * 1024 * 1024
TIMEOUT_SECONDS = 10.0
LOOK_SECONDS = 1.0
"""How often a file is looked at."""
BACKOFF = Backoff(first_seconds=1.0, most_seconds=60.0, jitter=0.3)
TRIES = 3


class MachineSource(ABC):
    text: str
    """Where it is, for people."""

    @abstractmethod
    async def fetch(self) -> list[Machine]:
        """All machines; `Unavailable` or `Invalid` if that cannot be had."""

    async def wait(self, clock: Clock, seconds: float) -> None:
        """Until it is time to look again."""
        await clock.sleep(seconds)


class NodeApi(MachineSource):
    def __init__(self, url: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.text = url
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)

    async def fetch(self) -> list[Machine]:
        try:
            async with aiohttp.ClientSession(timeout=self._timeout) as session, session.get(self.text) as response:
                if response.status != 200:
                    raise Unavailable(f"{self.text} answers {response.status}")
                body = bytearray()
                async for piece in response.content.iter_chunked(1 << 16):
                    body += piece
                    if len(body) > ANSWER_MOST:
                        raise Invalid(f"{self.text} answers with more than {ANSWER_MOST:,} bytes")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unavailable(f"{self.text} does not answer: {str(error) or type(error).__name__}") from error
        return read_machines(bytes(body))


class MachineFile(MachineSource):
    """Looked at again as soon as it changes."""

    def __init__(self, path: Path) -> None:
        self.text = str(path)
        self._path = path
        self._seen: object = None

    async def fetch(self) -> list[Machine]:
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


class Refresher:
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
        """`mirrors`: of tasks, of claims, of nodes."""
        self._store, self._clock, self._recorder, self._source = store, clock, recorder, source
        self._tasks, self._claims, self._nodes = mirrors
        self._every = every_seconds

    async def run(self) -> None:
        """For ever."""
        while True:
            failures = await self.look()
            pause = min(BACKOFF.pause(failures), self._every) if failures else self._every
            await self._source.wait(self._clock, pause)

    async def look(self) -> int:
        """Ask once; how many looks in a row have failed now."""
        began = self._clock.now()
        before = await self._store.get(_KEY)
        known = before.status if isinstance(before, Inventory) else InventoryStatus()
        try:
            machines = await self._source.fetch()
            if not machines and known.machines:
                raise Invalid(f"the list of {self._source.text} is empty all at once: it is not believed")
            trouble = await self._apply(machines, began)
        except Conflict as error:
            log.info("the inventory is written again: %s", error)
            return 1
        except MandorError as error:
            age = f"the list of {Seconds(round(began - known.refreshed_at))} ago is used on"
            message = f"{error}; {age if known.refreshed_at else 'there is no list yet'}"
            status = InventoryStatus(
                refreshed_at=known.refreshed_at, machines=known.machines, failures=known.failures + 1, error=message
            )
            log.warning("the inventory is not refreshed: %s", message)
        else:
            status = InventoryStatus(refreshed_at=began, machines=len(machines), error=trouble)
        await self._tell(before if isinstance(before, Inventory) else None, status)
        return status.failures

    async def _apply(self, machines: list[Machine], began: float) -> str:
        """What could not be taken over, in words."""
        for attempt in range(TRIES):
            seen = await in_turns(self._seen())
            plan = await in_turns(plan_inventory(machines, seen, NAME, began, self._clock.now()))
            try:
                for writes in plan.commits:
                    revision = await self._store.commit(*writes)
            except Conflict:
                if attempt == TRIES - 1:
                    raise
                await self._clock.sleep(LOOK_SECONDS)  # until the mirrors show what was in the way
                continue
            if plan.commits:
                await self._nodes.reached(revision)
            return f"left alone, for nodes are called so: {', '.join(plan.taken[:10])}" if plan.taken else ""
        raise AssertionError("unreachable")

    def _seen(self) -> Steps[Seen]:
        claims: dict[str, list[Instance]] = {}
        tasks: dict[str, VmTask] = {}
        for piece in pieces(list(self._claims.items()), FEW):
            for each in piece:
                if isinstance(each, Instance) and each.spec.claim is not None and each.node:
                    claims.setdefault(each.node, []).append(each)
                    task = self._tasks.get(Key(VmTask.kind, each.meta.namespace, each.spec.claim.task))
                    if isinstance(task, VmTask):
                        tasks[str(each.key)] = task
            yield WRITTEN * len(piece)
        nodes = {each.meta.name: each for each in self._nodes.items() if isinstance(each, Node)}
        return Seen(nodes, claims, tasks)

    async def _tell(self, before: Inventory | None, status: InventoryStatus) -> None:
        meta = before.meta if before is not None else Meta(name=NAME)
        after = Inventory(meta=meta, spec=InventorySpec(source=self._source.text), status=status)
        await self._store.commit(Put(after))
        if status.failures:
            self._recorder.note(after, "InventoryStale", status.error, type="warning")


_KEY = Key(Inventory.kind, "", NAME)
