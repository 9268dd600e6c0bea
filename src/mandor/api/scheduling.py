"""Forecasts of the scheduler's decisions for plans and explanations, computed in threads."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from mandor.api.http.fair_queue import LIMITS, Lane
from mandor.errors import Unavailable
from mandor.lib.steps import at_once
from mandor.model.instance import Instance
from mandor.model.meta import Object
from mandor.model.node import Node
from mandor.model.priority import PriorityClass
from mandor.model.quota import Quota
from mandor.model.record import Namespace
from mandor.model.reservation import Reservation
from mandor.model.volume import Volume
from mandor.model.workload import Release, Workload
from mandor.placement.cluster_model import ClusterModel
from mandor.placement.config import SchedulerConfig, default_config
from mandor.placement.consult import Consult, consult
from mandor.placement.forecast import Controls
from mandor.placement.framework.handle import Detached
from mandor.placement.framework.points import HttpCall, HttpReply
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.runtime import PluginFault
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.framework.watch import Guard, Overrun, Unguarded
from mandor.placement.plugin_source import Registry, find_plugins
from mandor.placement.profile_factory import ProfileFactory
from mandor.store.base import Store

T = TypeVar("T")

KINDS = (Namespace, Node, PriorityClass, Quota, Reservation, Volume, Workload, Release, Instance)
"""Kinds that placement depends on."""
AT_ONCE = LIMITS[Lane.FORECAST].slots
"""Forecasts that are computed at once; one identity holds one slot at most."""
SECONDS_MOST = 40.0
"""Time limit of a forecast; a report that reaches it is marked as incomplete."""
CONTENDED_SECONDS_MOST = 10.0
"""Time limit of a forecast while another identity waits for a slot; shorter than the longest wait for a slot."""

Inquire = Callable[[HttpCall], Awaitable[HttpReply]]


def built_in() -> tuple[SchedulerConfig, Registry]:
    registry = find_plugins()
    return default_config(registry), registry


async def _no_inquiry(question: HttpCall) -> HttpReply:
    return HttpReply(problem=f"this server cannot reach {question.url}")


@dataclass(frozen=True, slots=True)
class Scheduling:
    """The scheduler's configuration and the controllers' plans, as the API uses them for forecasts."""

    read: Callable[[], tuple[SchedulerConfig, Registry]] = built_in
    """Returns the current configuration of the scheduler, and the plugins."""
    controls: Controls | None = None
    """Computes the writes of the controllers; None: this server cannot make plans."""
    guard: Callable[[], Guard] = Unguarded
    """Stops a plugin that exceeds its time budget."""
    inquire: Inquire = _no_inquiry
    """Sends the question of a plugin to another server."""


class Deadline:
    """Time limit of one forecast: shorter while another identity waits, and over at once when the call is cancelled.

    The thread of the forecast reads it, and the event loop cancels it.
    """

    def __init__(self, contended: Callable[[], bool]) -> None:
        self._contended, self._began = contended, time.monotonic()
        self.cancelled = False

    def expired(self) -> bool:
        elapsed = time.monotonic() - self._began
        return self.cancelled or elapsed > SECONDS_MOST or (elapsed > CONTENDED_SECONDS_MOST and self._contended())


@dataclass(frozen=True, slots=True)
class ForecastWorkspace:
    """Copies of the cluster's objects and the scheduler's configuration, for one forecast in a thread of its own."""

    objects: list[Object]
    config: SchedulerConfig
    registry: Registry
    guard: Guard
    consult: Consult
    deadline: Deadline
    models: list[ClusterModel] = field(default_factory=list)
    """Taken apart after the forecast."""

    def model(self) -> ClusterModel:
        """Return a new model of the cluster in its current state."""
        made = ClusterModel(self.objects)
        self.models.append(made)
        return made

    def profiles(self, model: ClusterModel, config: SchedulerConfig | None = None) -> dict[str, Profile]:
        """Return profiles with plugins of their own, which share no state with the scheduler's plugins."""
        return ProfileFactory(Detached(model.table.snapshot)).profiles(config or self.config, self.registry)

    def expired(self) -> bool:
        return self.deadline.expired()


class ForecastRunner:
    """Computes forecasts in its own threads, `AT_ONCE` at a time.

    Requests reach it through the lane `FORECAST`, which serves identities in turns and limits how long they wait. A
    forecast keeps its thread until it ends, also when its caller has gone.
    """

    def __init__(self, store: Store, scheduling: Scheduling, others_wait: Callable[[str], bool]) -> None:
        """`others_wait`: returns whether another identity than this one waits for a forecast."""
        self._store, self._scheduling, self._others_wait = store, scheduling, others_wait
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="mandor-forecast")

    async def run(self, identity: str, compute: Callable[[ForecastWorkspace], T]) -> T:
        """Return the result of `compute`, called in a thread."""
        config, registry = self._scheduling.read()
        objects: list[Object] = []
        for kind in KINDS:
            objects += (await self._store.list(kind.kind)).items
        loop = asyncio.get_running_loop()
        deadline = Deadline(partial(self._others_wait, identity))
        work = partial(_compute, self._scheduling, config, registry, objects, loop, deadline, compute)
        try:
            return await loop.run_in_executor(self._threads, work)
        except asyncio.CancelledError:
            deadline.cancelled = True
            raise


def _compute(
    scheduling: Scheduling,
    config: SchedulerConfig,
    registry: Registry,
    objects: list[Object],
    loop: asyncio.AbstractEventLoop,
    deadline: Deadline,
    compute: Callable[[ForecastWorkspace], T],
) -> T:
    with scheduling.guard() as guard:
        consult_now = partial(_consult, guard, scheduling.inquire, loop)
        workspace = ForecastWorkspace(objects, config, registry, guard, consult_now, deadline)
        try:
            return guard.run(lambda: compute(workspace))
        except PluginFault as fault:
            raise Unavailable(str(fault), hint="check the plugins in the scheduler's configuration") from fault
        except Overrun:
            raise Unavailable(f"the plugin {guard.last} exceeded its time limit and was stopped") from None
        finally:
            for model in workspace.models:
                at_once(model.dismantle())


def _consult(
    guard: Guard,
    inquire: Inquire,
    loop: asyncio.AbstractEventLoop,
    profile: Profile,
    request: PlacementRequest,
    nodes: Snapshot,
) -> Mapping[str, object]:
    """Let the event loop send the questions of plugins, and wait for the replies in this thread."""
    questions = consult(profile, request, nodes, guard)
    try:
        question = next(questions)
        while True:
            sent = asyncio.run_coroutine_threadsafe(_inquired(inquire, question), loop)
            question = questions.send(sent.result())
    except StopIteration as end:
        found: Mapping[str, object] = end.value
        return found


async def _inquired(inquire: Inquire, question: HttpCall) -> HttpReply:
    try:
        async with asyncio.timeout(question.seconds + 1):
            return await inquire(question)
    except TimeoutError:
        return HttpReply(problem=f"{question.url} did not answer within {question.seconds:g}s")
