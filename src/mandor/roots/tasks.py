"""Tasks in a server: who hands them out, who works on them, and where machines are known from."""

from contextlib import AsyncExitStack

from mandor.baremetal.feeder import Feeder
from mandor.baremetal.in_process import InProcessQueue
from mandor.baremetal.inventory import Refresher, source_of
from mandor.baremetal.keeper import Keeper
from mandor.baremetal.settings import TaskSettings
from mandor.baremetal.worker import CLAIMS, Worker
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.lib.tasks import Background
from mandor.model.instance import Instance
from mandor.model.node import Node
from mandor.model.vm_task import VmTask
from mandor.roots.settings import ServerSettings
from mandor.store.base import Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder


def task_settings(settings: ServerSettings) -> TaskSettings:
    pause = Backoff(first_seconds=float(settings.task_pause), most_seconds=60.0, jitter=0.3)
    return TaskSettings(attempts=settings.task_attempts, pause=pause)


async def lead(store: Store, clock: Clock, settings: ServerSettings) -> None:
    """What one server does for all."""
    tasks = task_settings(settings)
    async with AsyncExitStack() as stack:
        queue = await stack.enter_async_context(InProcessQueue(clock))
        recorder = Recorder(store, "tasks", clock)
        mirrors = Mirror(store, VmTask.kind), Mirror(store, Instance.kind, CLAIMS), Mirror(store, Node.kind)
        feeder = Feeder(mirrors[0], queue, clock)
        keeper = Keeper(store, clock, recorder, mirrors, feeder.offer, tasks)
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
            refresher = Refresher(store, clock, recorder, source, mirrors, every_seconds=every)
            background.start(refresher.run(), "inventory")
        background.start(Worker(store, clock, queue, recorder, tasks).run(), "worker")
        await background.wait()
