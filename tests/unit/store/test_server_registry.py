"""Servers register their features while they are live; a feature is usable when all of them have it."""

import asyncio
from contextlib import suppress

import pytest

from mandor.errors import Unsupported
from mandor.lib.clock import ManualClock, settle
from mandor.lib.versions import compatible, newer, skew
from mandor.model.record import ServerSpec
from mandor.store.memory import MemoryStore
from mandor.store.server_registry import ServerRegistry


def register(store: MemoryStore, clock: ManualClock, name: str, version: str, *features: str) -> ServerRegistry:
    return ServerRegistry(store, clock, name, ServerSpec(version=version, features=features, address=f"http://{name}"))


async def end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.mark.req("S0-19")
async def test_a_feature_is_common_once_the_last_server_supports_it() -> None:
    store, clock = MemoryStore(), ManualClock()
    old, new = register(store, clock, "s1", "0.1.0", "a"), register(store, clock, "s2", "0.2.0", "a", "b")
    running = []
    for each in (old, new):
        await each.enter()
        running.append(asyncio.ensure_future(each.run()))
    await clock.advance(5)
    await settle()
    assert old.everywhere() == new.everywhere() == {"a"}
    assert new.lacking("b") == ["http://s1 (0.1.0)"]

    await end(running[0])  # it leaves as it should, and nobody waits
    await clock.advance(2)
    await settle()
    assert new.everywhere() == {"a", "b"}
    await end(running[1])
    assert (await store.list("server")).items == []


async def test_a_dead_server_counts_until_its_entry_expires() -> None:
    store, clock = MemoryStore(), ManualClock()
    await register(store, clock, "s1", "0.1.0", "a").enter()  # and then nothing more is heard of it
    new = register(store, clock, "s2", "0.2.0", "a", "b")
    await new.enter()
    running = asyncio.ensure_future(new.run())
    await clock.advance(5)
    await settle()
    assert new.everywhere() == {"a"}
    for _ in range(4):
        await clock.advance(2)
        await settle()
    assert new.everywhere() == {"a", "b"}
    await end(running)


@pytest.mark.req("S0-19")
async def test_an_incompatible_server_does_not_start_while_another_is_live() -> None:
    store, clock = MemoryStore(), ManualClock()
    old = register(store, clock, "s1", "0.1.0")
    await old.enter()
    running = asyncio.ensure_future(old.run())
    entering = asyncio.ensure_future(register(store, clock, "s2", "0.3.0").enter())
    for _ in range(12):
        await settle()
        await clock.advance(1)
    with pytest.raises(Unsupported, match=r"0\.3\.0, but http://s1 \(0\.1\.0\) is running"):
        await entering
    await end(running)


async def test_an_incompatible_server_starts_once_the_other_is_dead() -> None:
    store, clock = MemoryStore(), ManualClock()
    await register(store, clock, "s1", "0.1.0").enter()
    entering = asyncio.ensure_future(register(store, clock, "s2", "0.3.0").enter())
    for _ in range(12):
        await settle()
        await clock.advance(1)
    await entering
    assert {each.meta.name for each in (await store.list("server")).items} == {"s1", "s2"}


@pytest.mark.parametrize(
    ("ours", "theirs", "apart"),
    [
        ("0.1.0", "0.1.9", 0),
        ("0.1.0", "0.2.0", 1),
        ("1.4", "1.2.0rc1", -2),
        ("0.9.0", "1.0.0", None),
        ("0.1", "x", None),
    ],
)
def test_versions_differ_by_minor_numbers(ours: str, theirs: str, apart: int | None) -> None:
    assert skew(ours, theirs) == apart
    assert compatible(ours, theirs) is (apart in {-1, 0, 1})


def test_the_later_version_is_the_newer_one() -> None:
    assert newer("0.9.1", "0.10.0")
    assert not newer("0.10.0", "0.9.1")
    assert not newer("0.1.0", "strange")
