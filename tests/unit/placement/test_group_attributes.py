"""Rank and identity of a group are cached until its workload or its priority class changes."""

from __future__ import annotations

from mandor.model.instance import Instance, InstanceSpec
from mandor.model.meta import Key, Meta
from mandor.model.priority import PriorityClass, PriorityClassSpec
from mandor.model.workload import Workload
from mandor.placement.framework.occupancy import ORDINARY
from mandor.placement.group_attributes import GroupAttributes
from tests.scenarios.make import make_workload

INSTANCE = Instance(
    meta=Meta(name="web-0", namespace="default"), spec=InstanceSpec(workload="web", release="web-1", index=0)
)
WEB = make_workload("web", priority=7)


def labelled(**labels: str) -> Workload:
    return WEB.changed(meta=Meta(name="web", namespace="default", labels=labels))


def test_a_rank_is_cached_until_it_is_dropped() -> None:
    known: dict[Key, Workload] = {}
    groups = GroupAttributes(known.get)
    assert groups.rank(INSTANCE) == ORDINARY, "the workload is missing"
    known[WEB.key] = WEB
    assert groups.rank(INSTANCE) == ORDINARY
    groups.forget(WEB.key)
    assert groups.rank(INSTANCE).priority == 7


def test_an_identity_is_cached_until_it_is_dropped() -> None:
    known = {WEB.key: labelled(app="a")}
    groups = GroupAttributes(known.get)
    before = groups.identity(INSTANCE)
    known[WEB.key] = labelled(app="b")
    assert groups.identity(INSTANCE) is before
    groups.forget(WEB.key)
    assert groups.identity(INSTANCE).labels == frozenset({("app", "b")})


def test_an_instance_without_its_workload_has_no_labels() -> None:
    known = {WEB.key: labelled(app="a")}
    groups = GroupAttributes(known.get)
    assert groups.identity(INSTANCE).labels
    del known[WEB.key]
    groups.forget(WEB.key)
    assert not groups.identity(INSTANCE).labels


def test_a_changed_priority_class_changes_the_ranks_of_the_workloads_that_name_it() -> None:
    other = make_workload("other", priority=3)
    high = make_workload("web", priority="high")
    known = {high.key: high, other.key: other}
    groups = GroupAttributes(known.get)
    instance = INSTANCE.changed(spec=InstanceSpec(workload="other", release="other-1", index=0))
    assert (groups.rank(INSTANCE).priority, groups.rank(instance).priority) == (0, 3)
    assert groups.set_class("high", PriorityClass(meta=Meta(name="high"), spec=PriorityClassSpec(value=50))) == [
        high.key
    ]
    assert (groups.rank(INSTANCE).priority, groups.rank(instance).priority) == (50, 3)
    assert groups.set_class("low", PriorityClass(meta=Meta(name="low"), spec=PriorityClassSpec(value=-5))) == []
    assert groups.set_class("high", None) == [high.key]
    assert groups.rank(INSTANCE).priority == 0
