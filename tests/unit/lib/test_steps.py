"""Work in steps: whoever does it gives way in time, and it comes to the same."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from mandor.lib.steps import PIECE, TURN, Steps, at_once, chosen, ordered, pieces
from mandor.lib.turns import in_turns


def work(looks: list[int]) -> Steps[str]:
    yield from looks
    return "done"


async def test_others_have_their_turn_after_so_many_looks_and_not_before() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    assert await in_turns(work([TURN - 1])) == "done"
    assert turns == 0
    assert await in_turns(work([TURN // 2] * 10)) == "done"
    counting.cancel()
    assert turns == 5


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 20))
def test_pieces_are_all_of_it_in_order(items: list[int], size: int) -> None:
    found = list(pieces(items, size))
    assert [each for piece in found for each in piece] == items
    assert all(0 < len(piece) <= size for piece in found)


def test_what_is_chosen_or_ordered_in_steps_is_what_it_would_be_at_once() -> None:
    items = [(number * 7919) % 5000 for number in range(3 * PIECE + 1)]
    assert at_once(chosen(items, lambda piece: [each for each in piece if each % 3])) == [x for x in items if x % 3]
    assert at_once(ordered(items, lambda each: -each // 10)) == sorted(items, key=lambda each: -each // 10)
    assert at_once(ordered([], lambda each: each)) == []
