"""The text that Prometheus reads, and the numbers behind it."""

from __future__ import annotations

import asyncio

from mandor.lib.metrics import Counts, Family, Metrics, Spent, Spread, Spreads, counter, gauge, histogram, summary


async def text_of(*families: Family) -> list[str]:
    metrics = Metrics()
    metrics.add(lambda: families)
    return (await metrics.text()).decode().splitlines()


async def test_a_number_without_labels_stands_alone() -> None:
    lines = await text_of(gauge("queue_length", "Who waits.", 3), gauge("share", "Of all.", 0.25))
    assert lines == [
        "# HELP queue_length Who waits.",
        "# TYPE queue_length gauge",
        "queue_length 3",
        "# HELP share Of all.",
        "# TYPE share gauge",
        "share 0.25",
    ]


async def test_counts_are_reported_by_their_labels() -> None:
    counts = Counts()
    counts["placed", "default"] += 2
    counts["refused", "default"] += 1
    lines = await text_of(counter("attempts_total", "Decisions.", counts, "result", "profile"))
    assert lines[2:] == [
        'attempts_total{result="placed",profile="default"} 2',
        'attempts_total{result="refused",profile="default"} 1',
    ]


async def test_the_buckets_of_a_spread_add_up_and_the_bound_itself_is_inside() -> None:
    spread = Spread((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        spread.add(value)
    lines = await text_of(histogram("took_seconds", "Time.", spread))
    assert lines[2:] == [
        'took_seconds_bucket{le="0.1"} 2',
        'took_seconds_bucket{le="1"} 3',
        'took_seconds_bucket{le="+Inf"} 4',
        "took_seconds_sum 7.65",
        "took_seconds_count 4",
    ]


async def test_spreads_and_summaries_have_their_labels_in_every_line() -> None:
    spreads = Spreads()
    spreads[("get",)].add(0.003)
    lines = await text_of(
        histogram("took_seconds", "Time.", spreads, "verb"),
        summary("plugin_seconds", "Time.", {("Filter", "Fit"): Spent(4, 0.5)}, "point", "plugin"),
    )
    assert all('verb="get"' in line for line in lines if line.startswith("took_seconds"))
    assert lines[-2:] == [
        'plugin_seconds_sum{point="Filter",plugin="Fit"} 0.5',
        'plugin_seconds_count{point="Filter",plugin="Fit"} 4',
    ]


async def test_what_a_label_must_not_hold_is_escaped() -> None:
    lines = await text_of(gauge("odd", "With \\ and\nlines.", {('a"b\\c\nd',): 1.0}, "name"))
    assert lines == [r"# HELP odd With \\ and\nlines.", "# TYPE odd gauge", r'odd{name="a\"b\\c\nd"} 1']


async def test_what_is_counted_while_the_text_is_made_does_not_break_it() -> None:
    counts = Counts()
    for number in range(5000):
        counts[(str(number),)] += 1
    metrics = Metrics()
    metrics.add(lambda: [counter("many_total", "Many.", counts, "name")])

    making = asyncio.ensure_future(metrics.text())
    await asyncio.sleep(0)
    counts[("later",)] += 1
    assert len((await making).splitlines()) == 5002


async def test_a_part_that_has_ended_is_not_asked_any_more() -> None:
    metrics = Metrics()
    forget = metrics.add(lambda: [gauge("here", "1.", 1)])
    forget()
    assert await metrics.text() == b"\n"
