"""A leash: work that may not go on takes no further step, and takes back what it did."""

from __future__ import annotations

import asyncio

import pytest

from mandor.agent.leash import Leash
from mandor.errors import Invalid, Unavailable


class Work:
    def __init__(self) -> None:
        self.done: list[str] = []
        self.gate = asyncio.Event()
        self.may = True

    async def run(self) -> str:
        self.done.append("first")
        try:
            await self.gate.wait()
            self.done.append("second")
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            self.done.append("taken back")
            raise
        return "result"

    async def on_leash(self) -> str:
        return await Leash(self.run(), lambda: self.may, "not any longer")


async def test_work_that_may_go_on_is_as_without_a_leash() -> None:
    work = Work()
    running = asyncio.create_task(work.on_leash())
    await asyncio.sleep(0)
    work.gate.set()
    assert await running == "result"
    assert work.done == ["first", "second"]


@pytest.mark.req("S0-25")
async def test_work_that_may_not_go_on_takes_back_what_it_did() -> None:
    work = Work()
    running = asyncio.create_task(work.on_leash())
    await asyncio.sleep(0)
    work.may = False
    work.gate.set()
    with pytest.raises(Unavailable, match="not any longer"):
        await running
    assert work.done == ["first", "taken back"]


async def test_work_that_may_not_begin_does_not() -> None:
    work = Work()
    work.may = False
    with pytest.raises(Unavailable):
        await work.on_leash()
    assert work.done == []


async def test_whoever_cancels_it_is_told_so() -> None:
    work = Work()
    running = asyncio.create_task(work.on_leash())
    await asyncio.sleep(0)
    work.may = False
    running.cancel()
    with pytest.raises((asyncio.CancelledError, Unavailable)):
        await running
    assert work.done == ["first", "taken back"]


async def test_its_errors_are_its_own() -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise Invalid("as it was asked for")

    with pytest.raises(Invalid):
        await Leash(fails(), lambda: True, "not any longer")
