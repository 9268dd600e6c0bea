"""The cluster state: the table follows the objects, in any order of kinds."""

from __future__ import annotations

from msgspec import structs

from mandor.lib.steps import at_once
from mandor.model.instance import Instance
from mandor.model.lifecycle import Disruption
from mandor.model.meta import Key, Object
from mandor.model.node import Occupied
from mandor.model.phase import Phase
from mandor.model.workload import Workload
from mandor.placement.cluster_state import ClusterState
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.points import ClusterEvent
from tests.scenarios.make import make_class, make_instance, make_node, make_stored_release, make_workload

WEB = make_workload("web", cpu="1", priority="high")
RELEASE = make_stored_release(WEB)
HIGH = make_class("high", 50)
GROUP = Identity("default", "web", "main")


class Cluster:
    def __init__(self) -> None:
        self.objects: dict[Key, Object] = {}
        self.requeued: list[str] = []
        self.events: list[ClusterEvent] = []
        self.state = ClusterState(self.objects.get, self.objects.get, self._pending, notify=self._note)

    def _pending(self, key: Key, instance: Instance, *, requeue: bool) -> None:
        if self.state.request(instance) is None:
            self.state.wait_for_missing(key, instance)
        self.requeued += [key.name] * requeue

    def _note(self, event: ClusterEvent, *_: object, **__: object) -> None:
        self.events.append(event)

    def put(self, *values: Object) -> None:
        for value in values:
            before, self.objects[value.key] = self.objects.get(value.key), value
            self.state.apply(before, value)
            at_once(self.state.catch_up())

    def remove(self, value: Object) -> None:
        self.state.apply(self.objects.pop(value.key), None)
        at_once(self.state.catch_up())

    def counted(self, instance: Instance) -> tuple[str, int, int, dict[str, str]]:
        """Return node, CPU, priority and labels."""
        found = self.state.table.allocations[instance.key]
        cpu = dict(found.shape.wanted).get("cpu", 0)
        return found.node, cpu, found.terms.rank.priority, dict(found.identity.labels)


def labelled(workload: Workload, **labels: str) -> Workload:
    return workload.changed(meta=structs.replace(workload.meta, labels=labels))


def test_an_instance_is_counted_in_full_whatever_object_comes_last() -> None:
    first, web = make_instance(0), labelled(WEB, app="web")
    objects = [make_node("n1"), HIGH, web, RELEASE, first]
    for turn in range(len(objects)):
        cluster = Cluster()
        cluster.put(*objects[turn:], *objects[:turn])
        assert cluster.counted(first) == ("n1", 1000, 50, {"app": "web"})
        assert cluster.state.table.free("n1")["cpu"] == 3000


def test_an_instance_is_counted_with_no_resources_until_its_release_has_come() -> None:
    cluster, first = Cluster(), make_instance(0)
    cluster.put(make_node("n1"), first)
    assert cluster.counted(first) == ("n1", 0, 0, {})
    assert set(cluster.state.missing()) == {WEB.key, RELEASE.key}
    cluster.put(RELEASE, WEB)
    assert cluster.counted(first)[1] == 1000
    assert cluster.state.missing() == ()


def test_an_instance_that_is_deleted_does_not_wait_for_missing_objects() -> None:
    cluster, first = Cluster(), make_instance(0, Phase.PENDING)
    cluster.put(first)
    assert cluster.state.waiting_for(WEB.key) == (first.key,)
    cluster.remove(first)
    assert cluster.state.missing() == ()


def test_instances_on_a_node_that_has_not_come_yet_follow_the_labels_of_their_workload() -> None:
    cluster, first = Cluster(), make_instance(0)
    cluster.put(WEB, RELEASE, first, labelled(WEB, app="new"), make_node("n1"))
    assert cluster.counted(first)[3] == {"app": "new"}


def test_an_instance_whose_workload_is_deleted_keeps_its_priority_and_labels() -> None:
    cluster, first, web = Cluster(), make_instance(0), labelled(WEB, app="web")
    cluster.put(make_node("n1"), HIGH, web, RELEASE, first)
    cluster.remove(web)
    cluster.remove(RELEASE)
    cluster.put(first.changed(spec=structs.replace(first.spec, attempt=1)))
    assert cluster.counted(first) == ("n1", 1000, 50, {"app": "web"})


def test_a_changed_release_changes_the_size_of_its_instances() -> None:
    cluster, first = Cluster(), make_instance(0)
    cluster.put(make_node("n1"), WEB, RELEASE, first)
    cluster.events.clear()
    cluster.put(make_stored_release(make_workload("web", cpu="500m", priority="high")))
    assert cluster.state.table.free("n1")["cpu"] == 3500
    assert cluster.events == [ClusterEvent.ROOM_FREED]


def test_a_changed_priority_class_changes_placed_and_pending_instances() -> None:
    cluster, first, pending = Cluster(), make_instance(0), make_instance(1, Phase.PENDING)
    cluster.put(make_node("n1"), HIGH, WEB, RELEASE, first, pending)
    cluster.put(make_class("high", 60))
    assert cluster.counted(first)[2] == 60
    assert cluster.requeued == [pending.meta.name]
    cluster.put(make_class("other", 70))
    assert cluster.requeued == [pending.meta.name]


def test_room_that_is_held_for_a_pending_instance_follows_its_priority() -> None:
    cluster, pending = Cluster(), make_instance(0, Phase.PENDING)
    cluster.put(make_node("n1"), HIGH, WEB, RELEASE, pending)
    request = cluster.state.request(pending)
    assert request is not None
    cluster.state.hold(request, "n1", born=3.0)
    cluster.put(make_class("high", 60))
    assert (cluster.counted(pending)[2], cluster.state.held(pending.key)) == (60, "n1")


def test_a_changed_status_of_a_workload_changes_nothing() -> None:
    cluster, first, pending = Cluster(), make_instance(0), make_instance(1, Phase.PENDING)
    cluster.put(make_node("n1"), WEB, RELEASE, first, pending)
    version = cluster.state.table.version
    cluster.put(WEB.changed(status=structs.replace(WEB.status, phase="Running")))
    assert (cluster.state.table.version, cluster.requeued) == (version, [])


def test_an_instance_that_is_replaced_is_not_available_any_more() -> None:
    groups = {"main": structs.replace(WEB.spec.groups["main"], replicas=1, disruption=Disruption(max_unavailable=1))}
    web = WEB.changed(spec=structs.replace(WEB.spec, groups=groups))
    cluster, first = Cluster(), make_instance(0, ready=True)
    cluster.put(make_node("n1"), web, RELEASE, first)
    assert cluster.state.table.allocation_state.allowed(GROUP) == 1
    other = make_workload("other")
    again = first.changed(
        meta=structs.replace(first.meta, uid="another"),
        spec=structs.replace(first.spec, workload="other", release="other.1"),
    )
    cluster.put(other, make_stored_release(other), again)
    assert cluster.state.table.allocation_state.allowed(GROUP) == 0
    assert (cluster.state.keys_of(web.key), cluster.state.keys_of(other.key)) == ([], [first.key])


def test_an_instance_that_is_assumed_to_stop_is_counted_as_stored_after_a_reset() -> None:
    cluster, first = Cluster(), make_instance(0)
    cluster.put(make_node("n1"), WEB, RELEASE, first)
    cluster.state.assume_stopping(first, now=100.0)
    assert cluster.state.table.allocations[first.key].terms.until is not None
    cluster.state.reset(first.key)
    assert cluster.state.table.allocations[first.key].terms.until is None


def test_a_new_priority_of_an_instance_does_not_change_the_turn_of_its_node() -> None:
    cluster = Cluster()
    cluster.put(make_node("n1"), make_node("n2"), WEB, RELEASE, make_instance(0), make_instance(1, node="n2"))
    turns = cluster.state.table.snapshot().turns.tolist()
    cluster.put(HIGH, labelled(WEB, app="new"))
    assert cluster.state.table.snapshot().turns.tolist() == turns


def test_the_usage_of_a_node_is_dropped_with_its_report() -> None:
    node = make_node("n1")
    used = node.changed(status=structs.replace(node.status, occupied=Occupied(cpu_milli=1000, memory_bytes=0)))
    cluster = Cluster()
    cluster.put(used)
    assert cluster.state.table.free("n1")["cpu"] == 3000
    cluster.put(node)
    assert cluster.state.table.free("n1")["cpu"] == 4000
