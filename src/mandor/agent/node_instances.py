"""Reclaims resources of the node: finds instances to evict, and removes images and ended units."""

import logging
from collections.abc import Iterable

from mandor.agent.pressure import EvictionCandidate
from mandor.agent.usage import read_usage
from mandor.agent.worker import Worker
from mandor.agent.workers import Workers
from mandor.engines.base import Engine, Unit
from mandor.errors import MandorError

log = logging.getLogger(__name__)


class NodeInstances:
    """Implements `Reclaimer` with the workers of the node."""

    def __init__(self, workers: Workers, engines: Iterable[Engine]) -> None:
        self._workers, self._engines = workers, tuple(engines)

    async def candidates(self, signal: str) -> list[EvictionCandidate]:
        used: dict[str, int] = {}
        for engine in self._engines:
            for unit, amount in (await _used(engine, signal)).items():
                used[unit.uid] = used.get(unit.uid, 0) + amount
        return [
            _candidate(each, signal, used.get(uid, 0)) for uid, each in self._workers.by_uid.items() if _evictable(each)
        ]

    async def clean_image(self) -> str:
        """Remove one image that no order of this node names."""
        templates = [worker.order.template for worker in self._workers.by_uid.values()]
        keep = {task.image for each in templates if each for form in each.forms for task in form.tasks.values()}
        for engine in self._engines:
            try:
                name = await engine.clean_image({image for image in keep if image})
            except MandorError as error:
                log.warning("engine %s cannot remove an unused image: %s", engine.name, error)
                continue
            if name:
                return name
        return ""

    async def discard_ended(self) -> int:
        """Remove the units, and with them the logs, of instances that have ended."""
        count = 0
        for uid, worker in list(self._workers.by_uid.items()):
            if not worker.memory.over or worker.memory.held:
                continue
            name, units = self._workers.engines.find(uid, worker.memory.engine)
            for each in units or ():
                try:
                    await self._workers.engines.engine(name).remove(each.unit)
                    count += 1
                except MandorError:
                    continue
        return count

    def evict(self, uid: str, message: str, *, hard: bool) -> None:
        worker = self._workers.by_uid.get(uid)
        if worker is not None:
            worker.evict(message, hard=hard)

    def alive(self, uid: str) -> bool:
        worker = self._workers.by_uid.get(uid)
        return worker is not None and worker.alive


def _evictable(worker: Worker) -> bool:
    """Return whether the instance runs and is not ending."""
    memory = worker.memory
    ending = memory.ending is not None or memory.over or worker.gone or worker.order.instance.spec.stop is not None
    return not ending and not memory.held and worker.order.template is not None and worker.alive


def _candidate(worker: Worker, signal: str, used: int) -> EvictionCandidate:
    assert worker.order.template is not None
    request = worker.order.template.request
    requested = request.memory_bytes if signal == "memory" else request.disk_bytes
    priority, movable = worker.order.supervision.priority, not worker.order.instance.spec.home
    return EvictionCandidate(worker.uid, priority, used, requested, movable)


async def _used(engine: Engine, signal: str) -> dict[Unit, int]:
    if signal == "memory":
        return {unit: usage.memory_bytes for unit, usage in (await read_usage(engine)).items()}
    try:
        return dict(await engine.disk())
    except MandorError:
        return {}
