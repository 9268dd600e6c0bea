"""Images from a registry: a small one of the test's own, on loopback inside the enclosure."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mandor.engines.base import UnitPhase
from mandor.errors import Unavailable
from tests.components.docker import Docker
from tests.components.image import busybox_layer
from tests.components.registry import ADDRESS, Registry, start_registry, write_image
from tests.integration.containers.ship import NewShip

pytestmark = pytest.mark.real("docker")

NewRegistry = Callable[..., Registry]


@pytest.fixture
def own_docker(new_docker: Callable[..., Docker]) -> Docker:
    return new_docker()


@pytest.fixture
def new_registry(own_docker: Docker, tmp_path: Path) -> Iterator[NewRegistry]:
    running: list[Registry] = []
    write_image(tmp_path / "registry", busybox_layer())

    def start(*, login: str = "", pause: float = 0.0) -> Registry:
        command = own_docker.enclosure.command([])
        running.append(start_registry(command, tmp_path / "registry", login=login, pause=pause))
        return running[-1]

    yield start
    for each in running:
        each.close()


async def test_an_image_is_pulled_once_for_many_instances(
    own_docker: Docker, new_registry: NewRegistry, new_ship: NewShip
) -> None:
    registry = new_registry()
    ship = new_ship(own_docker)
    units = [ship.unit() for _ in range(8)]
    await asyncio.gather(*(ship.start(unit=unit, image=registry.image) for unit in units))
    assert {each.phase for each in await ship.engine.list()} == {UnitPhase.RUNNING}
    once = registry.asked
    assert 0 < once <= 2
    await ship.start(image=registry.image)
    assert registry.asked == once
    await ship.start(image=registry.image, options={"pull": "always"})
    assert registry.asked > once


async def test_how_far_a_pull_is_can_be_seen(own_docker: Docker, new_registry: NewRegistry, new_ship: NewShip) -> None:
    registry = new_registry(pause=0.1)
    ship = new_ship(own_docker)
    unit = ship.unit()
    starting = asyncio.create_task(ship.start(unit=unit, image=registry.image))
    seen: set[str] = set()
    while not starting.done():
        for each in await ship.engine.list():
            if each.phase is UnitPhase.STARTING:
                seen.add(each.message)
        await asyncio.sleep(0.05)
    await starting
    assert any(f"pulling {registry.image}: " in words and "%" in words for words in seen), seen


async def test_a_registry_gets_the_login_of_the_node(
    own_docker: Docker, new_registry: NewRegistry, tmp_path: Path, new_ship: NewShip
) -> None:
    registry = new_registry(login="me:hush")
    file = tmp_path / "config.json"
    ship = new_ship(own_docker, credentials=[file])
    refused = await ship.start(image=registry.image)
    ended = await ship.ended(refused)
    assert ended.reason == "StartFailed"
    assert "the login of the node" in ended.message
    assert "hush" not in ended.message

    login = base64.b64encode(b"me:hush").decode()
    file.write_text(json.dumps({"auths": {ADDRESS: {"auth": login}}}))
    unit = await ship.start(image=registry.image)
    assert (await ship.look(unit)).phase is UnitPhase.RUNNING


async def test_an_image_that_its_registry_does_not_have_is_reported(
    own_docker: Docker, new_registry: NewRegistry, new_ship: NewShip
) -> None:
    new_registry()
    ship = new_ship(own_docker)
    unit = await ship.start(image=f"{ADDRESS}/test/busybox:99")
    ended = await ship.ended(unit)
    assert ended.reason == "StartFailed"
    assert f"{ADDRESS}/test/busybox:99 is not on this node and cannot be pulled" in ended.message


async def test_a_registry_that_cannot_be_reached_is_tried_again(
    own_docker: Docker, new_registry: NewRegistry, new_ship: NewShip
) -> None:
    ship = new_ship(own_docker)
    unit = ship.unit()
    image = f"{ADDRESS}/test/busybox:1"
    with pytest.raises(Unavailable, match="cannot be pulled"):
        await ship.start(unit=unit, image=image)
    assert await ship.engine.list() == []
    new_registry()
    await ship.start(unit=unit, image=image)
    assert (await ship.look(unit)).phase is UnitPhase.RUNNING


@pytest.mark.req("S3-9")
async def test_an_image_that_was_pulled_is_cleaned_away_after_its_last_container_and_pulled_again(
    own_docker: Docker, new_registry: NewRegistry, new_ship: NewShip
) -> None:
    registry = new_registry()
    ship = new_ship(own_docker)
    unit = await ship.start(image=registry.image)
    own_docker.cli("tag", registry.image, "somebody/else:1")
    assert await ship.engine.clean_image(()) == "", "a container is made of it, whatever other names it has"
    await ship.engine.remove(unit)
    again = new_ship(own_docker)  # an agent that has just started
    assert await again.engine.clean_image((registry.image,)) == ""
    assert await again.engine.clean_image(()) == registry.image
    assert registry.image not in await again.engine.images()
    assert "somebody/else:1" in await again.engine.images(), "that is not ours"
    assert Path(await again.engine.storage()).is_dir()
    await again.start(image=registry.image)
