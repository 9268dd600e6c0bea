"""Maintenance windows: never more nodes than said, everyone once, and all given back at the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mandor.controllers.maintenance_plan import GRACE_SECONDS, next_window, open_window, plan_maintenance
from mandor.lib.quantity import Seconds
from mandor.model.codec import from_plain
from mandor.model.meta import Meta
from mandor.model.node import DrainStatus, Node
from mandor.model.pool import NodePool, NodePoolSpec, Window
from mandor.store.base import Put
from tests.scenarios.make import make_node

MIDNIGHT = 1_700_006_400.0
"""2023-11-15 00:00 UTC."""


def make_pool(**fields: object) -> NodePool:
    window = from_plain({"cron": "0 3 * * *", "duration": "1h", **fields}, Window)
    return NodePool(meta=Meta(name="default"), spec=NodePoolSpec(maintenance=(window,)))


def hours(count: float) -> float:
    return MIDNIGHT + count * 3600


def test_a_window_is_open_from_its_time_for_its_duration() -> None:
    pool = make_pool()
    assert open_window(pool, hours(3) - 1) is None
    assert open_window(pool, hours(3)) == (pool.spec.maintenance[0], hours(3))
    assert open_window(pool, hours(4) - 1) is not None
    assert open_window(pool, hours(4)) is None
    assert next_window(pool, hours(3)) == hours(27)
    assert open_window(make_pool(timezone="Asia/Jakarta"), hours(20)) is not None, "three in the morning there"
    assert next_window(NodePool(meta=Meta(name="p")), hours(3)) == 0


class Windowed:
    """A pool and its nodes; how long each takes to be emptied is said beforehand."""

    def __init__(self, pool: NodePool, takes: list[int | None]) -> None:
        self.pool = pool
        self.takes = {f"n{number:02}": each for number, each in enumerate(takes)}
        self.nodes = {name: make_node(name) for name in self.takes}
        self.turns: list[str] = []
        self.most = 0

    def look(self, now: float) -> float | None:
        for name, node in self.nodes.items():
            self.nodes[name] = self._emptied(name, node, now)
        draft = plan_maintenance(self.pool, list(self.nodes.values()), now)
        for write in draft.writes:
            assert isinstance(write, Put)
            if isinstance(write.value, Node):
                name = write.value.meta.name
                if self.nodes[name].status.maintenance is None:
                    self.turns.append(name)
                self.nodes[name] = write.value
            elif isinstance(write.value, NodePool):
                self.pool = write.value
        self.most = max(self.most, self.busy)
        return draft.again_seconds

    @property
    def busy(self) -> int:
        return sum(node.status.maintenance is not None for node in self.nodes.values())

    def _emptied(self, name: str, node: Node, now: float) -> Node:
        turn, takes = node.status.maintenance, self.takes[name]
        if turn is None:
            return node.changed(status=replace(node.status, drain=None))
        done = takes is not None and now >= turn.drain.since + takes
        progress = DrainStatus(phase="Drained" if done else "Waiting", since=turn.drain.since)
        return node.changed(status=replace(node.status, drain=progress))


@given(
    takes=st.lists(st.none() | st.integers(0, 900), max_size=8),
    at_once=st.integers(1, 3),
    each=st.sampled_from([0, 60, 600]),
)
def test_nodes_take_turns_and_everyone_is_given_back(takes: list[int | None], at_once: int, each: int) -> None:
    seen = Windowed(make_pool(at_once=at_once, each=each, drain="5m"), takes)
    now = hours(2.9)
    while now < hours(4.1):
        seen.look(now)
        now += 20
    assert seen.most <= at_once
    assert len(seen.turns) == len(set(seen.turns)), "everyone at most once"
    assert seen.turns == sorted(seen.turns)
    assert not seen.busy
    assert not any(node.closed for node in seen.nodes.values())
    failed = {name for name in seen.turns if (took := seen.takes[name]) is None or took > 300 + GRACE_SECONDS - 20}
    assert failed >= set(seen.pool.status.left_out)
    if len(takes) * (each + 300 + GRACE_SECONDS + 60) < 3600:
        assert len(seen.turns) == len(takes), "there was time for all"


def test_it_looks_again_when_something_is_to_be_done() -> None:
    seen = Windowed(make_pool(each="10m"), [30])
    assert seen.look(hours(2)) == 3600
    assert seen.look(hours(3)) is not None
    seen.look(hours(3) + 40)
    assert seen.nodes["n00"].status.maintenance is not None
    assert seen.look(hours(3) + 40) == 600
    seen.look(hours(3) + 640)
    assert seen.pool.status.done == ("n00",)
    assert not seen.pool.status.left_out


def test_a_window_that_opens_again_while_it_is_open_is_one_window() -> None:
    seen = Windowed(make_pool(cron="* * * * *", duration="10m", each="1m"), [0, 0, 0])
    opened = set()
    for second in range(0, 590, 10):
        seen.look(hours(3) + second)
        opened.add(seen.pool.status.opened_at)
    assert opened == {hours(3)}
    assert seen.turns == ["n00", "n01", "n02"]


def test_closed_and_silent_nodes_are_left_alone() -> None:
    seen = Windowed(make_pool(at_once=5), [0, 0])
    seen.nodes["n00"] = make_node("n00", cordoned=True)
    seen.look(hours(3))
    assert seen.turns == ["n01"]


@given(takes=st.lists(st.none() | st.integers(0, 300), min_size=2, max_size=5), at=st.integers(0, 719))
def test_an_ended_maintenance_is_over_at_once_and_the_next_node_follows(takes: list[int | None], at: int) -> None:
    seen = Windowed(make_pool(each="15m", drain="10m"), takes)
    seen.look(hours(3))
    seen.look(hours(3) + at)
    node = seen.nodes["n00"]
    assert node.status.maintenance is not None
    seen.nodes["n00"] = node.changed(spec=replace(node.spec, maintained=node.status.maintenance.window))
    seen.look(hours(3) + at)
    assert not seen.nodes["n00"].closed
    assert seen.pool.status.done == ("n00",)
    assert not seen.pool.status.left_out
    assert seen.turns == ["n00", "n01"]
    for second in range(at, 3700, 60):
        seen.look(hours(3) + second)
    assert seen.turns.count("n00") == 1, "not again in this window"
    seen.look(hours(27))
    assert seen.turns.count("n00") == 2, "but in the next"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cron": "0 3 31 2 *"}, "no such day in its months"),
        ({"cron": "often"}, "is not a cron expression"),
        ({"timezone": "Mars/Base"}, "not a known time zone"),
        ({"duration": "1s"}, "the duration 1s is out of range"),
        ({"each": "2h"}, "each node is kept empty for 2h"),
        ({"at_once": 0}, "at_once"),
    ],
)
def test_a_window_that_makes_no_sense_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_pool(**fields)


def test_times_are_amounts() -> None:
    assert make_pool(each="90s").spec.maintenance[0].each == Seconds(90)
