"""EventSender: one outbox per receiver, each in a task of its own."""

import asyncio
import logging
from collections.abc import Sequence

from mandor.errors import Invalid, MandorError
from mandor.lib.clock import Clock
from mandor.lib.ids import new_uid
from mandor.lib.tasks import Background
from mandor.model.meta import Key
from mandor.model.receiver import EventBus, Receiver, Webhook
from mandor.notify.message import synthetic_message
from mandor.notify.outbox import Outbox, SinkFor
from mandor.store.base import Change, Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder

log = logging.getLogger(__name__)

AGAIN_SECONDS = 2.0
RECEIVERS_MOST = 100
"""Maximum number of receivers that are served, ordered by name; further ones get an event and wait."""


class EventSender:
    """Runs in the leader. `open_sink` is called once per receiver, and again when its spec changes."""

    def __init__(self, store: Store, clock: Clock, recorder: Recorder, cluster: str, open_sink: SinkFor) -> None:
        self._store, self._clock, self._recorder = store, clock, recorder
        self._cluster, self._open_sink = cluster, open_sink
        self._changed = asyncio.Event()
        self._running: dict[Key, tuple[Receiver, asyncio.Task[None] | None]] = {}
        """Receivers with their task; None: this server cannot use the receiver as configured."""

    async def run(self) -> None:
        async with (
            Mirror(self._store, Webhook.kind) as webhooks,
            Mirror(self._store, EventBus.kind) as buses,
            Background() as tasks,
        ):
            mirrors = (webhooks, buses)
            for mirror in mirrors:
                mirror.listen(self._notice)
                await mirror.synced()
            while True:
                self._changed.clear()
                try:
                    await self._arrange(mirrors, tasks)
                except MandorError as error:
                    log.warning("receivers wait for the store: %s", error)
                    self._changed.set()
                    await self._clock.sleep(AGAIN_SECONDS)
                await self._changed.wait()

    def _notice(self, changes: Sequence[Change]) -> None:
        self._changed.set()

    async def _arrange(self, mirrors: Sequence[Mirror], tasks: Background) -> None:
        found = [each for mirror in mirrors for each in mirror.items() if isinstance(each, Webhook | EventBus)]
        active = sorted((each for each in found if each.spec.active), key=lambda each: each.key)
        for each in active[RECEIVERS_MOST:]:
            text = f"{len(active)} receivers are active, and {RECEIVERS_MOST} are served"
            self._recorder.note(each, "TooManyReceivers", text, type="warning")
        wanted = {each.key: each for each in active[:RECEIVERS_MOST]}
        for key, (receiver, task) in list(self._running.items()):
            now = wanted.get(key)
            if now is None or now.meta.uid != receiver.meta.uid or now.spec != receiver.spec:
                del self._running[key]
                if task is not None:
                    task.cancel()
                    await asyncio.wait({task})
        for key in wanted:
            if key not in self._running:
                await self._begin(key, tasks)

    async def _begin(self, key: Key, tasks: Background) -> None:
        # Read it again: the previous task may just have stored its progress.
        receiver = await self._store.get(key)
        if not isinstance(receiver, Webhook | EventBus):
            return
        try:
            sink = self._open_sink(receiver)
        except Invalid as error:
            log.error("%s: %s", key, error)
            self._recorder.note(receiver, "ReceiverUnusable", str(error), type="warning")
            self._running[key] = (receiver, None)
            return
        outbox = Outbox(self._store, self._clock, self._recorder, receiver, sink, self._cluster)
        self._running[key] = (receiver, tasks.start(outbox.run(), f"outbox of {key}"))


async def try_out(receiver: Receiver, open_sink: SinkFor, cluster: str, clock: Clock) -> str:
    """Send one test message; return the receiver's answer, or raise its error."""
    sink = open_sink(receiver)
    text = "test message, to check that messages arrive"
    message = synthetic_message(
        cluster, f"test.{new_uid()}", receiver.kind, receiver.meta.name, "Test", text, clock.now()
    )
    try:
        async with asyncio.timeout(float(receiver.spec.timeout) + 1):
            return await sink.send(message)
    finally:
        await sink.close()
