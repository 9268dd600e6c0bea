"""Worlds in which no node is ever over its capacity, and no count is exceeded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from mandor.placement.framework.points import Plugin
from tests.scenarios.world import World
from tests.sim.plugged import Making, profiles


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as made:
        made.checks = [made.check_capacity, made.check_count]
        yield made


@pytest.fixture
async def make_world() -> AsyncIterator[Callable[..., Any]]:
    """Makes worlds whose scheduler has these plugins beside the default ones."""
    async with AsyncExitStack() as worlds:

        async def make(
            *plugins: Plugin, making: Making | None = None, first: bool = False, without: str = "", **options: Any
        ) -> World:
            world = World()
            world.checks = [world.check_capacity, world.check_count]
            own = profiles(making or (lambda handle: plugins), first=first, without=without)
            world.scheduler_options = {"profiles": own, **options}
            return await worlds.enter_async_context(world)

        yield make
