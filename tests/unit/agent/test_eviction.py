"""Node-pressure eviction: ended units and unused images are removed first, then instances are evicted one by one."""

from __future__ import annotations

import asyncio

import pytest

from mandor.agent.eviction import PressureEviction
from mandor.agent.machine import measure_machine
from mandor.agent.pressure import EvictionCandidate, Reading, Threshold
from mandor.lib.clock import ManualClock


class House:
    """A machine with a hundred units of one resource, and the instances that use it."""

    def __init__(self, signal: str = "disk", **used: int) -> None:
        self.signal, self.used = signal, used
        self.priorities: dict[str, int] = {}
        self.rubbish = 0
        self.images: dict[str, int] = {}
        self.cleaned: list[str] = []
        self.slow: set[str] = set()
        self.evicted: list[tuple[str, bool]] = []
        self.changes = 0
        self.clock = ManualClock()
        thresholds = {signal: Threshold(0.10, 0.05, 60.0)}
        self.eviction = PressureEviction(
            thresholds, self.measure, self, self.clock, changed=self._changed, cleaned=self.cleaned.append
        )

    def _changed(self) -> None:
        self.changes += 1

    def measure(self) -> list[Reading]:
        return [Reading(self.signal, 100 - self.rubbish - sum(self.used.values()) - sum(self.images.values()), 100)]

    async def candidates(self, signal: str) -> list[EvictionCandidate]:
        return [EvictionCandidate(uid, self.priorities.get(uid, 0), used, 10) for uid, used in self.used.items()]

    async def clean_image(self) -> str:
        name = next(iter(self.images), "")
        self.images.pop(name, None)
        return name

    async def discard_ended(self) -> int:
        found, self.rubbish = self.rubbish, 0
        return found

    def evict(self, uid: str, message: str, *, hard: bool) -> None:
        assert self.signal in message
        self.evicted.append((uid, hard))
        if uid not in self.slow:
            del self.used[uid]

    def alive(self, uid: str) -> bool:
        return uid in self.used

    async def looks(self, seconds: float) -> None:
        for _ in range(round(seconds / 2)):
            await self.eviction.look()
            await self.clock.advance(2)


async def test_no_instance_is_evicted_while_resources_suffice() -> None:
    house = House(a=40, b=40)
    await house.looks(300)
    assert (house.evicted, house.eviction.shown) == ([], ())


async def test_the_machine_is_measured_every_look_seconds() -> None:
    house, measured = House(a=40), list[float]()

    def measure() -> list[Reading]:
        measured.append(house.clock.monotonic() - began)
        return house.measure()

    began = house.clock.monotonic()
    eviction = PressureEviction({}, measure, house, house.clock, changed=house._changed, look_seconds=3.0)
    running = asyncio.ensure_future(eviction.run())
    await house.clock.advance(10)
    running.cancel()
    assert measured == [0, 3, 6, 9]


@pytest.mark.req("S3-9")
async def test_ended_units_are_removed_before_an_instance_is_evicted() -> None:
    house = House(a=40, b=30)
    house.rubbish = 28
    await house.looks(10)
    assert house.evicted == []
    assert house.eviction.shown == ("disk",), "it was so a moment ago"
    await house.looks(60)
    assert not house.eviction.shown
    assert house.changes == 2


@pytest.mark.req("S3-9")
async def test_unused_images_are_removed_first_and_only_as_many_as_needed() -> None:
    house = House(a=40, b=30)
    house.images = {"old": 3, "older": 5, "new": 10}
    house.rubbish = 5
    await house.looks(4)
    assert house.cleaned == ["old"], "there is enough then, long before anybody's patience ends"
    house.used["a"] += 8
    await house.looks(4)
    assert (house.cleaned, house.rubbish, house.evicted) == (["old", "older", "new"], 5, [])


async def test_images_are_not_removed_to_free_memory() -> None:
    house = House("memory", a=50, b=48)
    house.images = {"old": 0}
    await house.looks(4)
    assert not house.cleaned


@pytest.mark.req("S3-7")
async def test_instances_are_evicted_one_at_a_time_until_resources_suffice() -> None:
    house = House("memory", a=40, b=30, c=27)
    house.priorities = {"a": 1, "b": 0, "c": 0}
    await house.looks(10)
    assert house.evicted == [("b", True)]


async def test_the_next_eviction_waits_for_the_previous_one_up_to_a_limit() -> None:
    house = House("memory", a=50, b=48)
    house.slow = {"a"}
    await house.looks(28)
    assert house.evicted == [("a", True)]
    await house.looks(6)
    assert len(house.evicted) >= 2, "what does not go is not waited for for ever"


async def test_a_soft_threshold_evicts_only_after_its_grace() -> None:
    house = House("memory", a=50, b=43)
    await house.looks(58)
    assert house.evicted == []
    await house.looks(10)
    assert house.evicted == [("a", False)]


async def test_pressure_is_reported_when_there_is_no_instance_to_evict() -> None:
    house = House("memory")
    house.measure = lambda: [Reading("memory", 1, 100)]  # type: ignore[method-assign]
    house.eviction = PressureEviction(
        {"memory": Threshold(0.1, 0.05)}, house.measure, house, house.clock, changed=house._changed
    )
    await house.looks(10)
    assert house.eviction.shown == ("memory",)


def test_this_machine_has_memory_disk_and_inodes(tmp_path: object) -> None:
    found = {each.signal: each for each in measure_machine(tmp_path)}  # type: ignore[arg-type]
    assert found.keys() == {"memory", "disk", "inodes"}
    assert all(0 <= each.share <= 1 for each in found.values())
