"""Differences and merge patches."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandor.api.changes import differences
from mandor.api.routes.objects import merge
from mandor.testing.store import make_workload

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("value", "patch", "merged"),
    [
        # The examples of RFC 7396, appendix A.
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_a_merge_patch_does_what_the_standard_shows(value: Any, patch: Any, merged: Any) -> None:
    assert merge(value, patch) == merged


@given(plain, plain)
def test_a_patch_applied_twice_changes_no_more_than_once(value: Any, patch: Any) -> None:
    once = merge(value, patch)
    assert merge(once, patch) == once


def test_what_is_the_same_has_no_differences() -> None:
    assert differences(make_workload("web", a="b"), make_workload("web", a="b")) == []


def test_changed_added_and_removed_labels_are_distinguished() -> None:
    found = differences(
        make_workload("web", same="1", old="2", other="3"), make_workload("web", same="1", other="4", new="5")
    )
    assert [(each.path, each.before, each.after) for each in found] == [
        ("meta.labels.new", None, "5"),
        ("meta.labels.old", "2", None),
        ("meta.labels.other", "3", "4"),
    ]


def test_a_new_object_is_all_difference() -> None:
    paths = [each.path for each in differences(None, make_workload("web", app="x"))]
    assert paths == ["meta.labels.app", "spec.groups.main.tasks.main.command"]
