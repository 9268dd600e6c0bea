"""The plan of a schedule: runs that start, are skipped or are deleted."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mandor.controllers.cron_plan import AGAIN_SECONDS, CronInputs, active, plan
from mandor.controllers.draft import Draft
from mandor.model.schedule import Schedule
from mandor.model.workload import Workload
from mandor.store.base import Delete, Put
from tests.scenarios.make import make_workload

NOON = datetime(2026, 11, 15, 12, 0, tzinfo=UTC).timestamp()
MINUTE = 60.0


class Yard:
    """A workload with a schedule and its runs, as stored."""

    def __init__(self, now: float = NOON + 1, **schedule: Any) -> None:
        made = make_workload("backup", type="batch")
        self.spec = replace(made.spec, schedule=Schedule(**{"cron": ("*/5 * * * *",), **schedule}))
        self.workload: Workload | None = made.changed(spec=self.spec)
        self.runs: dict[str, Workload] = {}
        self.begun: list[str] = []
        self.look(now)

    def look(self, now: float) -> Draft:
        draft = plan(CronInputs(self.workload, list(self.runs.values())), now)
        for write in draft.writes:
            if isinstance(write, Put) and isinstance(write.value, Workload):
                if write.value.meta.name == "backup":
                    self.workload = write.value
                else:
                    self.begun.append(write.value.meta.name)
                    self.runs[write.value.meta.name] = write.value.stamped(
                        version=1, uid=write.value.meta.name, created_at=now
                    )
            elif isinstance(write, Delete):
                del self.runs[write.key.name]
        return draft

    def end(self, name: str, phase: str = "Succeeded") -> None:
        run = self.runs[name]
        self.runs[name] = run.changed(status=replace(run.status, phase=phase))

    def change(self, **schedule: Any) -> None:
        assert self.workload is not None
        was = self.workload.spec
        assert was.schedule is not None
        self.workload = self.workload.changed(spec=replace(was, schedule=replace(was.schedule, **schedule)))


def reasons(draft: Draft) -> list[str]:
    return [note.reason for note in draft.notes]


def test_nothing_begins_before_its_time_and_one_run_begins_at_it() -> None:
    yard = Yard()
    assert yard.begun == [], "noon was before the schedule came"
    again = yard.look(NOON + 4 * MINUTE).again_seconds
    assert again == MINUTE
    draft = yard.look(NOON + 5 * MINUTE)
    assert yard.begun == ["backup-202611151205"]
    assert reasons(draft) == ["RunBegun"]
    run = yard.runs["backup-202611151205"]
    assert (run.spec.run_of, run.spec.schedule, run.spec.type) == ("backup", None, "batch")
    yard.look(NOON + 5 * MINUTE + 1)
    assert len(yard.begun) == 1, "looked at twice, begun once"


def test_forbid_skips_a_run_while_another_is_active() -> None:
    yard = Yard(overlap="forbid")
    yard.look(NOON + 5 * MINUTE)
    assert reasons(yard.look(NOON + 10 * MINUTE)) == ["RunSkipped"]
    yard.end("backup-202611151205")
    yard.look(NOON + 12 * MINUTE)
    yard.look(NOON + 15 * MINUTE)
    assert yard.begun == ["backup-202611151205", "backup-202611151215"]


def test_allow_runs_both_and_replace_stops_the_old_run() -> None:
    both, one = Yard(overlap="allow"), Yard(overlap="replace")
    for yard in (both, one):
        yard.look(NOON + 5 * MINUTE)
        yard.look(NOON + 10 * MINUTE)
        assert len(yard.begun) == 2
    assert len(both.runs) == 2
    assert list(one.runs) == ["backup-202611151210"]


def test_the_number_of_concurrent_runs_is_limited() -> None:
    yard = Yard(overlap="allow", cron=("* * * * *",))
    for minute in range(1, 120):
        yard.look(NOON + minute * MINUTE)
    assert len(yard.runs) == 100


def test_a_missed_run_is_skipped_or_started_once() -> None:
    skip, run = Yard(missed="skip"), Yard(missed="run")
    later = NOON + 47 * MINUTE
    assert reasons(skip.look(later)) == ["RunMissed"]
    assert skip.begun == []
    run.look(later)
    run.look(later + 1)
    assert run.begun == ["backup-202611151245"], "nine were missed, the latest is made up for"
    on_time = Yard(missed="skip")
    on_time.look(NOON + 5 * MINUTE + 50)
    assert on_time.begun == ["backup-202611151205"], "a little late is not missed"


def test_a_new_schedule_or_the_end_of_a_pause_starts_no_missed_run() -> None:
    yard = Yard(missed="run")
    yard.look(NOON + 1 * MINUTE)
    yard.change(cron=("1 * * * *",))
    yard.look(NOON + 3 * MINUTE)
    assert yard.begun == []
    yard.change(paused=True)
    assert yard.look(NOON + 70 * MINUTE).again_seconds is None
    assert yard.workload is not None
    assert (yard.workload.status.phase, yard.workload.status.next_at) == ("Paused", 0.0)
    yard.change(paused=False)
    yard.look(NOON + 80 * MINUTE)
    assert yard.begun == []
    yard.look(NOON + 121 * MINUTE)
    assert yard.begun == ["backup-202611151401"]


def test_a_restart_is_a_run_now() -> None:
    yard = Yard()
    assert yard.workload is not None
    yard.workload = yard.workload.changed(spec=replace(yard.workload.spec, restarted=1))
    yard.look(NOON + 90)
    yard.look(NOON + 91)
    assert yard.begun == ["backup-20261115120130"]


def test_finished_runs_are_kept_up_to_the_limit_of_each_phase() -> None:
    yard = Yard(overlap="allow", keep=2)
    for number in range(1, 9):
        yard.look(NOON + number * 5 * MINUTE)
        yard.end(yard.begun[-1], "Failed" if number % 2 else "Succeeded")
    yard.look(NOON + 41 * MINUTE)
    assert sorted(yard.runs) == [f"backup-2026111512{minute}" for minute in (25, 30, 35, 40)]
    assert yard.workload is not None
    status = yard.workload.status
    assert (status.phase, status.succeeded, status.failed) == ("Scheduled", 2, 2)


def test_runs_of_a_deleted_or_unscheduled_workload_are_deleted() -> None:
    for gone in (True, False):
        yard = Yard()
        yard.look(NOON + 5 * MINUTE)
        assert yard.workload is not None
        yard.workload = None if gone else yard.workload.changed(spec=replace(yard.workload.spec, schedule=None))
        yard.look(NOON + 6 * MINUTE)
        assert not yard.runs


def test_a_run_is_skipped_if_another_workload_has_its_name() -> None:
    yard = Yard()
    draft = plan(CronInputs(yard.workload, (), taken=lambda name: True), NOON + 5 * MINUTE)
    assert reasons(draft) == ["RunSkipped"]


@given(
    st.lists(st.floats(min_value=0.1, max_value=900), max_size=40),
    st.sampled_from(["forbid", "allow", "replace"]),
    st.sampled_from(["skip", "run"]),
    st.data(),
)
def test_no_time_has_two_runs_and_forbidden_ones_never_overlap(
    pauses: list[float], overlap: str, missed: str, data: st.DataObject
) -> None:
    yard = Yard(overlap=overlap, missed=missed)
    now = NOON + 1
    for pause in pauses:
        now += pause
        draft = yard.look(now)
        assert draft.again_seconds is not None
        assert 0 < draft.again_seconds <= AGAIN_SECONDS
        going = [each for each in yard.runs.values() if active(each)]
        assert overlap == "allow" or len(going) <= 1
        ends: bool = data.draw(st.booleans())
        if going and ends:
            yard.end(going[0].meta.name)
    assert len(yard.begun) == len(set(yard.begun))
    assert yard.begun == sorted(yard.begun)


@pytest.mark.parametrize("cron", [(), ("* * * *",), ("0 0 30 2 *",)])
def test_a_schedule_that_never_fires_cannot_be_written(cron: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="cron"):
        Schedule(cron=cron)
