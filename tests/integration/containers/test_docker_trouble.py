"""Bad luck with a real dockerd: shown as what it is, over when it is over, and nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from mandor.engines.base import Unit, UnitPhase
from mandor.engines.docker import DockerEngine
from mandor.errors import EngineDown, NotFound, Unavailable
from tests.components.docker import Docker, RunningDocker
from tests.integration.containers.ship import NewShip, until

NewDocker = Callable[..., Docker]


async def test_a_machine_without_docker_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    async with DockerEngine(tmp_path / "engine", socket=tmp_path / "docker.sock") as engine:
        for verb in (engine.probe, engine.list):
            with pytest.raises(NotFound, match="docker is not installed on this machine"):
                await verb()


async def test_a_docker_that_does_not_run_shows_where_its_socket_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dockerd").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    async with DockerEngine(tmp_path / "engine", socket=tmp_path / "docker.sock") as engine:
        with pytest.raises(EngineDown, match=f"there is no socket {tmp_path}/docker.sock"):
            await engine.probe()


@pytest.mark.real("docker")
@pytest.mark.req("S0-27", "S0-29")
async def test_a_docker_that_hangs_is_reported_and_begins_nothing_twice(
    new_docker: NewDocker, new_ship: NewShip, tmp_path: Path
) -> None:
    docker = new_docker()
    ship = new_ship(docker)
    unit, late = await ship.start(), ship.unit()
    async with DockerEngine(tmp_path / "engine", socket=docker.socket, answer_seconds=0.5) as impatient:
        docker.pause()
        try:
            for verb in (impatient.list, lambda: impatient.start(late, ship.launch())):
                with pytest.raises(EngineDown, match="does not answer"):
                    await verb()
        finally:
            docker.resume()
    await ship.start(unit=late)
    assert {each.unit for each in await ship.engine.list()} == {unit, late}
    assert len(docker.cli("ps", "--all", "--quiet").split()) == 2


@pytest.mark.real("docker")
@pytest.mark.req("S0-27", "S0-29")
async def test_a_docker_that_is_killed_while_it_starts_things_leaves_one_of_each(
    new_docker: NewDocker, new_ship: NewShip
) -> None:
    docker = new_docker("--live-restore")
    ship = new_ship(docker)
    units = [ship.unit() for _ in range(12)]

    async def start(unit: Unit) -> BaseException | None:
        try:
            await ship.start(unit=unit)
        except (EngineDown, Unavailable) as error:
            return error
        return None

    starting = [asyncio.create_task(start(unit)) for unit in units]
    while not await asyncio.to_thread(docker.cli, "ps", "--all", "--quiet"):
        await asyncio.sleep(0.01)
    await asyncio.to_thread(docker.kill)
    told = await asyncio.gather(*starting)
    assert any(told), "it was killed too late to disturb anybody"
    docker.start()
    for unit in units:
        await ship.start(unit=unit)

    async def all_run() -> bool:
        seen = await ship.engine.list()
        return sorted(each.unit for each in seen) == sorted(units)

    await until(all_run, "not one of each")
    assert len(ship.containers()) == len(units)
    await ship.clear()
    assert docker.cli("ps", "--all", "--quiet") == ""


@pytest.mark.real("docker")
async def test_a_docker_that_ends_what_it_ran_reports_how_it_ended(new_docker: NewDocker, new_ship: NewShip) -> None:
    docker = new_docker()
    ship = new_ship(docker)
    unit = await ship.start("trap '' TERM; sleep 3600")
    docker.cli("kill", f"mandor-{unit}")
    docker.stop()
    with pytest.raises(EngineDown):
        await ship.engine.list()
    docker.start()
    seen = await ship.look(unit)
    assert (seen.phase, seen.exit_code, seen.reason) == (UnitPhase.EXITED, 137, "Signalled")


@pytest.mark.real("docker")
async def test_a_full_disk_is_reported_and_tried_again(new_docker: NewDocker, new_ship: NewShip) -> None:
    docker = new_docker()
    docker.stop()
    data = docker.folder / "data"
    docker.enclosure.run(["mount", "-t", "tmpfs", "-o", "size=32m", "none", data])
    docker.start()
    from tests.components.image import busybox_image

    docker.cli("load", data=busybox_image())
    ship = new_ship(docker)
    fill = ["dd", "if=/dev/zero", f"of={data}/fill", "bs=64k", "conv=fsync"]
    docker.enclosure.run(["sh", "-c", f"{' '.join(fill)} 2>/dev/null || true"])
    unit = ship.unit()
    with pytest.raises(Unavailable, match="no space left on device"):
        await ship.start(unit=unit)
    assert await ship.engine.list() == []
    docker.enclosure.run(["rm", data / "fill"])
    await ship.start(unit=unit)
    assert (await ship.look(unit)).phase is UnitPhase.RUNNING


@pytest.mark.real("docker")
@pytest.mark.req("S0-29")
async def test_what_an_agent_made_and_did_not_begin_is_cleared_away(docker: RunningDocker, new_ship: NewShip) -> None:
    ship = new_ship(docker)
    unit = ship.unit()
    labels = {"owner": ship.engine.owner, "uid": unit.uid, "task": unit.task, "attempt": "1"}
    words = [word for name, value in labels.items() for word in ("--label", f"io.mandor.{name}={value}")]
    docker.cli("create", "--name", f"mandor-{unit}", *words, "mandor.test/busybox:1", "true")
    assert await ship.engine.list() == []
    assert not [name for name in ship.containers() if unit.uid in name]


@pytest.mark.real("docker")
@pytest.mark.req("S0-14")
async def test_two_agents_share_a_docker_and_see_only_their_own(docker: RunningDocker, new_ship: NewShip) -> None:
    ours, theirs = new_ship(docker, "ours"), new_ship(docker, "theirs")
    unit, other = await ours.start(), await theirs.start()
    assert [each.unit for each in await ours.engine.list()] == [unit]
    await ours.engine.remove(other)
    assert [each.unit for each in await theirs.engine.list()] == [other]
    assert set(await ours.engine.usage()) == {unit}


@pytest.mark.slow
@pytest.mark.real("docker")
@pytest.mark.req("S0-15")
@pytest.mark.timeout(600)
async def test_a_hundred_start_at_once(new_docker: NewDocker, new_ship: NewShip) -> None:
    docker = new_docker()
    ship = new_ship(docker)
    units = [ship.unit() for _ in range(100)]
    await asyncio.gather(*(ship.start(unit=unit) for unit in units))
    seen = await ship.engine.list()
    assert sorted(each.unit for each in seen) == sorted(units)
    assert {each.phase for each in seen} == {UnitPhase.RUNNING}
    assert len({each.address for each in seen}) == 100
    await asyncio.gather(*(ship.engine.remove(unit) for unit in units))
    assert await ship.engine.list() == []
    assert docker.cli("ps", "--all", "--quiet") == ""
    assert docker.cli("volume", "ls", "--quiet") == ""
