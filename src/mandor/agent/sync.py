"""Decides the next actions for an instance from its order, its memory and the observed units: pure.

The first rule that applies:

* the engine does not answer, or the instance is held: no action; an engine that is down is reported
* the order was withdrawn: stop running units, remove ended ones, then forget the instance
* the instance is ending (stop order, completed, failed, refused, disconnected): stop its units, then report the end
* otherwise: run the init tasks and early sidecars one after the other, then the other tasks, each restarted on its own
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from mandor.agent.launch import make_launch, make_live_files
from mandor.agent.live_file_plan import file_secrets
from mandor.agent.order import Memory, Order, TaskMemory
from mandor.agent.restart import after, end_of
from mandor.agent.status import DISCONNECTED, cut_off, describe, ending_of, failed, final, over, unseen
from mandor.agent.sync_inputs import PASSED, SyncInputs
from mandor.engines.base import Launch, Observed, Unit, UnitPhase
from mandor.model.instance import InstanceStatus
from mandor.model.live_file import LiveFile
from mandor.model.phase import Phase

GRACE_UNKNOWN = 10.0
"""Grace period in seconds of units without an order."""
SOON_SECONDS = 0.001
"""Shortest wait in seconds, so that rounding does not cause a wait of 0."""
ALONE_SECONDS = 1.0
"""Interval in seconds between checks whether an instance with `stop_after` may start."""
STOP_ORDERED = "StopOrdered"
"""Reason of an instance that ends because of its stop order."""
MISSING_SECONDS = 5.0
"""Seconds between retries of an instance that waits for a volume or secret."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start a unit."""

    unit: Unit
    launch: Launch
    live_files: tuple[LiveFile, ...] = ()
    """Live files with their texts, written to the node before the unit starts."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop a unit within its grace period."""

    unit: Unit
    grace_seconds: float


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove an ended unit."""

    unit: Unit


Action = Start | Stop | Remove


@dataclass(frozen=True, slots=True)
class Decision:
    """The next actions for an instance, with its new memory and status."""

    memory: Memory
    actions: tuple[Action, ...] = ()
    status: InstanceStatus | None = None
    """The status to report; None: unchanged."""
    wake_at: float | None = None
    """Time of the next decision, even if nothing changes."""
    forget: bool = False
    """Whether nothing of the instance is left."""


def sync(order: Order, memory: Memory, inputs: SyncInputs, now: float) -> Decision:
    """Decide the next actions for one instance; repeating decision and actions converges to no action."""
    if inputs.units is None:
        return Decision(memory, status=unseen(inputs))
    if inputs.gone:
        return _clear(order, memory, inputs.units)
    if memory.held:
        return Decision(memory)
    memory = _adopt(memory, inputs.units)
    if memory.ending is None and (ending := _end_from_outside(order, memory, inputs, now)) is not None:
        memory = msgspec.structs.replace(memory, ending=ending)
    if memory.ending is None and order.template is not None:
        return _run(order, memory, inputs, now)
    if memory.ending is None:
        return Decision(memory)
    return _wind_down(order, memory, inputs, now)


def sync_all(
    orders: Mapping[str, Order], memories: Mapping[str, Memory], inputs: Mapping[str, SyncInputs], now: float
) -> dict[str, Decision]:
    """Return the result of `sync` for every order, by uid."""
    return {uid: sync(order, memories.get(uid, Memory()), inputs[uid], now) for uid, order in orders.items()}


def live(units: Iterable[Observed]) -> list[Observed]:
    return [each for each in units if each.phase is not UnitPhase.EXITED]


def _clear(order: Order, memory: Memory, units: tuple[Observed, ...]) -> Decision:
    running = live(units)
    if running:
        return Decision(memory, _stops(order, running))
    return Decision(memory, tuple(Remove(each.unit) for each in units), forget=not units)


def _adopt(memory: Memory, units: tuple[Observed, ...]) -> Memory:
    """Take over later attempts that the engine shows: a journal can be lost, the labels of a unit cannot."""
    for each in units:
        known = memory.task(each.unit.task)
        if each.unit.attempt > known.attempt:
            found = TaskMemory(attempt=each.unit.attempt, ran_seconds=known.ran_seconds, restarts=known.restarts)
            memory = memory.with_task(each.unit.task, found)
    return memory


def _end_from_outside(order: Order, memory: Memory, inputs: SyncInputs, now: float) -> InstanceStatus | None:
    """Return the final status of an instance that ends for another reason than its tasks; None: it goes on."""
    stored, stop = order.instance.status, order.instance.spec.stop
    if stored.phase.over:
        return stored
    natural = _natural_end(order, memory, inputs, now)
    if natural is not None:
        return natural
    if stop is not None:
        return final(Phase.STOPPED, STOP_ORDERED, stop.reason)
    begun = bool(memory.tasks)
    if inputs.refusal and not begun:
        return final(Phase.FAILED, inputs.refusal_reason, inputs.refusal)
    limit = order.supervision.stop_after
    if inputs.settled and begun and inputs.silence >= limit:
        return cut_off(limit)
    return None


def _natural_end(order: Order, memory: Memory, inputs: SyncInputs, now: float) -> InstanceStatus | None:
    """Return Succeeded if all main tasks completed before the stop order arrived; None: they did not."""
    if order.template is None or order.instance.spec.stop is None:
        return None
    mains = [name for name, task in order.template.tasks.items() if task.role == "main"]
    for name in mains:
        known = memory.task(name)
        if known.completed:
            continue
        mine = _unit_of(inputs.units or (), name, known.attempt)
        if mine is None or mine.phase is not UnitPhase.EXITED:
            return None
        if after(end_of(mine, known, now), "main", known, order.supervision, name).what != "completed":
            return None
    return ending_of(memory, mains)


def _wind_down(order: Order, memory: Memory, inputs: SyncInputs, now: float) -> Decision:
    assert memory.ending is not None
    units = inputs.units or ()
    running = live(units)
    if running:
        # A replacement starts elsewhere soon after a disconnection: stop all tasks at once, sidecars included.
        sidecars = _names(order, "sidecar") if memory.ending.reason != DISCONNECTED else []
        first = [each for each in running if each.unit.task not in sidecars]
        status = describe(order, memory, inputs, now, Phase.STOPPING)
        if inputs.draining and memory.ending.reason == STOP_ORDERED:
            return Decision(memory, status=status)
        return Decision(memory, _stops(order, first or running, at_once=memory.at_once), status)
    memory = msgspec.structs.replace(memory, over=True)
    return Decision(memory, status=over(order, memory, inputs, now))


def _stops(order: Order, units: Iterable[Observed], *, at_once: bool = False) -> tuple[Action, ...]:
    return tuple(Stop(each.unit, 0.0 if at_once else grace_of(order, each.unit.task)) for each in units)


def grace_of(order: Order, task: str) -> float:
    stop = order.instance.spec.stop
    if stop is not None and stop.grace_seconds is not None:
        return stop.grace_seconds
    if order.template is None or task not in order.template.tasks:
        return GRACE_UNKNOWN
    return float(order.template.tasks[task].stop.grace)


def _names(order: Order, *roles: str) -> list[str]:
    tasks = order.template.tasks if order.template else {}
    return [name for role in roles for name, task in tasks.items() if task.role == role]


def _unit_of(units: Iterable[Observed], task: str, attempt: int) -> Observed | None:
    return next((each for each in units if each.unit.task == task and each.unit.attempt == attempt), None)


@dataclass(slots=True)
class _Step:
    """Collects memory, actions and wake-up time over the tasks of one instance."""

    memory: Memory
    actions: list[Action] = field(default_factory=list)
    failure: tuple[str, str, int | None] | None = None
    wake_at: float | None = None

    def wake(self, at: float) -> None:
        self.wake_at = at if self.wake_at is None else min(self.wake_at, at)


def _run(order: Order, memory: Memory, inputs: SyncInputs, now: float) -> Decision:
    assert order.template is not None
    step = _Step(memory)
    first = order.template.starts_first
    waits = False
    for name in (*first, *(each for each in _names(order, "sidecar", "main") if each not in first)):
        known = step.memory.task(name)
        if not known.completed and (known.attempt or not waits):
            _sync_task(step, order, name, inputs, now)
        waits = waits or (name in first and not _lets_others_start(step.memory, order, name, inputs))
    memory = step.memory
    ending = None
    if step.failure is not None:
        ending = failed(*step.failure)
    elif all(memory.task(name).completed for name in _names(order, "main")):
        ending = ending_of(memory, _names(order, "main"))
    if ending is not None:
        return _wind_down(order, msgspec.structs.replace(memory, ending=ending), inputs, now)
    _remove_old(step, inputs.units or ())
    left = order.supervision.stop_after - inputs.silence
    if inputs.settled and 0 < left < float("inf"):
        step.wake(now + max(left, SOON_SECONDS))
    return Decision(memory, tuple(step.actions), describe(order, memory, inputs, now), step.wake_at)


def _lets_others_start(memory: Memory, order: Order, name: str, inputs: SyncInputs) -> bool:
    """Return whether the tasks after an init task, or after an early sidecar, may start."""
    assert order.template is not None
    task, known = order.template.tasks[name], memory.task(name)
    if task.role == "init":
        return known.completed
    mine = _unit_of(inputs.units or (), name, known.attempt)
    if mine is None or mine.phase is not UnitPhase.RUNNING:
        return False
    result = inputs.probe_results.get(mine.unit)
    return task.startup is None or (result is not None and result.started)


def _sync_task(step: _Step, order: Order, name: str, inputs: SyncInputs, now: float) -> None:
    """Decide on one task: start it, leave it alone, stop it because it is unhealthy, or handle its end."""
    assert order.template is not None
    units = inputs.units or ()
    known = step.memory.task(name)
    mine = _unit_of(units, name, known.attempt)
    older = [each for each in live(units) if each.unit.task == name and each.unit.attempt < known.attempt]
    if older:  # Two units of one task must never run: the later one waits.
        step.actions += [Stop(each.unit, grace_of(order, name)) for each in older]
        return
    unit = Unit(order.uid, name, max(known.attempt, 1))
    if mine is None and unit not in inputs.known:
        _begin(step, order, unit, known, inputs, now)
    elif mine is not None and mine.phase is not UnitPhase.EXITED:
        if known.unhealthy or not inputs.probe_results.get(unit, PASSED).alive:
            step.memory = step.memory.with_task(name, msgspec.structs.replace(known, unhealthy=True))
            step.actions.append(Stop(unit, grace_of(order, name)))
    elif inputs.settled:
        role = order.template.tasks[name].role
        verdict = after(end_of(mine, known, now), role, known, order.supervision, name)
        step.memory = step.memory.with_task(name, verdict.memory)
        if verdict.what == "failed":
            step.failure = step.failure or (verdict.reason, verdict.message, verdict.memory.exit_code)
        elif verdict.what == "again":
            _begin(step, order, Unit(order.uid, name, verdict.memory.attempt), verdict.memory, inputs, now)


def _begin(step: _Step, order: Order, unit: Unit, known: TaskMemory, inputs: SyncInputs, now: float) -> None:
    if known.due - now > known.pause:  # The clock was set back: wait for the pause only.
        known = msgspec.structs.replace(known, due=now + known.pause)
        step.memory = step.memory.with_task(unit.task, known)
    if known.due > now:
        step.wake(known.due)
        return
    # An instance with `stop_after` starts only when all servers have this node's heartbeat again: one of them may be
    # declaring its instances lost right now.
    alone = order.supervision.stop_after != float("inf") and inputs.recent_silence >= order.supervision.stop_after
    if alone:
        step.wake(now + ALONE_SECONDS)
    if not inputs.settled or alone or (inputs.wait and known.attempt == 0):
        return
    if inputs.missing or inputs.silence >= order.supervision.stop_after:
        step.wake(now + MISSING_SECONDS)
        return
    begun = msgspec.structs.replace(
        known, attempt=unit.attempt, file_secrets=file_secrets(order, unit.task), signal_due=False
    )
    step.memory = step.memory.with_task(unit.task, begun)
    launch = make_launch(order, unit.task, step.memory.engine, inputs)
    step.actions.append(Start(unit, launch, make_live_files(order, unit.task, step.memory.engine, inputs)))


def _remove_old(step: _Step, units: Iterable[Observed]) -> None:
    """Remove ended units except the previous attempt, which is kept for its logs."""
    for each in units:
        if each.phase is UnitPhase.EXITED and each.unit.attempt < step.memory.task(each.unit.task).attempt - 1:
            step.actions.append(Remove(each.unit))
