"""NoExecute taints: the plan against the same rule written as a plain loop."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mandor.controllers.taint_plan import STOPS_MOST, plan_taints
from mandor.lib.quantity import Seconds
from mandor.model.instance import Instance
from mandor.model.node import Taint
from mandor.model.phase import Phase
from mandor.model.placement import Toleration
from mandor.store.base import Put
from tests.scenarios.make import NOW, make_instance, make_node

keys = st.sampled_from(["a", "b"])
values = st.sampled_from(["", "x"])
effects = st.sampled_from(["NoSchedule", "PreferNoSchedule", "NoExecute"])
ages = st.integers(0, 100)
taints = st.lists(
    st.builds(Taint, keys, values, effects, ages.map(lambda age: NOW - age)),
    max_size=3,
    unique_by=lambda each: (each.key, each.effect),
)
tolerations = st.lists(
    st.one_of(
        st.builds(Toleration, st.sampled_from(["", "a", "b"]), st.none() | values, st.none() | effects),
        st.builds(
            Toleration,
            st.sampled_from(["", "a", "b"]),
            st.none() | values,
            st.sampled_from([None, "NoExecute"]),
            st.integers(0, 100).map(Seconds),
        ),
    ),
    max_size=3,
)


def ends_at(taint: Taint, tolerate: list[Toleration], started_at: float) -> float:
    if taint.effect != "NoExecute":
        return float("inf")
    fitting = []
    for each in tolerate:
        key_fits = each.key == "" or each.key == taint.key
        value_fits = each.value is None or each.value == taint.value
        if key_fits and value_fits and each.effect in (None, taint.effect):
            fitting.append(each.seconds)
    if not fitting:
        return 0.0
    limited = [each for each in fitting if each is not None]
    return max(taint.since, started_at) + min(limited) if limited else float("inf")


@given(taints, tolerations, ages)
def test_one_is_driven_off_when_the_first_of_its_times_is_over_and_looked_at_again_then(
    taints: list[Taint], tolerate: list[Toleration], age: int
) -> None:
    node = make_node("n1", taints=tuple(taints))
    instance = make_instance(started_at=NOW - age)
    draft = plan_taints(node, [instance], lambda each: tolerate, NOW)
    end = min((ends_at(each, tolerate, NOW - age) for each in taints), default=float("inf"))
    assert bool(draft.writes) == (end <= NOW)
    if NOW < end < float("inf"):
        assert draft.again_seconds == end - NOW
    elif end > NOW:
        assert draft.again_seconds is None


@given(st.lists(st.sampled_from(list(Phase)), max_size=300))
def test_only_nominations_on_the_node_are_notified_once(phases: list[Phase]) -> None:
    node = make_node("n1", taints=(Taint("a", effect="NoExecute"),))
    here = [make_instance(index, phase, node="n1") for index, phase in enumerate(phases)]
    left: list[Instance] = here
    for _ in range(len(phases) // STOPS_MOST + 2):
        draft = plan_taints(node, left, lambda each: (), NOW)
        told = {write.key: write.value for write in draft.writes if isinstance(write, Put)}
        assert len(told) <= STOPS_MOST
        left = [told.get(each.key, each) for each in left]  # type: ignore[misc]
    assert not plan_taints(node, left, lambda each: (), NOW).writes
    assert [each.spec.stop is not None for each in left] == [each.phase.placed for each in here]
