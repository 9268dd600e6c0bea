"""From orders and what the engines show to what is done next: pure.

One rule a situation, the first that applies:

* its engine does not answer, or it is held: nothing is done; that the engine is down is told
* nobody wants it any more: stop what lives, remove what ended, then forget it
* it is ending (stop order, completed, failed, refused, cut off): stop what lives, then report it over
* otherwise: init tasks one after the other, then mains and sidecars, each restarted alone
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
"""For units whose order nobody has any more."""
SOON_SECONDS = 0.001
"""Nobody is looked at again sooner, for a rest that rounding left."""
ALONE_SECONDS = 1.0
"""So often one that must not run alone looks whether the control plane is there."""
LACKS_SECONDS = 5.0
"""So often an instance that lacks a volume is looked at again."""


@dataclass(frozen=True, slots=True)
class Start:
    unit: Unit
    launch: Launch
    live_files: tuple[LiveFile, ...] = ()
    """With their texts; written to the node before the unit starts."""


@dataclass(frozen=True, slots=True)
class Stop:
    unit: Unit
    grace_seconds: float


@dataclass(frozen=True, slots=True)
class Remove:
    unit: Unit


Action = Start | Stop | Remove


@dataclass(frozen=True, slots=True)
class Decision:
    memory: Memory
    actions: tuple[Action, ...] = ()
    status: InstanceStatus | None = None
    """To be reported; None: nothing new is known."""
    wake_at: float | None = None
    """Look again by then, even if nothing happens."""
    forget: bool = False
    """Nothing of it is left."""


def sync(order: Order, memory: Memory, inputs: SyncInputs, now: float) -> Decision:
    """What to do about one instance; doing it and asking again leads to rest."""
    if inputs.units is None:
        return Decision(memory, status=unseen(inputs))
    if inputs.gone:
        return _clear(order, memory, inputs.units)
    if memory.held:
        return Decision(memory)
    memory = _adopted(memory, inputs.units)
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
    """`sync` for every order, by uid."""
    return {uid: sync(order, memories.get(uid, Memory()), inputs[uid], now) for uid, order in orders.items()}


def live(units: Iterable[Observed]) -> list[Observed]:
    return [each for each in units if each.phase is not UnitPhase.EXITED]


def _clear(order: Order, memory: Memory, units: tuple[Observed, ...]) -> Decision:
    running = live(units)
    if running:
        return Decision(memory, _stops(order, running))
    return Decision(memory, tuple(Remove(each.unit) for each in units), forget=not units)


def _adopted(memory: Memory, units: tuple[Observed, ...]) -> Memory:
    """An engine that knows a later attempt than the memory is right: a journal can be lost, a label not."""
    for each in units:
        known = memory.task(each.unit.task)
        if each.unit.attempt > known.attempt:
            found = TaskMemory(attempt=each.unit.attempt, ran_seconds=known.ran_seconds, restarts=known.restarts)
            memory = memory.with_task(each.unit.task, found)
    return memory


def _end_from_outside(order: Order, memory: Memory, inputs: SyncInputs, now: float) -> InstanceStatus | None:
    """Why it ends though its tasks did not: it was over before, told to stop, refused, or cut off."""
    stored, stop = order.instance.status, order.instance.spec.stop
    if stored.phase.over:
        return stored
    natural = _natural_end(order, memory, inputs, now)
    if natural is not None:
        return natural
    if stop is not None:
        return final(Phase.STOPPED, "StopOrdered", stop.reason)
    begun = bool(memory.tasks)
    if inputs.refusal and not begun:
        return final(Phase.FAILED, inputs.refusal_reason, inputs.refusal)
    limit = order.supervision.stop_after
    if inputs.settled and begun and inputs.silence >= limit:
        return cut_off(limit)
    return None


def _natural_end(order: Order, memory: Memory, inputs: SyncInputs, now: float) -> InstanceStatus | None:
    """Mains that had all completed before the order to stop came make it Succeeded, not Stopped."""
    if order.template is None or order.instance.spec.stop is None:
        return None
    mains = [name for name, task in order.template.tasks.items() if task.role == "main"]
    for name in mains:
        known = memory.task(name)
        if known.completed:
            continue
        mine = _mine(inputs.units or (), name, known.attempt)
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
        # Elsewhere another one begins soon: nobody waits for others.
        sidecars = _names(order, "sidecar") if memory.ending.reason != DISCONNECTED else []
        first = [each for each in running if each.unit.task not in sidecars]
        status = describe(order, memory, inputs, now, Phase.STOPPING)
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


def _mine(units: Iterable[Observed], task: str, attempt: int) -> Observed | None:
    return next((each for each in units if each.unit.task == task and each.unit.attempt == attempt), None)


@dataclass(slots=True)
class _Step:
    """What the tasks of one instance add up to while they are looked at, one after the other."""

    memory: Memory
    actions: list[Action] = field(default_factory=list)
    failure: tuple[str, str, int | None] | None = None
    wake_at: float | None = None

    def wake(self, at: float) -> None:
        self.wake_at = at if self.wake_at is None else min(self.wake_at, at)


def _run(order: Order, memory: Memory, inputs: SyncInputs, now: float) -> Decision:
    step = _Step(memory)
    init = _names(order, "init")
    for name in init:
        if not step.memory.task(name).completed:
            _look(step, order, name, inputs, now)
        if not step.memory.task(name).completed:
            break
    else:
        for name in _names(order, "sidecar", "main"):
            if not step.memory.task(name).completed:
                _look(step, order, name, inputs, now)
    memory = step.memory
    ending = None
    if step.failure is not None:
        ending = failed(*step.failure)
    elif all(memory.task(name).completed for name in _names(order, "main")):
        ending = ending_of(memory, _names(order, "main"))
    if ending is not None:
        return _wind_down(order, msgspec.structs.replace(memory, ending=ending), inputs, now)
    _tidy(step, inputs.units or ())
    left = order.supervision.stop_after - inputs.silence
    if inputs.settled and 0 < left < float("inf"):
        step.wake(now + max(left, SOON_SECONDS))
    return Decision(memory, tuple(step.actions), describe(order, memory, inputs, now), step.wake_at)


def _look(step: _Step, order: Order, name: str, inputs: SyncInputs, now: float) -> None:
    """One task: start it, leave it alone, stop it because it is unhealthy, or judge its end."""
    assert order.template is not None
    units = inputs.units or ()
    known = step.memory.task(name)
    mine = _mine(units, name, known.attempt)
    older = [each for each in live(units) if each.unit.task == name and each.unit.attempt < known.attempt]
    if older:  # Two of one task must never run: the later one waits.
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
    if known.due - now > known.pause:  # The clock was set back: wait the pause, not the jump.
        known = msgspec.structs.replace(known, due=now + known.pause)
        step.memory = step.memory.with_task(unit.task, known)
    if known.due > now:
        step.wake(known.due)
        return
    # Whoever must not run alone does not begin before the whole control plane knows that this node is back: one of its
    # servers may just be giving it up.
    alone = order.supervision.stop_after != float("inf") and inputs.recent_silence >= order.supervision.stop_after
    if alone:
        step.wake(now + ALONE_SECONDS)
    if not inputs.settled or alone or (inputs.wait and known.attempt == 0):
        return
    if inputs.missing or inputs.silence >= order.supervision.stop_after:
        step.wake(now + LACKS_SECONDS)
        return
    begun = msgspec.structs.replace(
        known, attempt=unit.attempt, file_secrets=file_secrets(order, unit.task), signal_due=False
    )
    step.memory = step.memory.with_task(unit.task, begun)
    launch = make_launch(order, unit.task, step.memory.engine, inputs)
    step.actions.append(Start(unit, launch, make_live_files(order, unit.task, step.memory.engine, inputs)))


def _tidy(step: _Step, units: Iterable[Observed]) -> None:
    """The unit before the present one stays, for its logs; older ones go."""
    for each in units:
        if each.phase is UnitPhase.EXITED and each.unit.attempt < step.memory.task(each.unit.task).attempt - 1:
            step.actions.append(Remove(each.unit))
