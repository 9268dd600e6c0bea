"""What a watcher with a filter sees of many changes is what it sees of each."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mandor.model.meta import Meta
from mandor.model.record import Namespace
from mandor.store.base import ALL, Change, Filter, filtered, filtered_all

values = st.sampled_from(["a", "b"])
labels = st.dictionaries(st.sampled_from(["tier", "app"]), values)
objects = st.none() | labels.map(lambda given: Namespace(meta=Meta(name="x", labels=given)))
changes = st.lists(st.builds(Change, st.integers(1, 9), objects, objects))
filters = st.just(ALL) | st.builds(Filter, st.sampled_from([None, "", "other"]), st.none(), labels)


@settings(max_examples=200, deadline=None)
@given(changes, filters)
def test_many_changes_are_filtered_as_one_by_one(found: list[Change], where: Filter) -> None:
    expected = [seen for each in found if (seen := filtered(each, where)) is not None]
    assert filtered_all(found, where) == expected
