"""A few go on in each pass of the event loop, in the order in which they came."""

import asyncio

from mandor.lib.paced_queue import PacedQueue


async def test_so_many_go_on_in_each_pass_and_in_their_order() -> None:
    trickle, gone = PacedQueue(2), list[int]()
    for number in range(5):
        trickle.add(lambda number=number: gone.append(number))  # type: ignore[misc]
    seen = []
    for _ in range(4):
        await asyncio.sleep(0)
        seen.append(list(gone))
    assert seen == [[0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]


async def test_the_timer_stops_without_waiters_and_starts_again() -> None:
    trickle = PacedQueue(1)
    for _ in range(3):
        async with asyncio.timeout(20):
            await asyncio.gather(*(trickle.turn() for _ in range(3)))
        assert len(trickle) == 0


async def test_a_cancelled_waiter_does_not_block_the_others() -> None:
    trickle = PacedQueue(1)
    first, second = (asyncio.ensure_future(trickle.turn()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    async with asyncio.timeout(20):
        await second
    assert first.cancelled()


async def test_one_that_raises_does_not_keep_the_others_from_their_turn() -> None:
    trickle, gone, told = PacedQueue(2), list[int](), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    wrong = ValueError("a bug")

    def fail() -> None:
        raise wrong

    trickle.add(fail)
    for number in range(2):
        trickle.add(lambda number=number: gone.append(number))  # type: ignore[misc]
    async with asyncio.timeout(20):
        while len(trickle):
            await asyncio.sleep(0)
    assert (gone, told) == ([0, 1], [wrong])


async def test_how_many_go_on_may_change_with_each_pass() -> None:
    passes, gone = iter([1, 3]), list[int]()
    trickle = PacedQueue(lambda: next(passes))
    for number in range(4):
        trickle.add(lambda number=number: gone.append(number))  # type: ignore[misc]
    await asyncio.sleep(0)
    assert gone == [0]
    await asyncio.sleep(0)
    assert gone == [0, 1, 2, 3]
