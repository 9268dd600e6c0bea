"""Engines that are closed whatever becomes of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.components.docker import RunningDocker
from tests.integration.containers.ship import NewShip, Ship


@pytest.fixture
async def new_ship(tmp_path: Path) -> AsyncIterator[NewShip]:
    """`new_ship(docker, directory="engine", **settings)`; what it runs is removed at the end of a test that passed."""
    async with AsyncExitStack() as stack:
        ships: list[Ship] = []

        def make(docker: RunningDocker, directory: str = "engine", **settings: Any) -> Ship:
            ship = Ship(docker, tmp_path / directory, **settings)
            ships.append(ship)
            stack.push_async_callback(ship.engine.close)
            return ship

        yield make
        for ship in ships:
            await ship.clear()
