"""Turns at starting something."""

import asyncio

import pytest

from mandor.agent.turns import Turns


async def test_so_many_at_a_time_and_the_next_when_one_is_done() -> None:
    turns, begun = Turns(1), []

    async def start(name: str, go_on: asyncio.Event) -> None:
        async with turns.take(60):
            begun.append(name)
            await go_on.wait()

    events = asyncio.Event(), asyncio.Event()
    tasks = [asyncio.ensure_future(start(name, event)) for name, event in zip("ab", events, strict=True)]
    await asyncio.sleep(0)
    assert (begun, turns.idle.is_set()) == (["a"], False)
    events[0].set()
    await tasks[0]
    assert turns.idle.is_set() is False
    events[1].set()
    await tasks[1]
    assert (begun, turns.idle.is_set()) == (["a", "b"], True)


async def test_one_that_takes_long_gives_its_turn_to_others_and_goes_on() -> None:
    turns = Turns(1)
    async with asyncio.timeout(20), turns.take(0.001):
        async with turns.take(60):
            assert not turns.idle.is_set()
        assert turns.idle.is_set()
    # It had one turn to give back, not two.
    async with asyncio.timeout(20), turns.take(60):
        assert not await _gets_a_turn(turns)
    assert turns.idle.is_set()


async def test_who_gives_up_waiting_for_a_turn_has_had_none() -> None:
    turns = Turns(1)
    async with turns.take(60):
        assert not await _gets_a_turn(turns)
    assert await _gets_a_turn(turns)
    assert turns.idle.is_set()


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
async def test_a_turn_ends_with_an_error_too(error: type[BaseException]) -> None:
    turns = Turns(1)
    with pytest.raises(error):
        async with turns.take(60):
            raise error
    assert await _gets_a_turn(turns)


async def _gets_a_turn(turns: Turns) -> bool:
    async def take() -> None:
        async with turns.take(60):
            pass

    taking = asyncio.ensure_future(take())
    for _ in range(3):
        await asyncio.sleep(0)
    done = taking.done()
    taking.cancel()
    await asyncio.gather(taking, return_exceptions=True)
    return done
