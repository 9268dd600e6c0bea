"""The scheduler's view: table and queue after changes, in any order of kinds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import msgspec
import pytest

from mandor.lib.clock import settle
from mandor.lib.steps import at_once
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.lifecycle import Disruption
from mandor.model.meta import Key, Meta, Object
from mandor.model.node import Node
from mandor.model.phase import Phase
from mandor.model.record import Namespace
from mandor.model.resources import Resources
from mandor.model.workload import Release, Workload, make_release
from mandor.placement.framework.points import ClusterEvent
from mandor.placement.plugins.priority_sort import PrioritySort
from mandor.scheduler.attempt import Attempt, AttemptState
from mandor.scheduler.queue import SchedulingQueue
from mandor.scheduler.view import View
from mandor.store.base import Change, Delete, Put
from mandor.store.memory import MemoryStore
from mandor.store.mirror import Mirror
from tests.scenarios.make import make_instance, make_node, make_workload

WORKLOAD = make_workload("web", cpu="1").changed(meta=Meta(name="web", namespace="default"))
WEB0 = Key(Instance.kind, "default", "web-0")


KINDS = ("instance", "workload", "release", "node", "namespace")


class Desk:
    def __init__(self) -> None:
        self.store = MemoryStore()
        self.mirrors = {kind: Mirror(self.store, kind) for kind in KINDS}
        queue = SchedulingQueue(PrioritySort())
        self.view = View(queue, self.mirrors["instance"], self.mirrors["workload"])
        for mirror in self.mirrors.values():
            mirror.listen(self.view.apply_all)

    async def put(self, *values: Object) -> None:
        await self.store.commit(*(Put(value) for value in values))
        await settle()
        at_once(self.view.state.catch_up())

    async def put_instance(self) -> None:
        made = make_instance(0, Phase.PENDING)
        await self.put(made.changed(meta=Meta(name=made.meta.name, namespace="default")))

    async def instance(self) -> Instance:
        found = await self.store.get(WEB0)
        assert isinstance(found, Instance)
        return found

    def place(self) -> AttemptState | None:
        return self.view.queue.state(WEB0)

    def assign(self) -> Attempt:
        attempt = self.view.queue.pop()
        assert attempt is not None
        assert self.view.assign(attempt, "n1")
        return attempt

    def free_cpu(self) -> int:
        return self.view.table.free("n1")["cpu"]


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    made = Desk()
    async with AsyncExitStack() as stack:
        for mirror in made.mirrors.values():
            await stack.enter_async_context(mirror)
        await made.put(make_node("n1", cpu=4))
        yield made


async def test_an_instance_waits_for_its_release_and_its_workload(desk: Desk) -> None:
    await desk.put_instance()
    assert desk.place() is None
    await desk.put(make_release(WORKLOAD, 1))
    assert desk.place() is None
    await desk.put(WORKLOAD)
    assert desk.place() is AttemptState.ACTIVE


async def test_a_placed_instance_counts_as_soon_as_its_release_is_known(desk: Desk) -> None:
    await desk.put_instance()
    await desk.put((await desk.instance()).bound("n1", at=0.0))
    assert desk.free_cpu() == 4000
    assert list(desk.view.state.missing()) != []
    await desk.put(make_release(WORKLOAD, 1))
    assert desk.free_cpu() == 3000


async def test_a_placed_instance_whose_release_is_gone_counts_as_nothing(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    await desk.put_instance()
    await desk.put((await desk.instance()).bound("n1", at=0.0))
    for key in desk.view.state.missing():
        desk.view.without(key)
    assert desk.free_cpu() == 4000
    assert "has no workload default/web" in caplog.text


async def test_a_placed_instance_gets_the_priority_of_a_workload_that_is_shown_later(desk: Desk) -> None:
    await desk.put(make_release(WORKLOAD, 1), make_instance(0, node="n1", version=0))
    await desk.put(WORKLOAD.changed(spec=msgspec.structs.replace(WORKLOAD.spec, priority=7)))
    assert desk.view.table.allocations[WEB0].terms.rank.priority == 7


async def ready(desk: Desk) -> None:
    await desk.put(make_release(WORKLOAD, 1))
    await desk.put(WORKLOAD)
    await desk.put_instance()


async def test_an_assignment_holds_while_its_bind_is_on_the_way(desk: Desk) -> None:
    await ready(desk)
    desk.assign()
    assert (desk.free_cpu(), desk.place()) == (3000, None)
    now = await desk.instance()
    await desk.put(now.changed(status=msgspec.structs.replace(now.status, message="somebody says something")))
    assert (desk.free_cpu(), desk.place()) == (3000, None), "it is neither uncounted nor decided a second time"


async def test_an_assignment_is_confirmed_by_the_mirror(desk: Desk) -> None:
    await ready(desk)
    made = desk.assign()
    await desk.put((await desk.instance()).bound("n1", at=0.0))
    assert (desk.free_cpu(), desk.view.binding) == (3000, 0)
    assert not desk.view.withdraw(made), "what is bound is not taken back"
    assert desk.free_cpu() == 3000


async def test_a_withdrawn_assignment_frees_its_room(desk: Desk) -> None:
    await ready(desk)
    made = desk.assign()
    desk.view.events.clear()
    assert desk.view.withdraw(made)
    assert (desk.free_cpu(), desk.place()) == (4000, None)
    assert desk.view.events == {ClusterEvent.ROOM_FREED}


async def test_an_assignment_of_a_replaced_instance_is_void(desk: Desk) -> None:
    await ready(desk)
    made = desk.assign()
    old = await desk.instance()
    await desk.put(old.changed(meta=msgspec.structs.replace(old.meta, uid="")))
    assert (desk.free_cpu(), desk.place()) == (4000, AttemptState.ACTIVE), "the new one waits for its own decision"
    assert not desk.view.withdraw(made)
    assert desk.place() is AttemptState.ACTIVE


@pytest.mark.parametrize("phase", [Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED])
async def test_resources_are_freed_when_an_instance_is_over_and_not_before(desk: Desk, phase: Phase) -> None:
    await ready(desk)
    await desk.put((await desk.instance()).bound("n1", at=0.0))
    version = desk.view.table.version
    for step in (Phase.STARTING, Phase.RUNNING, Phase.STOPPING, Phase.LOST):
        await desk.put((await desk.instance()).reported(InstanceStatus(phase=step)))
        assert desk.free_cpu() == 3000
    assert desk.view.table.version == version, "what is known stays true"
    desk.view.events.clear()
    await desk.put((await desk.instance()).reported(InstanceStatus(phase=phase)))
    assert desk.free_cpu() == 4000
    assert desk.view.events == {ClusterEvent.ROOM_FREED}


async def test_a_stopped_or_deleted_instance_leaves_the_queue(desk: Desk) -> None:
    await ready(desk)
    await desk.put((await desk.instance()).stopping("scaled down"))
    assert desk.place() is None
    await desk.store.commit(Delete(WEB0, (await desk.instance()).meta.version))
    await desk.put_instance()
    assert desk.place() is AttemptState.ACTIVE
    await desk.store.commit(Delete(WEB0, (await desk.instance()).meta.version))
    await settle()
    assert desk.place() is None


async def test_only_fields_that_placement_reads_cause_a_retry(desk: Desk) -> None:
    desk.view.events.clear()
    node = await desk.store.get(Key(Node.kind, "", "n1"))
    assert isinstance(node, Node)
    await desk.put(node.changed(status=msgspec.structs.replace(node.status, address="10.0.0.9")))
    assert desk.view.events == set()
    node = await desk.store.get(Key(Node.kind, "", "n1"))
    assert isinstance(node, Node)
    await desk.put(node.changed(spec=msgspec.structs.replace(node.spec, cordoned=True)))
    assert desk.view.events == {ClusterEvent.NODE_CHANGED}


async def test_a_release_that_goes_takes_no_room_with_it(desk: Desk) -> None:
    await ready(desk)
    await desk.put((await desk.instance()).bound("n1", at=0.0))
    release = await desk.store.get(Key(Release.kind, "default", "web.1"))
    assert release is not None
    await desk.store.commit(Delete(release.key, release.meta.version))
    await desk.put((await desk.instance()).reported(InstanceStatus(phase=Phase.STARTING)))
    assert desk.free_cpu() == 3000


async def test_changed_usage_of_a_node_is_only_a_load_event(desk: Desk) -> None:
    desk.view.take_events()
    attributes = desk.view.table.snapshot()._cached.attributes
    stored = await desk.store.get(Key(Node.kind, "", "n1"))
    assert isinstance(stored, Node)
    await desk.put(stored.changed(status=msgspec.structs.replace(stored.status, usage=Resources(500, 0, 0))))
    assert desk.view.take_events()[0] == {ClusterEvent.LOAD_CHANGED}
    assert desk.view.table.snapshot()._cached.attributes == attributes, "what is known about the nodes stays known"
    assert desk.view.table.snapshot().usage[0, 0] == 500


async def test_instances_created_after_a_change_of_their_workload_use_the_new_spec(desk: Desk) -> None:
    await desk.put(WORKLOAD, make_release(WORKLOAD, 1))
    await desk.put_instance()
    stored = await desk.store.get(WORKLOAD.key)
    assert isinstance(stored, Workload)
    gated = msgspec.structs.replace(stored.spec, gates=("later",))
    await desk.put(stored.changed(spec=gated, meta=msgspec.structs.replace(stored.meta, labels={"tier": "web"})))
    made = make_instance(1, Phase.PENDING)
    await desk.put(made.changed(meta=Meta(name=made.meta.name, namespace="default")))
    requests = [attempt.request for attempt in iter(desk.view.queue.pop, None)]
    assert [(request.key.name, request.gates, dict(request.identity.labels)) for request in requests] == [
        ("web-0", ("later",), {"tier": "web"}),
        ("web-1", ("later",), {"tier": "web"}),
    ]


@pytest.mark.req("S3-31")
async def test_labels_of_a_namespace_reach_placed_and_queued_instances(desk: Desk) -> None:
    await desk.put(WORKLOAD, make_release(WORKLOAD, 1))
    await desk.put_instance()
    desk.assign()
    await desk.put((await desk.instance()).bound("n1", at=1.0))
    made = make_instance(1, Phase.PENDING)
    await desk.put(made.changed(meta=Meta(name=made.meta.name, namespace="default")))
    await desk.put(Namespace(meta=Meta(name="default", labels={"team": "red"})))
    wanted = frozenset({("team", "red")})
    assert [each.identity.namespace_labels for each in desk.view.table.allocations.values()] == [wanted]
    requests = [attempt.request for attempt in iter(desk.view.queue.pop, None)]
    assert [request.identity.namespace_labels for request in requests] == [wanted]


async def test_a_bind_that_is_shown_changes_nothing_that_was_counted(desk: Desk) -> None:
    await desk.put(WORKLOAD, make_release(WORKLOAD, 1))
    await desk.put_instance()
    desk.assign()
    version = desk.view.table.version
    await desk.put((await desk.instance()).bound("n1", at=1.0))
    assert (desk.view.table.version, desk.free_cpu(), desk.view.binding) == (version, 3000, 0)


async def test_a_bind_elsewhere_than_assigned_is_counted_where_it_is(desk: Desk) -> None:
    await desk.put(make_node("n2", cpu=4), WORKLOAD, make_release(WORKLOAD, 1))
    await desk.put_instance()
    desk.assign()
    await desk.put((await desk.instance()).bound("n2", at=1.0))
    assert (desk.free_cpu(), desk.view.table.free("n2")["cpu"]) == (4000, 3000)


async def test_an_update_of_many_instances_reaches_all_despite_changes_meanwhile(desk: Desk) -> None:
    made = [make_instance(index, node="n1", version=0) for index in range(1000)]
    waiting = [make_instance(index, Phase.PENDING, version=0) for index in range(1000, 1500)]
    for start in range(0, 1500, 100):
        await desk.put(*[*made, *waiting][start : start + 100])
    await desk.put(WORKLOAD, make_release(WORKLOAD, 1))
    assert len(desk.view.table.allocations) == 1000
    assert desk.view.queue.lengths()[AttemptState.ACTIVE] == 500

    workload = await desk.store.get(WORKLOAD.key)
    assert isinstance(workload, Workload)
    groups = {
        name: msgspec.structs.replace(group, replicas=1000, disruption=Disruption(max_unavailable=30))
        for name, group in workload.spec.groups.items()
    }
    after = workload.changed(
        meta=msgspec.structs.replace(workload.meta, labels={"app": "new"}),
        spec=msgspec.structs.replace(workload.spec, priority=7, groups=groups),
    )
    await desk.store.commit(Put(after))
    await settle()
    assert desk.view.state.behind
    steps, number = desk.view.state.catch_up(), 0
    for _ in steps:
        gone, bound = made[-1 - number], waiting[number]
        for key, change in ((gone.key, "gone"), (bound.key, "bound")):
            now = await desk.store.get(key)
            assert isinstance(now, Instance)
            write = Delete(key, now.meta.version) if change == "gone" else Put(now.bound("n1", at=0.0))
            await desk.store.commit(write)
        await settle()
        number += 1
    assert number > 10
    assert not desk.view.state.behind
    table = desk.view.table
    assert len(table.allocations) == 1000
    assert {allocation.terms.rank.priority for allocation in table.allocations.values()} == {7}
    assert {allocation.identity.labels for allocation in table.allocations.values()} == {frozenset({("app", "new")})}
    entries = [desk.view.queue.attempt(each.key) for each in waiting[number:]]
    assert {attempt.request.priority for attempt in entries if attempt is not None} == {7}
    assert desk.view.queue.lengths()[AttemptState.ACTIVE] == 500 - number
    identity = next(iter(table.allocations.values())).identity
    assert table.allocation_state.allowed(identity) == 1000 - number - (1000 - 30)


async def test_a_placed_instance_of_the_same_name_that_takes_another_place_is_counted_there(desk: Desk) -> None:
    await ready(desk)
    await desk.put(make_node("n2", cpu=4), (await desk.instance()).bound("n1", at=0.0))
    first = await desk.instance()
    before = desk.view.table.allocation(WEB0)
    again = first.changed(meta=msgspec.structs.replace(first.meta, uid="another", created_at=9.0))
    desk.view.apply_all([Change(1, first, again)])
    after = desk.view.table.allocation(WEB0)
    assert before is not None
    assert after is not None
    assert (before.terms.born, after.terms.born) == (first.meta.created_at, 9.0)
    desk.view.apply_all([Change(2, again, again.bound("n2", at=1.0))])
    assert desk.free_cpu() == 4000
