"""Probes of running tasks: unhealthy ones are restarted, and readiness is reported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mandor.model.phase import Phase
from tests.unit.agent.world import World, open_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as opened:
        yield opened


async def listen() -> tuple[asyncio.Server, int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


async def live_on(world: World, seconds: float) -> None:
    """Sockets need real time to answer: give some at every step of the clock."""
    for _ in range(int(seconds)):
        await world.pass_time(1)
        await asyncio.sleep(0.02)


@pytest.mark.req("S2-8", "S2-44", "S2-45")
async def test_a_task_that_fails_its_health_probe_is_restarted_with_that_reason(world: World) -> None:
    health = {"command": ["exit", "1"], "interval": "5s", "failures": 3, "start_period": "20s"}
    await world.apply(health=health, restart={"attempts": 1})
    await world.order()
    await world.until_phase(Phase.RUNNING)
    await world.pass_time(25)
    assert len(world.starts) == 1
    await world.until_phase(Phase.STARTING)
    assert (await world.status()).reason == "Unhealthy"
    await world.until_phase(Phase.RUNNING)
    assert (await world.status()).restarts == 1
    status = await world.until_phase(Phase.FAILED, seconds=120)
    assert status.reason == "CrashLoop"
    assert "Unhealthy" in status.message


async def test_a_healthy_task_is_left_alone(world: World) -> None:
    await world.apply(health={"command": ["exit", "0"], "interval": "1s", "failures": 1})
    await world.order()
    await world.until_phase(Phase.RUNNING)
    await world.pass_time(60)
    assert len(world.starts) == 1


@pytest.mark.req("S2-44")
async def test_readiness_follows_a_real_listener(world: World) -> None:
    server, port = await listen()
    await world.apply(readiness={"tcp": port, "interval": "1s", "failures": 2, "successes": 2})
    await world.order()
    await world.until_phase(Phase.RUNNING)
    assert not (await world.status()).ready
    await live_on(world, 5)
    assert (await world.status()).ready
    server.close()
    await server.wait_closed()
    await live_on(world, 5)
    status = await world.status()
    assert (status.phase, status.ready) == (Phase.RUNNING, False)
    assert len(world.starts) == 1


async def test_probes_start_again_after_an_agent_restart(world: World) -> None:
    server, port = await listen()
    await world.apply(readiness={"tcp": port, "interval": "1s"})
    await world.order()
    await world.until_phase(Phase.RUNNING)
    await live_on(world, 3)
    await world.restart_agent()
    await live_on(world, 3)
    assert (await world.status()).ready
    server.close()
    await server.wait_closed()
    await live_on(world, 6)
    assert not (await world.status()).ready


async def test_other_probes_wait_for_the_startup_probe(world: World) -> None:
    server, port = await listen()
    server.close()
    startup = {"tcp": port, "interval": "1s", "failures": 100}
    await world.apply(startup=startup, health={"command": ["exit", "1"], "interval": "1s", "failures": 1})
    await world.order()
    await world.until_phase(Phase.RUNNING)
    await live_on(world, 20)
    assert not (await world.status()).ready
    assert len(world.starts) == 1, "an unhealthy task is not restarted while it starts"
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", port)
    await live_on(world, 5)
    server.close()
    await world.until_phase(Phase.RUNNING)
    assert len(world.starts) > 1, "now the health probe counts"


@pytest.mark.req("S2-45")
async def test_a_task_that_never_starts_up_is_restarted(world: World) -> None:
    await world.apply(startup={"command": ["exit", "1"], "interval": "5s", "failures": 3})
    await world.order()
    await world.until_phase(Phase.RUNNING)
    await world.until_phase(Phase.STARTING)
    assert (await world.status()).reason == "Unhealthy"


async def test_a_task_without_readiness_probe_is_ready_after_its_startup_probe(world: World) -> None:
    await world.apply(startup={"command": ["exit", "0"], "interval": "5s", "successes": 2})
    await world.order()
    await world.until_phase(Phase.RUNNING)
    assert not (await world.status()).ready
    await world.pass_time(30)
    assert (await world.status()).ready
    assert len(world.starts) == 1
