"""Background tasks that are never forgotten."""

import asyncio

import pytest

from mandor.lib.tasks import Background


async def test_leaving_the_block_ends_what_runs_for_ever() -> None:
    async with Background() as background:
        task = background.start(asyncio.sleep(3600))
    assert task.cancelled()


async def test_an_error_in_one_task_ends_the_block() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    others: list[asyncio.Task[None]] = []

    async def block() -> None:
        async with Background() as background:
            others.append(background.start(asyncio.sleep(3600)))
            background.start(fail())
            await asyncio.sleep(3600)

    with pytest.raises(ExceptionGroup) as caught:
        await block()
    assert caught.group_contains(ValueError, match="broken")
    assert others[0].cancelled()


async def test_wait_returns_when_every_task_has_ended() -> None:
    done: list[int] = []

    async def work(n: int) -> None:
        await asyncio.sleep(0)
        done.append(n)

    async with Background() as background:
        for n in range(3):
            background.start(work(n))
        await background.wait()
        assert sorted(done) == [0, 1, 2]
