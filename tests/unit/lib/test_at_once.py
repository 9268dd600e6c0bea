"""Coroutines that wait for nothing, run without a task."""

import asyncio

import pytest

from mandor.lib.at_once import Waits, at_once


async def test_what_waits_for_nothing_gives_its_result() -> None:
    async def inner() -> int:
        return 3

    async def work() -> int:
        return await inner() + 1

    assert at_once(work()) == 4


async def test_what_it_raises_comes_through() -> None:
    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        at_once(work())


async def test_what_has_to_wait_is_given_up_and_cleans_up() -> None:
    steps: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(0)
            steps.append("went on")
        finally:
            steps.append("cleaned up")

    with pytest.raises(Waits):
        at_once(work())
    assert steps == ["cleaned up"]
