"""Decides what follows the end of a unit: completion, restart or failure: pure."""

from dataclasses import dataclass
from typing import Literal

import msgspec

from mandor.agent.order import Supervision, TaskMemory
from mandor.engines.base import Observed
from mandor.lib.delay import Delay
from mandor.lib.quantity import Seconds

Role = Literal["main", "init", "sidecar"]

UNHEALTHY = "Unhealthy"
VANISHED = "Vanished"
START_FAILED = "StartFailed"
CRASH_LOOP = "CrashLoop"


@dataclass(frozen=True, slots=True)
class End:
    """The end of one unit."""

    reason: str
    exit_code: int | None
    message: str
    ran_seconds: float
    at: float

    @property
    def well(self) -> bool:
        return self.exit_code == 0 and self.reason not in {UNHEALTHY, START_FAILED}

    def __str__(self) -> str:
        code = "" if self.exit_code is None else f"exit code {self.exit_code}"
        shown = ", ".join(part for part in (self.reason, code) if part)
        return f"{shown}: {self.message}" if self.message else shown


@dataclass(frozen=True, slots=True)
class Verdict:
    """`completed`, `again` (with the memory of the next attempt) or `failed` (with the reason of the instance)."""

    what: Literal["completed", "again", "failed"]
    memory: TaskMemory
    reason: str = ""
    message: str = ""


def end_of(observed: Observed | None, memory: TaskMemory, now: float) -> End:
    """Return how a unit ended; `observed` None: a unit that ran has vanished from its engine."""
    if observed is None:
        return End(VANISHED, None, "the engine no longer has it", 0.0, now)
    finished = min(observed.finished_at or now, now)
    ran = max(0.0, finished - observed.started_at) if observed.started_at else 0.0
    reason = observed.reason or ("Completed" if observed.exit_code == 0 else "Error")
    if memory.unhealthy and reason != "OOMKilled":
        return End(UNHEALTHY, observed.exit_code, "its health probe failed", ran, finished)
    return End(reason, observed.exit_code, observed.message, ran, finished)


def after(end: End, role: Role, memory: TaskMemory, supervision: Supervision, task: str) -> Verdict:
    """Decide whether the task has completed, restarts after a pause, or has failed."""
    ended = msgspec.structs.replace(
        memory,
        exit_code=end.exit_code,
        reason=end.reason,
        ran_seconds=memory.ran_seconds + end.ran_seconds,
    )
    if end.well and (role == "init" or (role == "main" and supervision.policy != "always")):
        return Verdict("completed", msgspec.structs.replace(ended, completed=True))
    if end.reason == START_FAILED:
        return Verdict("failed", ended, START_FAILED, f"task {task} cannot start: {end.message or end}")
    # A sidecar is restarted as long as the main tasks run, whatever their policy.
    if supervision.policy == "never" and role != "sidecar":
        return Verdict("failed", ended, end.reason, f"task {task} ended: {end}")
    recent = tuple(at for at in ended.restarts if at >= ended.ran_seconds - supervision.restart.interval)
    if len(recent) >= supervision.restart.attempts:
        return Verdict("failed", ended, *_used_up(end, len(recent), supervision, task))
    return Verdict("again", _next(end, ended, recent, supervision))


def _next(end: End, ended: TaskMemory, recent: tuple[float, ...], supervision: Supervision) -> TaskMemory:
    pause = Delay(supervision.restart.delay, supervision.restart.max_delay).after(len(recent) + 1)
    return msgspec.structs.replace(
        ended,
        attempt=ended.attempt + 1,
        due=end.at + pause,
        pause=pause,
        restarts=(*recent, ended.ran_seconds),
        unhealthy=False,
    )


def _used_up(end: End, count: int, supervision: Supervision, task: str) -> tuple[str, str]:
    if count == 0:
        return end.reason, f"task {task} ended: {end}"
    times = "once" if count == 1 else f"{count} times"
    within = Seconds(supervision.restart.interval)
    return CRASH_LOOP, f"task {task} was restarted {times} within {within} of running time and ended again: {end}"
