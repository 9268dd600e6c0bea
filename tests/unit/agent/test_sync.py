"""Decisions of `sync`, case by case."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mandor.agent.order import Memory, TaskMemory
from mandor.agent.sync import GRACE_UNKNOWN, Remove, Start, Stop, grace_of, sync, sync_all
from mandor.agent.sync_inputs import MissingDependency, ProbeResult, SyncInputs
from mandor.engines.base import Unit
from mandor.lib.quantity import Seconds, SecondsOrNever
from mandor.model.instance import InstanceStatus, StopOrder
from mandor.model.lifecycle import Restart
from mandor.model.phase import Phase
from tests.unit.agent.make import NOW, UID, decide, exited, make_order, running, starting

STOP = StopOrder(reason="scaled down")
RUNNING = InstanceStatus(phase=Phase.RUNNING, since=NOW - 50)
GROUP: dict[str, Any] = {
    "first": {"role": "init", "command": ["a"]},
    "second": {"role": "init", "command": ["b"]},
    "app": {"command": ["app"], "stop": {"grace": "3s"}},
    "ship": {"role": "sidecar", "command": ["ship"], "stop": {"grace": "4s"}},
}


def unit(task: str = "main", attempt: int = 1) -> Unit:
    return Unit(UID, task, attempt)


def remember(**tasks: TaskMemory) -> Memory:
    return Memory(engine="fake", tasks=tasks)


ONCE = remember(main=TaskMemory(attempt=1))
DONE = TaskMemory(attempt=1, completed=True)


# Starting.


@pytest.mark.req("S0-13", "S2-4")
def test_a_new_order_starts_its_task_once() -> None:
    decision = decide(make_order())
    assert [type(action) for action in decision.actions] == [Start]
    assert decision.actions[0].unit == unit()
    assert decision.memory.task("main").attempt == 1


@pytest.mark.req("S0-27")
def test_an_order_that_comes_again_starts_nothing_more() -> None:
    order = make_order()
    first = decide(order)
    again = decide(order, running(), memory=first.memory)
    assert again.actions == ()
    assert again.status is not None
    assert again.status.phase is Phase.RUNNING
    assert again.status.ready


@pytest.mark.req("S0-27")
def test_a_start_without_a_unit_is_repeated_with_the_same_unit() -> None:
    decision = decide(make_order(), memory=ONCE)
    assert [action.unit for action in decision.actions] == [unit(attempt=1)]


def test_a_starting_unit_is_waited_for() -> None:
    decision = decide(make_order(), starting(), memory=ONCE)
    assert decision.actions == ()
    assert decision.status is not None
    assert decision.status.phase is Phase.STARTING
    assert not decision.status.ready


def test_nothing_is_decided_while_the_engine_does_not_answer() -> None:
    order = make_order(stop=STOP)
    decision = sync(order, ONCE, SyncInputs(units=None, status=RUNNING), NOW)
    assert (decision.actions, decision.status, decision.memory) == ((), None, ONCE)


def test_nothing_starts_before_the_agent_has_settled() -> None:
    assert decide(make_order(), settled=False).actions == ()
    assert decide(make_order(), exited(1), memory=ONCE, settled=False).memory == ONCE


def test_running_units_are_adopted_if_the_journal_is_lost() -> None:
    decision = decide(make_order(), running(attempt=4), memory=Memory(engine="fake"))
    assert decision.actions == ()
    assert decision.memory.task("main").attempt == 4
    assert decision.status is not None
    assert decision.status.restarts == 3


def test_of_two_running_units_of_a_task_the_earlier_one_is_stopped() -> None:
    decision = decide(make_order(), running(attempt=1), running(attempt=2), memory=ONCE)
    assert decision.actions == (Stop(unit(attempt=1), 10.0),)


def test_a_later_attempt_waits_until_the_earlier_one_is_over() -> None:
    memory = remember(main=TaskMemory(attempt=2))
    decision = decide(make_order(), running(attempt=1), memory=memory)
    assert decision.actions == (Stop(unit(attempt=1), 10.0),)


# Groups.


def test_init_tasks_run_one_after_the_other_before_the_rest() -> None:
    order = make_order(GROUP)
    step = decide(order)
    assert [action.unit.task for action in step.actions] == ["first"]
    step = decide(order, running("first"), memory=step.memory)
    assert step.actions == ()
    step = decide(order, exited(0, "first"), memory=step.memory)
    assert [action.unit.task for action in step.actions] == ["second"]
    step = decide(order, exited(0, "first"), exited(0, "second"), memory=step.memory)
    assert {action.unit.task for action in step.actions} == {"app", "ship"}
    assert step.status is not None
    assert step.status.phase is Phase.STARTING


NATIVE: dict[str, Any] = {
    "first": {"role": "init", "command": ["a"]},
    "mesh": {"role": "sidecar", "command": ["mesh"], "startup": {"tcp": 9}},
    "second": {"role": "init", "command": ["b"]},
    "app": {"command": ["app"]},
    "ship": {"role": "sidecar", "command": ["ship"]},
}


def test_a_sidecar_before_an_init_task_starts_before_it() -> None:
    order = make_order(NATIVE)
    step = decide(order)
    assert [action.unit.task for action in step.actions] == ["first"]
    step = decide(order, exited(0, "first"), memory=step.memory)
    assert [action.unit.task for action in step.actions] == ["mesh"]
    step = decide(order, exited(0, "first"), starting("mesh"), memory=step.memory)
    assert step.actions == ()
    step = decide(order, exited(0, "first"), running("mesh"), memory=step.memory)
    assert step.actions == (), "its startup probe has not been run yet"
    waits = {unit("mesh"): ProbeResult(ready=False, started=False)}
    step = decide(order, exited(0, "first"), running("mesh"), memory=step.memory, probe_results=waits)
    assert step.actions == ()
    passed = {unit("mesh"): ProbeResult()}
    step = decide(order, exited(0, "first"), running("mesh"), memory=step.memory, probe_results=passed)
    assert [action.unit.task for action in step.actions] == ["second"]
    done = (exited(0, "first"), running("mesh"), exited(0, "second"))
    step = decide(order, *done, memory=step.memory, probe_results=passed)
    assert {action.unit.task for action in step.actions} == {"app", "ship"}, (
        "a sidecar after a main task starts with it"
    )


def test_a_sidecar_that_ends_while_an_init_task_runs_is_restarted_and_the_init_task_goes_on() -> None:
    order = make_order(NATIVE)
    memory = remember(first=DONE, mesh=TaskMemory(attempt=1), second=TaskMemory(attempt=1))
    step = decide(order, exited(1, "mesh"), running("second"), memory=memory)
    assert step.memory.task("mesh").attempt == 2
    step = decide(order, exited(0, "second"), memory=step.memory)
    assert step.memory.task("second").completed, "its end is seen while the sidecar pauses"
    assert "app" not in {action.unit.task for action in step.actions}


def test_main_tasks_are_supervised_while_an_early_sidecar_restarts() -> None:
    order = make_order(NATIVE)
    memory = remember(
        first=DONE, second=DONE, mesh=TaskMemory(attempt=2, due=NOW + 9, pause=9.0), app=TaskMemory(attempt=1)
    )
    step = decide(order, exited(3, "app"), memory=memory)
    assert step.memory.task("app").attempt == 2


def test_a_group_runs_when_all_of_it_runs() -> None:
    memory = remember(first=DONE, second=DONE, app=TaskMemory(attempt=1), ship=TaskMemory(attempt=1))
    order = make_order(GROUP)
    half = decide(order, running("app"), starting("ship"), memory=memory)
    whole = decide(order, running("app"), running("ship"), memory=memory)
    assert half.status is not None
    assert whole.status is not None
    assert (half.status.phase, whole.status.phase) == (Phase.STARTING, Phase.RUNNING)
    assert [task.name for task in whole.status.tasks] == ["first", "second", "app", "ship"]
    assert [task.phase for task in whole.status.tasks][:2] == [Phase.SUCCEEDED, Phase.SUCCEEDED]


def test_sidecars_are_stopped_when_all_mains_have_completed() -> None:
    memory = remember(first=DONE, second=DONE, app=TaskMemory(attempt=1), ship=TaskMemory(attempt=1))
    order = make_order(GROUP, policy="on-failure")
    step = decide(order, exited(0, "app"), running("ship"), memory=memory, status=RUNNING)
    assert step.actions == (Stop(unit("ship"), 4.0),)
    assert step.status is not None
    assert step.status.phase is Phase.STOPPING
    step = decide(order, exited(0, "app"), exited(143, "ship"), memory=step.memory, status=step.status)
    assert step.status is not None
    assert (step.status.phase, step.status.reason, step.status.exit_code) == (Phase.SUCCEEDED, "Completed", 0)
    assert step.memory.over


def test_a_sidecar_is_restarted_alone_whatever_the_policy() -> None:
    memory = remember(first=DONE, second=DONE, app=TaskMemory(attempt=1), ship=TaskMemory(attempt=1))
    step = decide(make_order(GROUP, policy="never"), running("app"), exited(0, "ship"), memory=memory)
    assert step.actions == ()
    assert step.memory.task("ship").attempt == 2
    assert step.memory.task("app").attempt == 1


def test_one_failed_main_ends_the_whole_group() -> None:
    tasks = {"a": {"command": ["a"]}, "b": {"command": ["b"], "stop": {"grace": "2s"}}}
    memory = remember(a=TaskMemory(attempt=1), b=TaskMemory(attempt=1))
    order = make_order(tasks, policy="never")
    step = decide(order, exited(3, "a"), running("b"), memory=memory, status=RUNNING)
    assert step.actions == (Stop(unit("b"), 2.0),)
    step = decide(order, exited(3, "a"), exited(143, "b"), memory=step.memory, status=RUNNING)
    assert step.status is not None
    assert (step.status.phase, step.status.reason, step.status.exit_code) == (Phase.FAILED, "Error", 3)


def test_a_failing_init_task_is_tried_again_and_the_rest_waits() -> None:
    order = make_order(GROUP)
    step = decide(order, exited(1, "first"), memory=remember(first=TaskMemory(attempt=1)))
    assert step.actions == ()
    step = decide(order, exited(1, "first"), memory=step.memory, now=NOW + 10)
    assert [(action.unit.task, action.unit.attempt) for action in step.actions] == [("first", 2)]


# Ends and restarts.


@pytest.mark.req("S2-9", "S2-49")
@pytest.mark.parametrize(
    ("policy", "code", "outcome"),
    [
        ("always", 0, "again"),
        ("always", 1, "again"),
        ("on-failure", 0, Phase.SUCCEEDED),
        ("on-failure", 1, "again"),
        ("never", 0, Phase.SUCCEEDED),
        ("never", 1, Phase.FAILED),
    ],
)
def test_the_restart_policy_decides_what_follows_an_end(policy: Any, code: int, outcome: object) -> None:
    decision = decide(make_order(policy=policy), exited(code), memory=ONCE)
    assert decision.status is not None
    if outcome == "again":
        assert decision.memory.task("main").attempt == 2
        assert decision.wake_at == NOW + 10
        assert decision.status.phase is Phase.STARTING
    else:
        assert decision.status.phase is outcome
        assert decision.status.exit_code == code


@pytest.mark.req("S2-49")
def test_pauses_double_up_to_the_maximum_and_end_in_a_crash_loop() -> None:
    restart = Restart(attempts=4, delay=Seconds(10), max_delay=Seconds(30))
    order = make_order(restart=restart)
    memory, now, pauses = ONCE, NOW, []
    for attempt in range(1, 5):
        step = decide(order, exited(7, attempt=attempt, at=now), memory=memory, now=now)
        assert step.wake_at is not None
        pauses.append(step.wake_at - now)
        now = step.wake_at
        step = decide(order, exited(7, attempt=attempt, at=now), memory=step.memory, now=now)
        assert [action.unit.attempt for action in step.actions if isinstance(action, Start)] == [attempt + 1]
        memory = step.memory
    assert pauses == [10, 20, 30, 30]
    step = decide(order, exited(7, attempt=5, at=now), memory=memory, now=now)
    assert step.status is not None
    assert (step.status.phase, step.status.reason, step.status.exit_code) == (Phase.FAILED, "CrashLoop", 7)
    assert "restarted 4 times" in step.status.message
    assert "exit code 7" in step.status.message


def test_the_default_pauses_do_not_keep_a_crash_loop_from_being_seen() -> None:
    """Ten attempts take longer than half an hour of pauses: only running counts towards the interval."""
    memory, now, attempt = ONCE, NOW, 1
    for _ in range(50):
        step = decide(make_order(), exited(1, attempt=attempt, at=now), memory=memory, now=now)
        if step.memory.over:
            break
        assert step.wake_at is not None
        memory, now, attempt = step.memory, step.wake_at, attempt + 1
    assert attempt == 11
    assert step.status is not None
    assert step.status.reason == "CrashLoop"


def test_a_task_that_ran_for_long_begins_with_the_first_pause_again() -> None:
    restart = Restart(attempts=3, interval=Seconds(60))
    memory = remember(main=TaskMemory(attempt=3, restarts=(0.0, 0.0)))
    step = decide(make_order(restart=restart), exited(1, attempt=3, ran=61.0), memory=memory)
    assert step.wake_at == NOW + 10
    assert len(step.memory.task("main").restarts) == 1


def test_attempts_zero_means_that_the_first_end_is_the_last() -> None:
    step = decide(make_order(restart=Restart(attempts=0)), exited(5), memory=ONCE)
    assert step.status is not None
    assert (step.status.phase, step.status.reason) == (Phase.FAILED, "Error")


@pytest.mark.parametrize("reason", ["OOMKilled", "Signalled", "Error", "Vanished"])
def test_the_reason_of_the_end_is_shown_while_it_waits(reason: str) -> None:
    code = None if reason == "Vanished" else 137
    step = decide(make_order(), exited(code, reason=reason), memory=ONCE)
    assert step.status is not None
    assert step.status.reason == reason
    assert "restart 1 after 10s" in step.status.message
    assert step.status.exit_code == code


def test_a_task_that_cannot_start_fails_at_once_with_the_reason() -> None:
    step = decide(make_order(), exited(None, reason="StartFailed", message="no such program: rnu"), memory=ONCE)
    assert step.status is not None
    assert (step.status.phase, step.status.reason) == (Phase.FAILED, "StartFailed")
    assert "no such program: rnu" in step.status.message


def test_long_messages_of_an_engine_are_cut() -> None:
    step = decide(make_order(), exited(None, reason="StartFailed", message="x" * 100_000), memory=ONCE)
    assert step.status is not None
    assert len(step.status.message) == 1000


def test_a_unit_that_is_missing_from_its_engine_has_vanished_and_is_restarted() -> None:
    step = decide(make_order(), memory=ONCE, known=frozenset({unit()}))
    assert step.memory.task("main").attempt == 2
    assert step.status is not None
    assert step.status.reason == "Vanished"


def test_a_clock_that_is_set_back_does_not_prolong_the_pause() -> None:
    memory = remember(main=TaskMemory(attempt=2, due=NOW + 10, pause=10.0))
    step = decide(make_order(), exited(1), memory=memory, now=NOW - 86_400)
    assert step.wake_at == NOW - 86_400 + 10
    step = decide(make_order(), exited(1), memory=step.memory, now=NOW - 86_400 + 10)
    assert [type(action) for action in step.actions] == [Start]


def test_the_previous_unit_is_kept_for_its_logs_and_older_ones_are_removed() -> None:
    memory = remember(main=TaskMemory(attempt=3))
    units = exited(attempt=1), exited(attempt=2), running(attempt=3)
    assert decide(make_order(), *units, memory=memory).actions == (Remove(unit(attempt=1)),)


# Health.


@pytest.mark.req("S2-45")
def test_an_unhealthy_task_is_stopped_and_then_restarted_as_unhealthy() -> None:
    order = make_order({"main": {"command": ["run"], "health": {"tcp": 80}}})
    step = decide(order, running(), memory=ONCE, probe_results={unit(): ProbeResult(alive=False)})
    assert step.actions == (Stop(unit(), 10.0),)
    step = decide(order, exited(0, ran=5), memory=step.memory)
    assert step.status is not None
    assert step.status.reason == "Unhealthy"
    assert step.memory.task("main").attempt == 2
    assert not step.memory.task("main").unhealthy


@pytest.mark.req("S2-8")
@pytest.mark.parametrize(
    ("opinion", "ready"), [(None, False), (ProbeResult(ready=False), False), (ProbeResult(), True)]
)
def test_a_task_with_a_readiness_probe_is_ready_only_once_the_probe_passed(
    opinion: ProbeResult | None, ready: bool
) -> None:
    order = make_order({"main": {"command": ["run"], "readiness": {"tcp": 80}}})
    probe_results = {} if opinion is None else {unit(): opinion}
    status = decide(order, running(), memory=ONCE, probe_results=probe_results).status
    assert status is not None
    assert (status.phase, status.ready) == (Phase.RUNNING, ready)


# Stopping.


def test_a_stop_order_ends_in_stopped_with_its_reason() -> None:
    order = make_order(stop=STOP)
    step = decide(order, running(), memory=ONCE, status=RUNNING)
    assert step.actions == (Stop(unit(), 10.0),)
    assert step.status is not None
    assert step.status.phase is Phase.STOPPING
    step = decide(order, exited(143, reason="Signalled"), memory=step.memory, status=step.status)
    assert step.actions == ()
    assert step.status is not None
    assert (step.status.phase, step.status.message) == (Phase.STOPPED, "scaled down")
    assert step.status.exit_code == 143


def test_a_task_that_the_order_does_not_describe_has_the_default_grace() -> None:
    order = make_order(tasks=GROUP, stop=STOP)
    assert grace_of(order, "app") == 3
    assert grace_of(order, "of-an-earlier-release") == GRACE_UNKNOWN
    assert grace_of(msgspec.structs.replace(order, template=None), "app") == GRACE_UNKNOWN


def test_the_grace_of_the_stop_order_overrides_that_of_the_task() -> None:
    order = make_order(stop=StopOrder(reason="drained", grace_seconds=1.5))
    assert decide(order, running(), memory=ONCE).actions == (Stop(unit(), 1.5),)


def test_mains_are_stopped_before_sidecars() -> None:
    memory = remember(first=DONE, second=DONE, app=TaskMemory(attempt=1), ship=TaskMemory(attempt=1))
    order = make_order(GROUP, stop=STOP)
    step = decide(order, running("app"), running("ship"), memory=memory)
    assert step.actions == (Stop(unit("app"), 3.0),)
    step = decide(order, exited(143, "app"), running("ship"), memory=step.memory)
    assert step.actions == (Stop(unit("ship"), 4.0),)


def test_an_instance_stopped_before_its_start_never_starts() -> None:
    step = decide(make_order(stop=STOP))
    assert step.actions == ()
    assert step.status is not None
    assert step.status.phase is Phase.STOPPED
    without = msgspec.structs.replace(make_order(stop=STOP), template=None)
    assert decide(without).memory.over


def test_an_instance_that_completed_before_the_stop_order_has_succeeded() -> None:
    step = decide(make_order(stop=STOP, policy="on-failure"), exited(0), memory=ONCE, status=RUNNING)
    assert step.status is not None
    assert step.status.phase is Phase.SUCCEEDED


def test_a_stopped_instance_is_kept_until_its_object_is_gone_and_then_removed() -> None:
    order = make_order(stop=STOP)
    over = decide(order, exited(143), memory=ONCE)
    assert decide(order, exited(143), memory=over.memory).actions == ()
    assert decide(order, exited(143), memory=over.memory, gone=True).actions == (Remove(unit()),)
    assert decide(order, memory=over.memory, gone=True).forget


def test_a_withdrawn_instance_is_stopped_then_removed_then_forgotten() -> None:
    order = make_order()
    assert decide(order, running(), memory=ONCE, gone=True).actions == (Stop(unit(), 10.0),)
    assert decide(order, exited(143), memory=ONCE, gone=True).actions == (Remove(unit()),)
    assert decide(order, memory=ONCE, gone=True).forget


def test_an_instance_that_has_ended_in_the_store_is_not_started() -> None:
    over = InstanceStatus(phase=Phase.SUCCEEDED, since=NOW - 5)
    step = decide(make_order(status=over), memory=Memory())
    assert (step.actions, step.status) == ((), over)


def test_a_held_instance_is_neither_stopped_nor_restarted() -> None:
    held = msgspec.structs.replace(ONCE, held="another epoch")
    assert decide(make_order(), running(), memory=held).actions == ()
    assert decide(make_order(), exited(1), memory=held).memory == held


# Refusing and waiting.


def test_an_instance_that_does_not_fit_is_refused_before_its_start() -> None:
    step = decide(make_order(), refusal="it asks for cpu 9")
    assert step.status is not None
    assert (step.status.phase, step.status.reason, step.status.message) == (
        Phase.FAILED,
        "Refused",
        "it asks for cpu 9",
    )
    assert step.actions == ()


def test_a_running_instance_is_not_refused() -> None:
    assert decide(make_order(), running(), memory=ONCE, refusal="too big").memory.ending is None


def test_a_waiting_instance_shows_the_reason() -> None:
    step = decide(make_order(), wait="its room is still held")
    assert step.status is not None
    assert (step.status.phase, step.status.reason) == (Phase.RESERVED, "Waiting")
    assert step.actions == ()


# Cut off.

CUT: dict[str, Any] = {"stop_after": SecondsOrNever(60)}


def test_an_instance_is_stopped_when_the_control_plane_is_silent_for_longer_than_stop_after() -> None:
    order = make_order(**CUT)
    before = decide(order, running(), memory=ONCE, silence=59.0)
    assert before.actions == ()
    assert before.wake_at == NOW + 1
    step = decide(order, running(), memory=ONCE, silence=60.0)
    assert step.actions == (Stop(unit(), 10.0),)
    step = decide(order, exited(143), memory=step.memory, silence=70.0)
    assert step.status is not None
    assert (step.status.phase, step.status.reason) == (Phase.STOPPED, "Disconnected")


@pytest.mark.parametrize(
    ("memory", "fields"), [(ONCE, {"settled": False}), (Memory(), {}), (Memory(), {"wait": "room"})]
)
def test_a_blocked_instance_is_checked_again_after_a_pause(memory: Memory, fields: dict[str, Any]) -> None:
    units = (running(),) if memory.tasks else ()
    step = decide(make_order(**CUT), *units, memory=memory, silence=100.0, **fields)
    assert step.actions == ()
    assert step.wake_at is None or step.wake_at >= NOW + 1


def test_without_stop_after_silence_changes_nothing() -> None:
    assert decide(make_order(), running(), memory=ONCE, silence=1e9).actions == ()


def test_after_a_boot_an_instance_with_stop_after_waits_for_the_control_plane() -> None:
    vanished = exited(None, reason="Vanished", at=NOW - 100)
    step = decide(make_order(**CUT), vanished, memory=ONCE, recent_silence=float("inf"))
    assert step.actions == ()
    assert step.memory.ending is None
    step = decide(make_order(**CUT), vanished, memory=step.memory)
    assert [type(action) for action in step.actions] == [Start]


def test_all_instances_are_decided_one_by_one() -> None:
    order = make_order()
    inputs = SyncInputs(units=(), status=order.instance.status)
    assert sync_all({UID: order}, {UID: ONCE}, {UID: inputs}, NOW) == {UID: sync(order, ONCE, inputs, NOW)}


def test_the_first_missing_dependency_of_several_is_shown() -> None:
    missing = MissingDependency("the volume data is gone", "VolumeMissing").or_else("no secret", "SecretMissing")
    assert missing == ("the volume data is gone", "VolumeMissing")
    assert MissingDependency().or_else("no secret", "SecretMissing") == ("no secret", "SecretMissing")
