"""Runs controllers: mirrors feed changes, changes queue keys, and workers reconcile one key at a time."""

import asyncio
import logging
from collections.abc import Hashable, Sequence
from contextlib import AsyncExitStack
from itertools import count
from time import perf_counter
from typing import Any

from mandor.controllers.base import Controller, in_order
from mandor.controllers.measures import Measures
from mandor.controllers.tracing import Tracing
from mandor.errors import Conflict, MandorError
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.lib.keyed_queue import KeyedQueue
from mandor.model.meta import Key
from mandor.store.base import Change, Store
from mandor.store.mirror import Listener, Mirror
from mandor.telemetry.tracer import Tracer

log = logging.getLogger(__name__)

AFTER_CONFLICT = Backoff(first_seconds=0.02, most_seconds=2.0)
AFTER_ERROR = Backoff(first_seconds=0.5, most_seconds=60.0)

TURN = 10
"""Keys that a worker reconciles before other tasks run: many keys need no await."""

Queue = KeyedQueue[Hashable]


async def run(controller: Controller[Any], store: Store, clock: Clock, *, workers: int | None = None) -> None:
    await run_all([controller], store, clock, workers=workers)


async def run_all(
    controllers: Sequence[Controller[Any]],
    store: Store,
    clock: Clock,
    *,
    workers: int | None = None,
    measures: Measures | None = None,
    tracer: Tracer | None = None,
) -> None:
    """Run the controllers on one set of mirrors until cancelled.

    After an expected error the key is retried later; any other error ends all controllers.
    """
    measures = measures or Measures()
    tracing = Tracing(tracer, clock) if tracer is not None else None
    mirrors = {kind: Mirror(store, kind) for each in controllers for kind in each.watches}
    queues: list[Queue] = []
    for controller in controllers:
        queue: Queue = KeyedQueue(clock)
        queues.append(queue)
        controller.begin(mirrors)
        for kind in controller.watches:
            mirrors[kind].listen(_listener(controller, queue))
        for key in controller.first():
            queue.add(key)
    async with AsyncExitStack() as stack:
        for mirror in mirrors.values():
            await stack.enter_async_context(mirror)
        for mirror in mirrors.values():
            # Before the first listing is complete, an absent object may exist.
            await mirror.synced()
        async with asyncio.TaskGroup() as tasks:
            measures.queues = {each.name: queue for each, queue in zip(controllers, queues, strict=True)}
            for controller, queue in zip(controllers, queues, strict=True):
                for number in range(workers or controller.workers):
                    tasks.create_task(_work(controller, queue, measures, tracing), name=f"{controller.name} {number}")


def _listener(controller: Controller[Any], queue: Queue) -> Listener:
    def offer(changes: Sequence[Change]) -> None:
        keys = controller.observe_all(changes)
        if keys:  # nearly never
            for key in in_order(keys):
                queue.add(key)

    return offer


async def _work(controller: Controller[Any], queue: Queue, measures: Measures, tracing: Tracing | None) -> None:
    for number in count(1):
        if number % TURN == 0:
            await asyncio.sleep(0)
        key = await queue.get()
        again: float | None = None
        began, result = perf_counter(), "ok"
        try:
            if tracing is None:
                again = await controller.reconcile(key)
            else:
                with tracing.reconciling(controller, key):
                    again = await controller.reconcile(key)
            queue.failures.pop(key, None)
        except MandorError as error:
            result = error.code
            again = _pause(controller, queue, key, error)
        finally:
            queue.done(key)
            measures.reconciled(controller.name, result, perf_counter() - began)
        if again is not None:
            queue.add_after(key, again)


def _about(key: Hashable) -> dict[str, object]:
    """Return the facts of a log record about a key."""
    return {"namespace": key.namespace, key.kind: key.name} if isinstance(key, Key) else {}


def _pause(controller: Controller[Any], queue: Queue, key: Hashable, error: MandorError) -> float | None:
    failures = queue.failures[key] = queue.failures.get(key, 0) + 1
    if isinstance(error, Conflict):
        log.debug("%s %s: %s", controller.name, key, error)
        return AFTER_CONFLICT.pause(failures)
    facts = {"controller": controller.name, **_about(key), **error.facts}
    log.warning("%s %s: %s", controller.name, key, error, extra={"facts": facts})
    if not error.retry:
        queue.failures.pop(key, None)
        return None
    return AFTER_ERROR.pause(failures)
