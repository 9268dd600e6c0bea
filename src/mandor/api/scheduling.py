"""How the scheduler would decide: its configuration and the plans of the controllers, lent to the API, and a desk
where they are put to use without holding anybody up."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from mandor.api.http.fair_queue import LIMITS, Lane
from mandor.errors import TooMany, Unavailable
from mandor.lib.steps import at_once
from mandor.model.instance import Instance
from mandor.model.meta import Object
from mandor.model.node import Node
from mandor.model.priority import PriorityClass
from mandor.model.quota import Quota
from mandor.model.reservation import Reservation
from mandor.model.volume import Volume
from mandor.model.workload import Release, Workload
from mandor.placement.cluster_model import ClusterModel
from mandor.placement.config import SchedulerConfig, default_config
from mandor.placement.consult import Consult, consult
from mandor.placement.forecast import Controls
from mandor.placement.framework.handle import Detached
from mandor.placement.framework.points import Question, Reply
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.runtime import PluginFault
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.framework.watch import Guard, Overrun, Unguarded
from mandor.placement.plugin_source import Registry, find_plugins
from mandor.placement.profile_factory import ProfileFactory
from mandor.store.base import Store

T = TypeVar("T")

KINDS = (Node, PriorityClass, Quota, Reservation, Volume, Workload, Release, Instance)
"""What placement depends on."""
AT_ONCE = LIMITS[Lane.FORECAST].slots
"""Answers computed at a time: one identity has one of these seats, so another one is free for the others."""
WAITING_MOST = 8
"""Answers that are computed or wait for a seat."""
SECONDS_MOST = 40.0
"""A forecast that takes longer is broken off, and says so."""

Inquire = Callable[[Question], Awaitable[Reply]]


def built_in() -> tuple[SchedulerConfig, Registry]:
    registry = find_plugins()
    return default_config(registry), registry


async def _nobody(question: Question) -> Reply:
    return Reply(problem=f"there is no way to {question.url} from here")


@dataclass(frozen=True, slots=True)
class Scheduling:
    read: Callable[[], tuple[SchedulerConfig, Registry]] = built_in
    """The scheduler's configuration and the plugins there are, as they are now."""
    controls: Controls | None = None
    """What controllers would write; None: nothing can be rehearsed."""
    guard: Callable[[], Guard] = Unguarded
    """Breaks off a plugin that overruns its budget."""
    inquire: Inquire = _nobody


@dataclass(frozen=True, slots=True)
class Bench:
    """What one answer is worked out with, in a thread of its own: everything on it is its own copy."""

    objects: list[Object]
    config: SchedulerConfig
    registry: Registry
    guard: Guard
    consult: Consult
    until: float
    """Of `time.monotonic`."""
    boards: list[ClusterModel] = field(default_factory=list)
    """They are taken apart when the answer is there."""

    def board(self) -> ClusterModel:
        """The cluster as it is."""
        made = ClusterModel(self.objects)
        self.boards.append(made)
        return made

    def profiles(self, board: ClusterModel, config: SchedulerConfig | None = None) -> dict[str, Profile]:
        """With plugins of its own, which know nothing of what the scheduler's have learnt."""
        return ProfileFactory(Detached(board.table.snapshot)).profiles(config or self.config, self.registry)

    def enough(self) -> bool:
        return time.monotonic() > self.until


class Desk:
    """Computes answers in threads, `AT_ONCE` at a time; a few others wait."""

    def __init__(self, store: Store, scheduling: Scheduling) -> None:
        self._store = store
        self._scheduling = scheduling
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0

    async def work(self, answer: Callable[[Bench], T]) -> T:
        if self._waiting >= WAITING_MOST:
            raise TooMany("others are asking, too", hint="try again in a few seconds")
        self._waiting += 1
        try:
            async with self._turn:
                config, registry = self._scheduling.read()
                objects: list[Object] = []
                for kind in KINDS:
                    objects += (await self._store.list(kind.kind)).items
                loop = asyncio.get_running_loop()
                return await asyncio.to_thread(_work, self._scheduling, config, registry, objects, loop, answer)
        finally:
            self._waiting -= 1


def _work(
    scheduling: Scheduling,
    config: SchedulerConfig,
    registry: Registry,
    objects: list[Object],
    loop: asyncio.AbstractEventLoop,
    answer: Callable[[Bench], T],
) -> T:
    with scheduling.guard() as guard:
        consult_now = partial(_consult, guard, scheduling.inquire, loop)
        bench = Bench(objects, config, registry, guard, consult_now, time.monotonic() + SECONDS_MOST)
        try:
            return guard.run(lambda: answer(bench))
        except PluginFault as fault:
            raise Unavailable(str(fault), hint="the scheduler's configuration says which plugins there are") from fault
        except Overrun:
            raise Unavailable(f"the plugin {guard.last} took too long and was broken off") from None
        finally:
            for board in bench.boards:
                at_once(board.dismantle())


def _consult(
    guard: Guard,
    inquire: Inquire,
    loop: asyncio.AbstractEventLoop,
    profile: Profile,
    request: PlacementRequest,
    nodes: Snapshot,
) -> Mapping[str, object]:
    """From the thread: the questions are asked by the event loop, and waited for here."""
    talk = consult(profile, request, nodes, guard)
    try:
        question = next(talk)
        while True:
            asked = asyncio.run_coroutine_threadsafe(_asked(inquire, question), loop)
            question = talk.send(asked.result())
    except StopIteration as end:
        found: Mapping[str, object] = end.value
        return found


async def _asked(inquire: Inquire, question: Question) -> Reply:
    try:
        async with asyncio.timeout(question.seconds + 1):
            return await inquire(question)
    except TimeoutError:
        return Reply(problem=f"{question.url} did not answer within {question.seconds:g}s")
