"""What a launch becomes in a real container: command, files, user, ports, network, limits, logs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mandor.engines.base import Mount, UnitPhase
from mandor.model.record import FIRST_NAMESPACE_USER
from mandor.model.task import File, Security
from tests.components.docker import RunningDocker
from tests.components.image import busybox_image
from tests.components.ports import free_port
from tests.integration.containers.ship import NewShip, Ship, until

pytestmark = pytest.mark.real("docker")

SERVES = "mkdir -p /www; echo {0} > /www/index.html; trap 'exit 0' TERM; httpd -f -p {1} -h /www & wait"


@pytest.fixture
def ship(docker: RunningDocker, new_ship: NewShip) -> Ship:
    return new_ship(docker)


async def test_an_images_own_command_runs_unless_the_task_names_another(ship: Ship) -> None:
    own = "mandor.test/echo:1"
    ship.docker.cli(
        "load", data=busybox_image(own, config={"Entrypoint": ["echo", "own"], "Cmd": ["words"], "WorkingDir": "/var"})
    )
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "own words"),
        ({"args": ("other",)}, "own other"),
        ({"command": ("echo", "mine")}, "mine"),
        ({"command": ("echo", "mine"), "args": ("too",)}, "mine too"),
        ({"command": ("pwd",)}, "/var"),
    ]
    for parts, said in cases:
        unit = ship.unit()
        await ship.engine.start(unit, ship.launch(**({"image": own, "command": ()} | parts)))
        assert await ship.output(unit) == [said]


async def test_files_belong_to_the_user_of_the_task(ship: Ship) -> None:
    files = (
        File(path="/etc/app/deep/app.ini", content="text", mode="0640"),
        File(path="key", content="k" * 100_000, mode="0600"),
    )
    show = "cat /etc/app/deep/app.ini; echo; stat -c '%u %g %a' /etc/app/deep/app.ini; wc -c < key; pwd"
    for user, whose in (("worker", "1234 1235"), ("4321:99", "4321 99")):
        unit = await ship.start(show, user=user, files=files, working_dir="/tmp")
        assert await ship.output(unit) == ["text", f"{whose} 640", "100000", "/tmp"]


@pytest.mark.req("S2-37")
async def test_a_new_volume_gets_owner_and_mode_of_the_image(ship: Ship, tmp_path: Path) -> None:
    own, given = tmp_path / "own", tmp_path / "given"
    for folder, user, owner in ((own, None, 1234), (given, FIRST_NAMESPACE_USER, FIRST_NAMESPACE_USER)):
        folder.mkdir()
        mounts = (Mount(path="/share", source=str(folder), name="data", seed=True),)
        unit = await ship.start("cat /share/text; touch /share/new", mounts=mounts, user=user)
        assert await ship.output(unit) == ["from the image"]
        assert (folder.stat().st_uid, folder.stat().st_mode & 0o777) == (owner, 0o750)
        assert (folder / "text").stat().st_uid == (0 if user is None else user)
    assert (given / "new").exists(), "the user that the namespace gives owns the volume"
    assert "seed" not in ship.docker.cli("volume", "ls", "--quiet") + ship.docker.cli("ps", "--all")


async def test_a_volume_at_a_path_that_the_image_lacks_stays_empty(ship: Ship, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    mounts = (Mount(path="/nowhere/deep", source=str(empty), name="data", seed=True),)
    unit = await ship.start("ls -A /nowhere/deep; echo end", mounts=mounts)
    assert await ship.output(unit) == ["end"]


@pytest.mark.req("S2-6", "S2-33")
async def test_an_instance_has_an_address_where_others_reach_it(ship: Ship) -> None:
    first = await ship.start(SERVES.format("hello", 8080))
    address = (await ship.look(first)).address
    assert address
    second = await ship.start(f"until wget -qO- http://{address}:8080/; do sleep 0.1; done")
    assert (await ship.output(second))[-1] == "hello"


@pytest.mark.req("S2-7")
async def test_a_port_of_the_node_leads_to_the_task(ship: Ship) -> None:
    port = free_port()
    await ship.start(SERVES.format("from outside", 8080), ports={"http": 8080}, host_ports={"http": port})

    async def answers() -> bool:
        return await asyncio.to_thread(ship.docker.fetch, "127.0.0.1", port) == "from outside"

    await until(answers, f"nobody answers at port {port}")


async def test_a_port_that_is_taken_is_reported_and_free_again_later(ship: Ship) -> None:
    from mandor.errors import Unavailable

    port = free_port()
    parts: dict[str, Any] = {"ports": {"http": 8080}, "host_ports": {"http": port}}
    first = await ship.start(SERVES.format("first", 8080), **parts)
    second = ship.unit()
    with pytest.raises(Unavailable, match=r"already (allocated|in use)"):
        await ship.start(SERVES.format("second", 8080), second, **parts)
    await ship.engine.remove(first)
    await ship.start(SERVES.format("second", 8080), second, **parts)
    assert [each.unit for each in await ship.engine.list()] == [second]


@pytest.mark.req("S2-6")
async def test_tasks_of_one_instance_share_a_network(ship: Ship) -> None:
    port = free_port()
    shared: dict[str, Any] = {
        "sandbox": True,
        "name": "shop-0/app",
        "ports": {"http": 8080},
        "host_ports": {"http": port},
    }
    app = await ship.start(SERVES.format("next door", 8080), **shared)
    asks = ship.unit("sidecar", app.uid)
    await ship.start("until wget -qO- http://127.0.0.1:8080/; do sleep 0.1; done; hostname", asks, **shared)
    assert (await ship.output(asks))[-2:] == ["next door", "shop-0"]
    assert await asyncio.to_thread(ship.docker.fetch, "127.0.0.1", port) == "next door"
    assert (await ship.look(app)).address

    await ship.engine.remove(asks)
    again = ship.unit("sidecar", app.uid)._replace(attempt=2)
    await ship.start("wget -qO- http://127.0.0.1:8080/", again, **shared)
    assert await ship.output(again) == ["next door"]
    for unit in (app, again):
        await ship.engine.remove(unit)
    assert not [name for name in ship.containers() if app.uid in name]


@pytest.mark.req("S2-26")
async def test_network_and_disk_are_counted_too(ship: Ship) -> None:
    server = await ship.start(SERVES.format("x", 8080))
    address = (await ship.look(server)).address
    await ship.start(f"while :; do wget -qO- http://{address}:8080/ >/dev/null; sleep 0.1; done")

    async def counted() -> bool:
        used = (await ship.engine.usage())[server]
        return used.network_in_bytes > 500 and used.network_out_bytes > 500 and used.memory_bytes > 0

    await until(counted, "nothing was counted")


async def test_lines_of_any_length_stay_whole(ship: Ship) -> None:
    long = 50_000
    unit = await ship.start(f"head -c {long} /dev/zero | tr '\\0' x; echo; printf 'no end'")
    lines = await ship.output(unit)
    assert [len(line) for line in lines] == [long, 6]


async def test_options_of_the_engine_reach_the_container(ship: Ship) -> None:
    options = {"read_only": True, "cap_drop": ["ALL"], "shm_size": "8Mi", "hostname": "mine", "network": "none"}
    show = "touch /x 2>&1; grep CapEff /proc/self/status; df -m /dev/shm | tail -1 | awk '{print $2}'; "
    show += "hostname; ls /sys/class/net"
    unit = await ship.start(show, options=options)
    said = await ship.output(unit)
    assert "Read-only file system" in said[0]
    assert said[1].endswith("0000000000000000")
    assert said[2:] == ["8", "mine", "lo"]


async def test_walls_stand_as_the_task_shows(ship: Ship) -> None:
    show = "touch /x 2>&1; grep CapEff /proc/self/status; grep NoNewPrivs /proc/self/status"
    walls = Security(read_only_root=True, cap_drop=("ALL",), cap_add=("NET_RAW",), no_new_privileges=True)
    unit = await ship.start(show, security=walls)
    said = await ship.output(unit)
    assert "Read-only file system" in said[0]
    assert int(said[1].split()[-1], 16) == 1 << 13, "CAP_NET_RAW, and nothing else"
    assert said[2].split() == ["NoNewPrivs:", "1"]


async def test_an_unknown_option_is_reported(ship: Ship) -> None:
    unit = await ship.start(options={"reed_only": True})
    ended = await ship.ended(unit)
    assert (ended.phase, ended.reason) == (UnitPhase.EXITED, "StartFailed")
    assert "options.docker" in ended.message
    assert "reed_only" in ended.message


async def test_what_images_are_there_is_known_with_their_sizes(ship: Ship) -> None:
    found = await ship.engine.images()
    assert found["mandor.test/busybox:1"] > 1_000_000


async def test_a_command_beside_a_task_is_no_news(ship: Ship) -> None:
    unit, ticks = await ship.start(), 0

    async def listen() -> None:
        nonlocal ticks
        async for _ in ship.engine.events():
            ticks += 1

    listening = asyncio.create_task(listen())

    async def quiet() -> bool:
        """Return whether the events of the start, which a new listener gets again, are over."""
        seen = ticks
        await asyncio.sleep(0.5)
        return ticks == seen > 0

    await until(quiet, "the start sends no event, or events without end")
    before = ticks
    for _ in range(3):
        execution = await ship.engine.exec(unit, ["true"])
        assert await execution.wait() == 0
        await execution.close()
    await asyncio.sleep(0.5)
    assert ticks == before
    await ship.engine.stop(unit, grace_seconds=0)

    async def told() -> bool:
        return ticks > before

    await until(told, "the end is not told")
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)


async def test_files_are_put_where_nothing_can_be_written(ship: Ship) -> None:
    files = (File(path="/etc/x/a.conf", content="hi\n"), File(path="/etc/x/b.conf", content="there\n", mode="0400"))
    unit = await ship.start("cat /etc/x/*; touch /etc/x/c 2>&1", files=files, security=Security(read_only_root=True))
    first, second, refused = await ship.output(unit)
    assert (first, second) == ("hi", "there")
    assert "Read-only file system" in refused


async def test_a_command_that_does_not_read_its_input_shows_what_it_has_to_show(ship: Ship) -> None:
    execution = await ship.engine.exec(await ship.start(), ("echo", "hello"))
    feeding = asyncio.create_task(execution.write(bytes(8 << 20)))
    async with asyncio.timeout(60):
        assert await execution.read() == ("stdout", b"hello\n")
        assert await execution.read() is None
        assert await execution.wait() == 0
        await execution.close()
        await feeding
