"""Status of an instance, as reported: pure."""

from collections.abc import Iterable, Sequence

import msgspec

from mandor.agent.order import Memory, Order, TaskMemory
from mandor.agent.ports import on_node_too, ports_of
from mandor.agent.sync_inputs import SyncInputs
from mandor.engines.base import Observed, Unit, UnitPhase
from mandor.lib.quantity import Seconds, SecondsOrNever
from mandor.model.instance import InstanceStatus, TaskStatus
from mandor.model.phase import MOVES, Phase, may_move

DISCONNECTED = "Disconnected"
REASON_MOST = 64
MESSAGE_MOST = 1000


def final(phase: Phase, reason: str, message: str, exit_code: int | None = None) -> InstanceStatus:
    """Return the core of a final status; `over` adds the rest once no unit runs any more."""
    return InstanceStatus(phase=phase, reason=reason, message=message, exit_code=exit_code)


def cut_off(limit: SecondsOrNever) -> InstanceStatus:
    """Return the final status of an instance that exceeded its `stop_after`."""
    return final(Phase.STOPPED, DISCONNECTED, f"no contact with the control plane for {limit}")


def failed(reason: str, message: str, exit_code: int | None) -> InstanceStatus:
    return final(Phase.FAILED, reason, message, exit_code)


def ending_of(memory: Memory, mains: Sequence[str]) -> InstanceStatus:
    """Return the final status of an instance whose main tasks have all completed."""
    codes = [memory.task(name).exit_code for name in mains]
    return final(Phase.SUCCEEDED, "Completed", "", next((code for code in codes if code is not None), 0))


def describe(
    order: Order, memory: Memory, inputs: SyncInputs, now: float, phase: Phase | None = None
) -> InstanceStatus:
    """Return the status of an instance that has not ended; `phase` None: derived from its units."""
    names = _long_running(order)
    running = all(_phase(inputs, order.uid, name, memory.task(name)) is Phase.RUNNING for name in names)
    begun = bool(memory.tasks)
    if phase is None:
        phase = Phase.RUNNING if running and names else Phase.STARTING if begun else Phase.RESERVED
    ready = phase is Phase.RUNNING and all(_ready(order, memory, inputs, name) for name in names)
    reason, message = _reason_and_message(order, memory, inputs, phase)
    return _filled(
        InstanceStatus(phase=phase, reason=reason, message=message, ready=ready, exit_code=_last_code(memory)),
        order,
        memory,
        inputs,
        now,
    )


def unseen(inputs: SyncInputs) -> InstanceStatus | None:
    """Return the last status with the reason EngineDown, while the engine is down; None: nothing to report."""
    status = inputs.status
    if not inputs.down or status.phase not in _BETWEEN:
        return None
    return msgspec.structs.replace(status, reason="EngineDown", message=inputs.down[:MESSAGE_MOST])


def over(order: Order, memory: Memory, inputs: SyncInputs, now: float) -> InstanceStatus:
    """Return the final status."""
    assert memory.ending is not None
    if order.instance.status.phase.over:
        return order.instance.status
    code = memory.ending.exit_code
    if code is None:
        exited = [each.exit_code for each in inputs.units or () if each.exit_code is not None]
        code = exited[-1] if exited else None
    return _filled(msgspec.structs.replace(memory.ending, exit_code=code), order, memory, inputs, now)


_BETWEEN = (Phase.STARTING, Phase.RUNNING, Phase.STOPPING)


def path(before: Phase, after: Phase, *, at_once: bool = True) -> list[Phase]:
    """Return the shortest sequence of allowed phases from `before` (not included) to `after`; empty: there is none.

    Phases that were passed while the control plane was unreachable are filled in; Lost is never one of them.
    `at_once`: the servers accept Running directly after Reserved.
    """
    if not at_once and before is Phase.RESERVED and after is Phase.RUNNING:
        return [Phase.STARTING, Phase.RUNNING]
    paths: list[list[Phase]] = [[before]]
    tried = {before}
    while paths:
        way = paths.pop(0)
        if may_move(way[-1], after):
            return [*way[1:], after]
        for step in _BETWEEN:
            if step in MOVES[way[-1]] and step not in tried:
                tried.add(step)
                paths.append([*way, step])
    return []


def _filled(status: InstanceStatus, order: Order, memory: Memory, inputs: SyncInputs, now: float) -> InstanceStatus:
    before = inputs.status
    started = [each.started_at for each in _latest(inputs, memory) if each.phase is UnitPhase.RUNNING]
    # The engine has the start time: an agent that is restarted reports the same as before.
    began = max(started) if status.phase is Phase.RUNNING and started else now
    address = next((each.address for each in _latest(inputs, memory) if each.address), "")
    ports = ports_of(order, published=inputs.published) if memory.engine and not status.phase.over else ()
    if address and inputs.own_network:
        ports = on_node_too(ports)
    attached = inputs.attachment if address else None
    if attached is not None and attached.address != address:
        attached = None  # the engine has not attached it
    since = before.since if before.phase is status.phase and before.since else began
    return msgspec.structs.replace(
        status,
        reason=status.reason[:REASON_MOST],
        message=status.message[:MESSAGE_MOST],
        restarts=sum(max(0, task.attempt - 1) for task in memory.tasks.values()),
        engine=memory.engine,
        address=address,
        network=attached.network if attached is not None else "",
        address6=attached.address6 if attached is not None else "",
        host=inputs.host if ports else "",
        zone=inputs.zone if ports else "",
        ports=ports,
        aliases=order.template.aliases if order.template is not None and not status.phase.over else (),
        since=since,
        started_at=min(started) if started else before.started_at,
        tasks=_tasks(order, memory, inputs),
        images=_images(order, memory, inputs) or before.images,
    )


def _images(order: Order, memory: Memory, inputs: SyncInputs) -> dict[str, str]:
    """Return the digests of the images that the template names by tag."""
    template = order.template
    found = {}
    for each in _latest(inputs, memory):
        image = template.tasks[each.unit.task].image if template and each.unit.task in template.tasks else None
        if each.digest and image and "@" not in image:
            found[image] = each.digest
    return found


def _long_running(order: Order) -> list[str]:
    tasks = order.template.tasks if order.template else {}
    return [name for name, task in tasks.items() if task.role != "init"]


def _latest(inputs: SyncInputs, memory: Memory) -> Iterable[Observed]:
    return (each for each in inputs.units or () if each.unit.attempt == memory.task(each.unit.task).attempt)


def _observed(inputs: SyncInputs, uid: str, name: str, task: TaskMemory) -> Observed | None:
    unit = Unit(uid, name, task.attempt)
    return next((each for each in inputs.units or () if each.unit == unit), None)


def _phase(inputs: SyncInputs, uid: str, name: str, task: TaskMemory) -> Phase:
    """Return the phase of a task; a main task that completed while others run counts as running."""
    if task.completed:
        return Phase.RUNNING
    if task.attempt == 0:
        return Phase.PENDING
    observed = _observed(inputs, uid, name, task)
    if observed is None or observed.phase is UnitPhase.STARTING:
        return Phase.STARTING
    return Phase.RUNNING if observed.phase is UnitPhase.RUNNING else Phase.FAILED


def _ready(order: Order, memory: Memory, inputs: SyncInputs, name: str) -> bool:
    opinion = inputs.probe_results.get(Unit(order.uid, name, memory.task(name).attempt))
    if opinion is not None:
        return opinion.ready and opinion.alive
    # No probe result yet: a task without readiness and startup probes is ready as soon as it runs.
    assert order.template is not None
    task = order.template.tasks[name]
    return (task.readiness is None and task.startup is None) or memory.task(name).completed


def _reason_and_message(order: Order, memory: Memory, inputs: SyncInputs, phase: Phase) -> tuple[str, str]:
    if phase is Phase.STOPPING and memory.ending is not None:
        return memory.ending.reason, memory.ending.message
    if phase is not Phase.RUNNING and inputs.error[0]:
        return inputs.error
    if inputs.missing and phase is not Phase.RUNNING:
        return inputs.missing_reason, inputs.missing
    if inputs.wait and phase is Phase.RESERVED:
        return "Waiting", inputs.wait
    for each in _latest(inputs, memory):
        if each.phase is UnitPhase.STARTING and each.message:
            return "Starting", each.message
    several = order.template is not None and len(order.template.tasks) > 1
    for name, task in memory.tasks.items():
        if not task.reason or task.attempt < 2:
            continue
        code = "" if task.exit_code is None else f", exit code {task.exit_code}"
        prefix = f"task {name}: " if several else ""
        if _observed(inputs, order.uid, name, task) is None:
            pause = Seconds(task.pause)
            return task.reason, f"{prefix}ended ({task.reason}{code}); restart {task.attempt - 1} after {pause}"
        if phase is Phase.RUNNING:
            return "", f"{prefix}restarted after it ended ({task.reason}{code})"
    return "", ""


def _last_code(memory: Memory) -> int | None:
    return next((task.exit_code for task in memory.tasks.values() if task.exit_code is not None), None)


def _tasks(order: Order, memory: Memory, inputs: SyncInputs) -> tuple[TaskStatus, ...]:
    tasks = order.template.tasks if order.template else {}
    if len(tasks) < 2:
        return ()
    return tuple(_task_status(order, inputs, name, memory.task(name)) for name in tasks)


def _task_status(order: Order, inputs: SyncInputs, name: str, task: TaskMemory) -> TaskStatus:
    observed = _observed(inputs, order.uid, name, task)
    if task.completed:
        phase = Phase.SUCCEEDED
    elif observed is not None and observed.phase is UnitPhase.EXITED:
        phase = Phase.SUCCEEDED if observed.exit_code == 0 else Phase.FAILED
    else:
        phase = _phase(inputs, order.uid, name, task)
    exited = observed is not None and observed.phase is UnitPhase.EXITED
    return TaskStatus(
        name=name,
        phase=phase,
        restarts=max(0, task.attempt - 1),
        exit_code=observed.exit_code if observed is not None and exited else task.exit_code,
        reason=observed.reason if observed is not None and exited else task.reason,
    )
