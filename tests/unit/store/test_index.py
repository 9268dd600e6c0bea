"""The index: order, history, and subscriptions that cost only matching changes."""

import random
from collections.abc import Generator

import pytest

from mandor.errors import Expired, Unavailable
from mandor.lib.steps import TURN
from mandor.model.instance import Instance
from mandor.model.meta import Key, Object
from mandor.store.base import Change, Filter, KeyTuple
from mandor.store.index import Index
from mandor.store.sorted_objects import BLOCK_MOST, STALE_MOST, SortedObjects
from mandor.testing.store import make_instance, make_node, make_workload

START, END = ("instance", "", ""), ("instance\0", "", "")


def put(index: Index, value: Object) -> Change:
    revision = index.revision + 1
    change = Change(revision, index.get(value.key), value.stamped(version=revision, uid="u"))
    index.publish([change])
    return change


def bind(index: Index, name: str, node: str) -> Change:
    found = index.get(Key("instance", "default", name))
    assert isinstance(found, Instance)
    return put(index, found.bound(node, at=1.0))


@pytest.mark.parametrize("seed", range(5))
def test_sorted_objects_equal_a_sorted_dict(seed: int) -> None:
    chance = random.Random(seed)
    order, model = SortedObjects(), dict[KeyTuple, Object]()
    refreshing: Generator[int, None, None] | None = None
    for step in range(6 * BLOCK_MOST):
        value = make_instance(f"i{chance.randint(0, 9999)}", namespace=chance.choice("ab"), index=step)
        key = value.key
        if key not in model:
            order.add(key)
            model[key] = value
        elif chance.random() < 0.5:
            order.touch(key)
            model[key] = value
        else:
            order.remove(key)
            del model[key]
        if refreshing is not None and chance.random() < 0.5:
            refreshing = refreshing if next(refreshing, None) is not None else None
        if chance.random() < 0.003:
            refreshing = order.refresh(model, START, END)
        if chance.random() < 0.003:
            assert order.items(model) == [item for _, item in sorted(model.items())]
        if chance.random() < 0.003:
            first, end = sorted(chance.choices((START, ("instance", "a", "i5"), ("instance", "b", ""), END), k=2))
            inside = [item for key, item in sorted(model.items()) if first <= key < end]
            assert order.between(model, first, end) == inside
    for left in sorted(model):
        order.remove(left)
    assert order.items({}) == []


def test_empty_sorted_objects_have_nothing_between_any_keys() -> None:
    assert SortedObjects().between({}, START, END) == []
    assert list(SortedObjects().refresh({}, START, END)) == []


def test_after_a_refresh_a_listing_looks_up_only_what_has_changed_since() -> None:
    order, model = _filled()
    *looks, last = order.refresh(model, START, END)
    assert max(looks) <= 2 * BLOCK_MOST
    assert last == TURN
    model.asked = 0
    for name in ("i00007", "i04007"):
        value = make_instance(name, index=-1)
        model[value.key] = value
        order.touch(value.key)
    assert [item.spec.index for item in order.items(model)].count(-1) == 2
    assert model.asked == 2


def test_very_many_changes_during_a_refresh_are_looked_up_by_it_and_not_by_the_listing() -> None:
    order, model = _filled()
    refreshing = order.refresh(model, START, END)
    for number, _ in enumerate(refreshing):
        if number == 8:
            for value in list(model.values())[:: 10 * BLOCK_MOST // (STALE_MOST + 100)]:
                order.touch(value.key)
    model.asked = 0
    assert len(order.items(model)) == 10 * BLOCK_MOST
    assert model.asked == 0


def _filled() -> tuple[SortedObjects, "_Counted"]:
    order, model = SortedObjects(), _Counted()
    for index in range(10 * BLOCK_MOST):
        value = make_instance(f"i{index:05}", index=index)
        order.add(value.key)
        model[value.key] = value
    return order, model


class _Counted(dict[KeyTuple, Object]):
    asked = 0

    def __getitem__(self, key: KeyTuple) -> Object:
        self.asked += 1
        return super().__getitem__(key)


def test_a_snapshot_by_node_follows_objects_that_move() -> None:
    index = Index()
    for name in ("web-0", "web-1"):
        put(index, make_instance(name))
    assert index.snapshot("instance", Filter(node="n1")) == []
    bind(index, "web-0", "n1")
    assert [item.meta.name for item in index.snapshot("instance", Filter(node="n1"))] == ["web-0"]
    bind(index, "web-0", "n2")
    assert index.snapshot("instance", Filter(node="n1")) == []
    assert [item.meta.name for item in index.snapshot("instance", Filter(node="n2"))] == ["web-0"]


def test_a_snapshot_of_every_kind_is_ordered_by_key() -> None:
    index = Index()
    for value in (make_workload("web"), make_node("n2"), make_instance("web-0"), make_node("n1")):
        put(index, value)
    assert [item.key for item in index.snapshot(None)] == sorted(index.objects)


def test_history_is_bounded_and_what_fell_out_is_expired() -> None:
    index = Index(history_most=10)
    for number in range(30):
        put(index, make_node(f"n{number}"))
    assert [change.revision for change in index.subscribe("node", 20).take()] == list(range(21, 31))
    with pytest.raises(Expired) as caught:
        index.subscribe("node", 19)
    assert caught.value.facts == {"since": 19, "oldest": 20}
    with pytest.raises(Expired):
        index.subscribe("node", 31)


def test_a_commit_of_which_only_a_part_is_kept_is_expired_as_a_whole() -> None:
    index = Index(history_most=10)
    index.publish([Change(1, None, make_node(f"n{number}").stamped(version=1)) for number in range(15)])
    with pytest.raises(Expired):
        index.subscribe("node", 0)
    assert index.subscribe("node", 1).take() == []


def test_a_subscriber_that_does_not_read_is_expired_and_dropped() -> None:
    index = Index(buffer_most=5)
    lazy, busy = index.subscribe("node", 0), index.subscribe("node", 0)
    for number in range(20):
        put(index, make_node(f"n{number}"))
        busy.take()
    with pytest.raises(Expired):
        lazy.take()
    assert index.watchers == 1
    index.unsubscribe(lazy)
    index.unsubscribe(busy)
    assert index.watchers == 0


def test_a_change_is_delivered_only_to_matching_subscriptions() -> None:
    index = Index()
    put(index, make_instance("web-0", node="n1"))
    start = index.revision
    by_node = {f"n{number}": index.subscribe("instance", start, Filter(node=f"n{number}")) for number in range(100)}
    everything, nodes = index.subscribe(None, start), index.subscribe("node", start)
    any_kind_on_n2 = index.subscribe(None, start, Filter(node="n2"))
    woken: list[str] = []
    for name, subscription in by_node.items():
        subscription.wake = lambda name=name: woken.append(name)
    bind(index, "web-0", "n2")
    assert sorted(woken) == ["n1", "n2"]
    assert [name for name, subscription in by_node.items() if subscription.buffer] == ["n1", "n2"]
    assert by_node["n1"].take()[0].after is None
    assert by_node["n2"].take()[0].before is None
    assert len(everything.take()) == len(any_kind_on_n2.take()) == 1
    assert nodes.take() == []


def test_an_unfiltered_change_is_one_object_for_all_watchers() -> None:
    index = Index()
    subscriptions = [index.subscribe("node", 0) for _ in range(3)]
    change = put(index, make_node("n1"))
    assert all(subscription.take()[0] is change for subscription in subscriptions)


def test_a_wake_is_called_once_for_a_burst() -> None:
    index = Index()
    subscription = index.subscribe("node", 0)
    calls: list[int] = []
    subscription.wake = lambda: calls.append(1)
    index.publish([Change(number + 1, None, make_node(f"n{number}").stamped(version=1)) for number in range(50)])
    assert calls == [1]
    assert len(subscription.take()) == 50


def test_failing_the_watchers_reaches_all_of_them() -> None:
    index = Index()
    subscriptions = [index.subscribe("node", 0), index.subscribe(None, 0), index.subscribe(None, 0, Filter(node="n"))]
    index.fail_watchers(Unavailable("closed"))
    for subscription in subscriptions:
        with pytest.raises(Unavailable):
            subscription.take()
    assert index.watchers == 0


def test_revisions_never_go_back() -> None:
    index = Index()
    put(index, make_node("n1"))
    index.start_at(10)
    with pytest.raises(AssertionError):
        index.publish([Change(9, None, make_node("n2"))])
    index.advance(5)
    assert index.revision == 10
