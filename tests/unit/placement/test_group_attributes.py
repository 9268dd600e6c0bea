"""The roster: what is known of a group is kept until its workload changes, and follows it then."""

from __future__ import annotations

from mandor.model.instance import Instance, InstanceSpec
from mandor.model.meta import Key, Meta
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
    roster = GroupAttributes(known.get)
    assert roster.rank(INSTANCE) == ORDINARY, "nobody knows its workload"
    known[WEB.key] = WEB
    assert roster.rank(INSTANCE) == ORDINARY
    roster.forget_ranks(WEB.key)
    assert roster.rank(INSTANCE).priority == 7


def test_relabel_returns_only_cached_groups_whose_identity_changed() -> None:
    known = {WEB.key: labelled(app="a")}
    roster = GroupAttributes(known.get)
    assert roster.relabel(WEB.key, labelled(app="a")) == [], "nobody has asked who they are"
    before = roster.identity(INSTANCE)
    assert roster.relabel(WEB.key, labelled(app="a")) == []
    ((old, new),) = roster.relabel(WEB.key, labelled(app="b"))
    assert (old, new.labels) == (before, frozenset({("app", "b")}))
    assert roster.identity(INSTANCE) == new, "without looking for its workload again"


def test_an_instance_without_its_workload_has_no_labels() -> None:
    known = {WEB.key: labelled(app="a")}
    roster = GroupAttributes(known.get)
    assert roster.identity(INSTANCE).labels
    del known[WEB.key]
    assert roster.relabel(WEB.key, None) == []
    assert not roster.identity(INSTANCE).labels
