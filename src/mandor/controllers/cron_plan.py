"""Plan for a workload with a schedule: start the run that is due, delete old finished runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from msgspec.structs import replace

from mandor.controllers.draft import Draft
from mandor.model.meta import Meta
from mandor.model.schedule import Schedule
from mandor.model.workload import Workload, WorkloadStatus

LATE_SECONDS = 60.0
"""Seconds after its scheduled time when a run counts as missed."""
AGAIN_SECONDS = 60.0
"""Maximum seconds between two plans, because the wall clock can be changed."""
ACTIVE_MOST = 100
"""Maximum concurrent runs of one workload with `overlap: allow`."""


@dataclass(frozen=True, slots=True)
class CronInputs:
    workload: Workload | None
    """None: the workload was deleted, so its runs are deleted too."""
    runs: Sequence[Workload]
    taken: Callable[[str], bool] = lambda name: False
    """Whether another workload has this name."""


def plan(seen: CronInputs, now: float) -> Draft:
    draft = Draft()
    workload = seen.workload
    if workload is None or workload.spec.schedule is None:
        for each in seen.runs:
            draft.delete(each)
        return draft
    schedule = workload.spec.schedule
    status = workload.status
    last_at, asked = status.last_at, status.asked
    runs = list(seen.runs)
    if schedule.paused or status.schedule != str(schedule) or status.phase == "Paused":
        last_at = now  # Times before the current schedule took effect were never due.
        if not status.schedule:
            asked = workload.spec.restarted
    due = schedule.times().latest(now)
    if due is not None and due > last_at:
        last_at = due
        if now - due > LATE_SECONDS and schedule.missed == "skip":
            draft.note(workload, "RunMissed", f"missed the run of {_shown(due)}", warning=True)
        else:
            runs = _begin(draft, workload, schedule, seen, runs, _run_name(workload, due))
    if asked != workload.spec.restarted:
        asked = workload.spec.restarted
        runs = _begin(draft, workload, schedule, seen, runs, _run_name(workload, now, seconds=True))
    runs = _delete_old(draft, schedule, runs)
    following = None if schedule.paused else schedule.times().after(now)
    _write_status(draft, workload, runs, last_at, asked, following or 0.0)
    if following is not None:
        draft.again(min(following - now, AGAIN_SECONDS))
    return draft


def active(run: Workload) -> bool:
    return run.status.phase not in {"Succeeded", "Failed"}


def _begin(
    draft: Draft, workload: Workload, schedule: Schedule, seen: CronInputs, runs: list[Workload], name: str
) -> list[Workload]:
    """Start a run if `overlap` allows it; return all existing runs."""
    going = [each for each in runs if active(each)]
    if going and schedule.overlap == "forbid":
        draft.note(workload, "RunSkipped", f"skipped {name}: {going[0].meta.name} is still running", warning=True)
        return runs
    if len(going) >= ACTIVE_MOST and schedule.overlap == "allow":
        draft.note(workload, "RunSkipped", f"skipped {name}: {len(going)} runs are active", warning=True)
        return runs
    if seen.taken(name):
        draft.note(workload, "RunSkipped", f"skipped {name}: another workload has this name", warning=True)
        return runs
    if schedule.overlap == "replace":
        for each in going:
            draft.delete(each)
            draft.note(workload, "RunReplaced", f"stopped {each.meta.name}, replaced by {name}")
        runs = [each for each in runs if not active(each)]
    labels = workload.meta.labels
    spec = replace(workload.spec, schedule=None, run_of=workload.meta.name, restarted=0)
    made = Workload(meta=Meta(name=name, namespace=workload.meta.namespace, labels=labels), spec=spec)
    draft.put(made)
    draft.note(workload, "RunBegun", f"started {name}")
    return [*runs, made]


def _delete_old(draft: Draft, schedule: Schedule, runs: list[Workload]) -> list[Workload]:
    """Delete finished runs beyond `keep`; return the remaining runs."""
    kept = [each for each in runs if active(each)]
    for phase in ("Succeeded", "Failed"):
        over = sorted((each for each in runs if each.status.phase == phase), key=lambda each: -each.meta.created_at)
        kept += over[: schedule.keep]
        for each in over[schedule.keep :]:
            draft.delete(each)
    return kept


def _write_status(
    draft: Draft, workload: Workload, runs: list[Workload], last_at: float, asked: int, next_at: float
) -> None:
    schedule = workload.spec.schedule
    paused = schedule is not None and schedule.paused
    going = [each for each in runs if active(each)]
    over = [each for each in runs if not active(each)]
    last = max(over, key=lambda each: each.meta.created_at, default=None)
    message = ""
    if last is not None and last.status.phase == "Failed":
        message = f"the last run, {last.meta.name}, failed: {last.status.message or 'unknown reason'}"
    status = WorkloadStatus(
        phase="Paused" if paused else "Running" if going else "Scheduled",
        running=len(going),
        succeeded=sum(each.status.phase == "Succeeded" for each in over),
        failed=sum(each.status.phase == "Failed" for each in over),
        message=message,
        schedule=str(schedule),
        last_at=last_at,
        next_at=next_at,
        asked=asked,
    )
    if status != workload.status:
        draft.put(workload.changed(status=status))


def _run_name(workload: Workload, at: float, *, seconds: bool = False) -> str:
    moment = datetime.fromtimestamp(at, UTC).strftime("%Y%m%d%H%M%S" if seconds else "%Y%m%d%H%M")
    return f"{workload.meta.name}-{moment}"


def _shown(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
