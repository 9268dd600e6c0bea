"""Runs work in steps on the event loop, with other tasks in between; the steps themselves are pure (`lib.steps`)."""

import asyncio
from typing import TypeVar

from mandor.lib.steps import TURN, Steps

R = TypeVar("R")


async def in_turns(steps: Steps[R]) -> R:
    """Run all steps and return the result; other tasks run after every `TURN` units of work."""
    done = 0
    while True:
        try:
            done += next(steps)
        except StopIteration as end:
            result: R = end.value
            return result
        if done >= TURN:
            done = 0
            await asyncio.sleep(0)
