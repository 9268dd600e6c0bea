"""Background tasks that are never forgotten."""

import asyncio

import pytest

from mandor.lib.tasks import Background, side_by_side


async def test_leaving_the_block_ends_what_runs_for_ever() -> None:
    async with Background() as background:
        task = background.start(asyncio.Event().wait())
    assert task.cancelled()


async def test_an_error_in_one_task_ends_the_block() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    others: list[asyncio.Task[None]] = []

    async def block() -> None:
        async with Background() as background:
            others.append(background.start(asyncio.Event().wait()))
            background.start(fail())
            await asyncio.Event().wait()

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


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_what_goes_side_by_side_has_its_results_in_order(count: int) -> None:
    async def work(n: int) -> int:
        await asyncio.sleep(0)
        return n

    assert await side_by_side([work(n) for n in range(count)]) == list(range(count))


async def test_one_alone_goes_without_a_task_and_several_do_not_wait_for_each_other() -> None:
    async def who() -> object:
        return asyncio.current_task()

    assert await side_by_side([who()]) == [asyncio.current_task()]
    met = asyncio.Barrier(2)
    async with asyncio.timeout(5):
        await side_by_side([met.wait(), met.wait()])
