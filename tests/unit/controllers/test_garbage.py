"""Objects that are garbage, and objects that are not."""

from __future__ import annotations

from mandor.controllers import garbage_plan
from mandor.controllers.garbage import GarbageController
from mandor.controllers.garbage_plan import Keep
from mandor.lib.clock import ManualClock
from mandor.lib.steps import at_once
from mandor.model.decision import DecisionRecord, DecisionSpec
from mandor.model.meta import Meta, Object
from mandor.model.phase import Phase
from mandor.model.record import (
    Event,
    EventSpec,
    HeartbeatSummary,
    Lease,
    LeaseSpec,
    Session,
    SessionSpec,
    Token,
    TokenSpec,
)
from mandor.model.record import HeartbeatSummarySpec as Heard
from mandor.model.workload import Release, WorkloadStatus, make_release
from mandor.store.base import Put
from mandor.store.memory import MemoryStore
from tests.scenarios.make import NOW, make_instance, make_workload

KEEP = Keep()
DAY = 86_400


def names(found: list[Object]) -> list[str]:
    return sorted(each.meta.name for each in found)


def make_event(name: str, age: float) -> Event:
    spec = EventSpec(about="x", reason="R", message="m", source="s", last_at=NOW - age)
    return Event(meta=Meta(name=name, namespace="default"), spec=spec)


def test_events_go_by_age_and_by_number() -> None:
    events = [make_event("old", DAY + 1), make_event("older", 3 * DAY), make_event("new", 5), make_event("newer", 1)]
    assert names(at_once(garbage_plan.old_events(events, KEEP, NOW))) == ["old", "older"]
    assert names(at_once(garbage_plan.old_events(events, Keep(events_most=1), NOW))) == ["new", "old", "older"]


def test_decisions_go_by_age_and_by_number() -> None:
    decisions = [
        DecisionRecord(
            meta=Meta(name=name, namespace="default"),
            spec=DecisionSpec(at=NOW - age, uid="u", workload="web", profile="default"),
        )
        for name, age in (("old", DAY + 1), ("new", 5), ("newer", 1))
    ]
    assert names(at_once(garbage_plan.old_decisions(decisions, KEEP, NOW))) == ["old"]
    assert names(at_once(garbage_plan.old_decisions(decisions, Keep(decisions_most=1), NOW))) == ["new", "old"]


def test_expired_tokens_go_and_those_that_never_expire_stay() -> None:
    tokens = [
        Token(meta=Meta(name=name), spec=TokenSpec(role="viewer", identity="user:x", hash="h", expires_at=at))
        for name, at in (("never", 0.0), ("past", NOW - 1), ("later", NOW + 1))
    ]
    assert names(garbage_plan.expired_tokens(tokens, NOW)) == ["past"]


def test_sessions_of_a_dead_server_go() -> None:
    def session(name: str, server: str, age: float) -> Session:
        spec = SessionSpec(verb="logs", instance="web-0", uid="u", node="n1", server=server, secret="s")
        return Session(meta=Meta(name=name, namespace="default", created_at=NOW - age), spec=spec)

    sessions = [
        session("live", "http://a", 3600),
        session("dead", "http://b", 61),
        session("young", "http://b", 59),
        session("ancient", "http://a", DAY + 1),
    ]
    assert names(garbage_plan.stale_sessions(sessions, {"http://a"}, KEEP, NOW)) == ["ancient", "dead"]


def test_the_history_of_a_batch_is_kept_while_it_runs() -> None:
    workload = make_workload("sum", type="batch")
    instances = [make_instance(index, Phase.SUCCEEDED, workload="sum", since=0.0) for index in range(3)]
    running = {("default", "sum"): workload}
    assert at_once(garbage_plan.finished_instances(instances, running, KEEP, NOW)) == []


def test_of_a_finished_batch_the_latest_and_the_failed_are_kept() -> None:
    workload = make_workload("sum", type="batch").changed(status=WorkloadStatus(phase="Failed"))
    instances = [
        make_instance(0, Phase.SUCCEEDED, workload="sum", since=NOW - 10),
        make_instance(1, Phase.SUCCEEDED, workload="sum", since=NOW - 30),
        make_instance(2, Phase.FAILED, workload="sum", since=NOW - 99),
        make_instance(3, Phase.RUNNING, workload="sum"),
        make_instance(4, Phase.FAILED, workload="sum", since=NOW - 8 * DAY),
    ]
    batches = {("default", "sum"): workload}
    found = at_once(garbage_plan.finished_instances(instances, batches, Keep(finished_most=3), NOW))
    assert names(found) == ["sum-1", "sum-4"]


def test_instances_of_services_are_not_garbage() -> None:
    stopped = make_instance(0, Phase.STOPPED, since=0.0)
    assert at_once(garbage_plan.finished_instances([stopped], {("default", "web"): make_workload()}, KEEP, NOW)) == []


# The sweep.


async def put(store: MemoryStore, value: Object) -> None:
    await store.commit(Put(value))


async def test_a_sweep_deletes_leases_that_are_not_renewed() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    controller = GarbageController(store, clock)
    controller.begin({})
    for server in ("dead", "live"):
        await put(store, Lease(meta=Meta(name=f"server-{server}"), spec=LeaseSpec(holder=server, seconds=5)))
        await put(store, HeartbeatSummary(meta=Meta(name=server), spec=Heard(nodes=("n1",))))
    await put(store, Lease(meta=Meta(name="leader-scheduler"), spec=LeaseSpec(holder="x", seconds=5)))
    for _ in range(5):
        assert await controller.reconcile("sweep") == 30
        [live] = [each for each in (await store.list("lease")).items if each.meta.name == "server-live"]
        await store.commit(Put(live))
        await clock.advance(30)
    assert [each.meta.name for each in (await store.list("lease")).items] == ["leader-scheduler", "server-live"]
    assert [each.meta.name for each in (await store.list("hearing")).items] == ["live"]


async def test_a_sweep_deletes_releases_of_deleted_workloads() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    controller = GarbageController(store, clock)
    controller.begin({})
    kept = make_workload("web").changed(meta=Meta(name="web", namespace="default"))
    await put(store, kept)
    for workload in (kept, make_workload("gone"), make_workload("busy")):
        await put(store, make_release(workload, 1))
    busy = make_instance(0, Phase.RUNNING, workload="busy")
    await put(store, busy.changed(meta=Meta(name="busy-0", namespace="default")))
    await controller.reconcile("sweep")
    assert [each.meta.name for each in (await store.list(Release.kind)).items] == ["busy.1", "web.1"]
