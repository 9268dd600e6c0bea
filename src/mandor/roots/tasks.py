"""Wires VM requests in a server: the queue, the workers and the inventory."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from mandor.baremetal.feeder import QueueFeeder
from mandor.baremetal.in_process import InProcessQueue
from mandor.baremetal.inventory import InventoryRefresher, source_of
from mandor.baremetal.queue import VmRequestQueue
from mandor.baremetal.settings import VmRequestSettings
from mandor.baremetal.spares import Spares
from mandor.baremetal.sweeper import RequestSweeper
from mandor.baremetal.targets import make_target, read_targets
from mandor.baremetal.worker import CLAIMS, Crowded, Worker, never_crowded
from mandor.errors import Invalid
from mandor.lib.clock import Clock
from mandor.lib.delay import Delay
from mandor.lib.tasks import Background
from mandor.model.instance import Instance
from mandor.model.node import Node
from mandor.model.vm_request import VmRequest
from mandor.roots.settings import ServerSettings
from mandor.store.base import Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder


def task_settings(settings: ServerSettings) -> VmRequestSettings:
    pause = Delay(first_seconds=float(settings.task_pause), most_seconds=60.0)
    return VmRequestSettings(attempts=settings.task_attempts, pause=pause)


@asynccontextmanager
async def shared_queue(settings: ServerSettings) -> AsyncIterator[VmRequestQueue | None]:
    """Return the queue that reaches all servers; None: the leader processes the requests itself."""
    if not settings.task_queue or "tasks" not in settings.roles:
        yield None
        return
    try:
        from mandor.baremetal.rabbitmq import RabbitQueue
    except ImportError as error:
        raise Invalid(f"RabbitMQ needs {error.name}", hint="pip install 'mandor[rabbitmq]'") from error
    async with RabbitQueue(settings.task_queue) as queue:
        yield queue


async def work(store: Store, clock: Clock, settings: ServerSettings, queue: VmRequestQueue, crowded: Crowded) -> None:
    """Process VM requests from the shared queue, in every server."""
    recorder = Recorder(store, "tasks", clock)
    async with Background() as background:
        background.start(recorder.run(), "recorder")
        background.start(Worker(store, clock, queue, recorder, task_settings(settings), crowded).run(), "worker")
        await background.wait()


async def lead(
    store: Store,
    clock: Clock,
    settings: ServerSettings,
    shared: VmRequestQueue | None = None,
    crowded: Crowded = never_crowded,
) -> None:
    """Lead the processing of VM requests. `shared`: the queue that reaches all servers; None: requests are processed
    here."""
    tasks = task_settings(settings)
    async with AsyncExitStack() as stack:
        queue = shared or InProcessQueue(clock)
        recorder = Recorder(store, "tasks", clock)
        mirrors = Mirror(store, VmRequest.kind), Mirror(store, Instance.kind, CLAIMS), Mirror(store, Node.kind)
        feeder = QueueFeeder(mirrors[0], queue, clock)
        keeper = RequestSweeper(store, clock, recorder, mirrors, feeder.offer, tasks)
        for mirror in mirrors:
            await stack.enter_async_context(mirror)
        for mirror in mirrors:
            await mirror.synced()
        background = await stack.enter_async_context(Background())
        background.start(recorder.run(), "recorder")
        background.start(feeder.run(), "feeder")
        background.start(keeper.run(), "keeper")
        if settings.inventory:
            source, every = source_of(settings.inventory), float(settings.inventory_every)
            refresher = InventoryRefresher(store, clock, recorder, source, mirrors, every_seconds=every)
            background.start(refresher.run(), "inventory")
        targets = {name: make_target(each, store) for name, each in read_targets(settings.pipelines).items()}
        for target in targets.values():
            stack.push_async_callback(target.ready.close)
            stack.push_async_callback(target.pipeline.close)
        # Also without pipelines: machines of a cluster that was removed from the file have to be reported.
        background.start(Spares(store, clock, recorder, targets, tasks).run(), "spares")
        if shared is None:
            background.start(Worker(store, clock, queue, recorder, tasks, crowded).run(), "worker")
        await background.wait()
