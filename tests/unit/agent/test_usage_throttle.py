"""Usage of the node is written when it changes enough, and rarely."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from mandor.agent.usage_throttle import STEADY_SECONDS, SUDDEN_SECONDS, UsageThrottle, used_by_own
from mandor.lib.clock import ManualClock
from mandor.model.resources import Resources
from mandor.model.usage import InstanceUsage

HAS = Resources(10_000, 10_000, 10_000)


def _load(clock: ManualClock, cpu: int = 0, who: tuple[str, ...] = ()) -> UsageThrottle:
    load = UsageThrottle(clock)
    assert not load.measured(Resources(9_999, 0, 0), HAS, who), "rates that span no time mean nothing"
    assert load.measured(Resources(cpu, 0, 0), HAS, who)
    return load


async def test_large_changes_are_reported_sooner_than_notable_ones() -> None:
    clock = ManualClock()
    load = _load(clock)
    await clock.advance(SUDDEN_SECONDS)
    assert not load.measured(Resources(600, 0, 0), HAS, ())
    assert load.measured(Resources(2_000, 0, 0), HAS, ())
    await clock.advance(STEADY_SECONDS)
    assert not load.measured(Resources(2_400, 0, 0), HAS, ()), "less than a twentieth"
    assert load.measured(Resources(2_500, 0, 0), HAS, ())
    assert load.reported == Resources(2_500, 0, 0)


async def test_other_instances_cause_a_report_of_the_same_usage() -> None:
    clock = ManualClock()
    load = _load(clock, 50, ("a",))
    await clock.advance(STEADY_SECONDS)
    assert not load.measured(Resources(51, 0, 0), HAS, ("a",))
    assert load.measured(Resources(51, 0, 0), HAS, ("a", "b")), "it is in the measure now, whatever it requested"


def test_the_usage_of_a_partial_node_is_that_of_its_instances() -> None:
    own = {"a": InstanceUsage(cpu_milli=5, memory_bytes=7), "b": InstanceUsage(cpu_milli=1)}
    assert used_by_own(own) == Resources(6, 7, 0)


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 3)), max_size=200))
async def test_usage_is_written_at_most_every_ten_seconds(
    metrics: list[tuple[int, int]],
) -> None:
    clock, times = ManualClock(), []
    load = UsageThrottle(clock)
    for cpu, who in metrics:
        await clock.advance(2.5)
        if load.measured(Resources(cpu, cpu, cpu), HAS, (str(who),)):
            times.append(clock.monotonic())
    assert all(later - earlier >= SUDDEN_SECONDS for earlier, later in itertools.pairwise(times))
