"""The incus engine with a real incusd: machines, restarts, ports, HTTPS, and the untrusted shared folder."""

from __future__ import annotations

import asyncio
import io
import tarfile
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from msgspec.structs import replace

from mandor.client.image_file import open_image
from mandor.engines.base import Launch, LogLine, Mount, Observed, Unit, UnitPhase
from mandor.engines.incus import IncusEngine
from mandor.engines.incus.folder import UnitFolder
from mandor.engines.incus.marks import instance_name
from mandor.errors import EngineDown
from mandor.model.image_reference import pinned
from mandor.model.node import NO_COMMANDS
from mandor.model.task import File
from tests.components.enclosure import Enclosure
from tests.components.incus import BRIDGE, IMAGE, Incus
from tests.integration.engines.conftest import no_process_has

PATIENCE_SECONDS = 60.0


@pytest.fixture
async def engine(incus: Incus, tmp_path: Path) -> AsyncIterator[IncusEngine]:
    async with IncusEngine(tmp_path / "engine", url=incus.url) as engine:
        yield engine
        for observed in await engine.list():
            await engine.remove(observed.unit)


def unit() -> Unit:
    return Unit(uuid.uuid4().hex, "main", 0)


def machine(**parts: Any) -> Launch:
    return Launch(**{"name": "box-0", "image": IMAGE} | parts)


def shell(script: str, **parts: Any) -> Launch:
    return machine(command=("sh", "-c"), args=(script,), **parts)


async def until(engine: IncusEngine, which: Unit, test: Callable[[Observed], bool]) -> Observed:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            with suppress(EngineDown):
                for observed in await engine.list():
                    if observed.unit == which and test(observed):
                        return observed
            await asyncio.sleep(0.1)


def running(observed: Observed) -> bool:
    return observed.phase is UnitPhase.RUNNING


def over(observed: Observed) -> bool:
    return observed.phase is UnitPhase.EXITED


async def lines(engine: IncusEngine, which: Unit) -> list[LogLine]:
    return [line async for line in engine.logs(which)]


@pytest.mark.req("S0-6", "S2-25")
async def test_a_task_without_a_command_is_the_machine_itself(engine: IncusEngine, incus: Incus) -> None:
    box = unit()
    boot = File(path="/etc/boot", content="#!/bin/sh\necho $GREETING > /etc/greeting\n", mode="0755")
    await engine.start(box, machine(files=(boot,), env={"GREETING": "hello"}))
    seen = await until(engine, box, lambda each: running(each) and bool(each.address))
    assert seen.address.startswith("10.78.0.")
    name = instance_name(box)
    assert incus.cli("exec", name, "--", "sh", "-c", "until cat /etc/greeting; do sleep 0.1; done") == "hello"
    assert b"booting" in [line.text for line in await lines(engine, box)]
    usage = (await engine.usage())[box]
    assert usage.memory_bytes > 0
    await engine.stop(box, grace_seconds=0)
    ended = await until(engine, box, over)
    assert (ended.exit_code, ended.reason) == (0, "Completed")
    await engine.start(box, machine())
    assert (await until(engine, box, over)).phase is UnitPhase.EXITED


@pytest.mark.req("S0-6")
async def test_profiles_devices_and_configuration_keys_are_passed_to_incus(engine: IncusEngine, incus: Incus) -> None:
    box = unit()
    options = {
        "config": {"security.nesting": True, "limits.cpu.priority": 5},
        "devices": {"scratch": {"type": "disk", "source": "/usr/share", "path": "/scratch", "readonly": True}},
        "user_data": "#cloud-config\npackages: [htop]\n",
    }
    await engine.start(box, machine(options=options, cpu_milli=500, memory_bytes=64 << 20, processes=99))
    await until(engine, box, running)
    shown = incus.cli("config", "show", instance_name(box))
    for expected in (
        'security.nesting: "true"',
        'limits.cpu.priority: "5"',
        "limits.cpu.allowance: 50ms/100ms",
        "limits.memory: 67108864B",
        'limits.processes: "99"',
        "packages: [htop]",
        "path: /scratch",
    ):
        assert expected in shown


@pytest.mark.req("S0-6")
async def test_later_profiles_override_earlier_ones_and_the_task_overrides_profiles(
    engine: IncusEngine, incus: Incus
) -> None:
    device = ("device", "add")
    incus.cli("profile", "create", "small")
    incus.cli("profile", "create", "shared")
    try:
        incus.cli("profile", "set", "small", "limits.processes=50", "limits.cpu.priority=1", "user.from=small")
        incus.cli("profile", "set", "shared", "limits.cpu.priority=7", "user.from=shared")
        incus.cli("profile", *device, "shared", "doc", "disk", "source=/usr/share", "path=/doc")
        box = unit()
        options = {"profiles": ["default", "small", "shared"], "config": {"user.from": "task"}}
        await engine.start(box, machine(options=options))
        await until(engine, box, running)
        shown = incus.cli("config", "show", "--expanded", instance_name(box))
        for expected in ('limits.processes: "50"', 'limits.cpu.priority: "7"', "user.from: task", "path: /doc"):
            assert expected in shown
        assert incus.cli("exec", instance_name(box), "--", "ls", "/doc")
        await engine.remove(box)
    finally:
        incus.cli("profile", "delete", "small")
        incus.cli("profile", "delete", "shared")


@pytest.mark.req("S0-6")
async def test_images_are_found_by_alias_by_fingerprint_and_on_a_server(incus: Incus, tmp_path: Path) -> None:
    """The image server is the same incusd, used from a project without images."""
    incus.cli("config", "set", "core.https_address", "127.0.0.1:18444")
    incus.cli("image", "show", IMAGE)
    fingerprint = incus.cli("image", "list", IMAGE, "--format", "csv", "--columns", "F")
    incus.cli("project", "create", "apart", "-c", "features.images=true", "-c", "features.profiles=false")
    incus.cli("query", "-X", "PATCH", "-d", '{"public": true}', f"/1.0/images/{fingerprint}")
    remote = {
        "server": "https://127.0.0.1:18444",
        "protocol": "incus",
        "server_certificate": (incus.folder / "server.crt").read_text(),
    }
    try:
        async with IncusEngine(tmp_path / "apart", url=incus.url, project="apart") as apart:
            assert await apart.images() == {}
            far, near = unit(), unit()
            await apart.start(far, machine(options=remote))
            assert (await until(apart, far, running)).digest == f"sha256:{fingerprint}"
            await apart.start(near, machine(image=fingerprint))  # It was pulled.
            assert (await until(apart, near, running)).digest == ""
            for each in (far, near):
                await apart.remove(each)
            # A release that has pinned the image starts it by its fingerprint, whatever the alias is by then.
            moved = unit()
            await apart.start(moved, machine(options=remote, image=pinned("moved", f"sha256:{fingerprint}")))
            assert (await until(apart, moved, running)).digest == f"sha256:{fingerprint}"
            await apart.remove(moved)
            untrusted = unit()
            await apart.start(untrusted, machine(options=remote | {"server_certificate": None}, image="other"))
            assert "certificate" in (await until(apart, untrusted, over)).message
            await apart.remove(untrusted)
    finally:
        incus.cli("image", "delete", fingerprint, "--project", "apart")
        incus.cli("project", "delete", "apart")
        incus.cli("config", "unset", "core.https_address")


@pytest.mark.req("S0-6")
async def test_the_image_of_a_virtual_machine_runs_only_as_a_virtual_machine(
    engine: IncusEngine, incus: Incus, tmp_path: Path
) -> None:
    metadata, disk = tmp_path / "metadata.tar", tmp_path / "disk.qcow2"
    with tarfile.open(metadata, "w") as tar:
        about = b"architecture: x86_64\ncreation_date: 1700000000\nproperties: {os: none}\n"
        entry = tarfile.TarInfo("metadata.yaml")
        entry.size = len(about)
        tar.addfile(entry, io.BytesIO(about))
    disk.write_bytes(b"QFI\xfb\0\0\0\3" + bytes(1 << 20))
    source = open_image([metadata, disk], names=["a-machine"])

    async def content() -> AsyncIterator[bytes]:
        for piece in source.read():
            yield piece

    assert await engine.load_image(source.image, content())
    try:
        shown = incus.cli("image", "list", "a-machine", "--format", "csv", "--columns", "tF")
        assert shown == f"VIRTUAL-MACHINE,{source.image.id}"
        box = unit()
        await engine.start(box, machine(image="a-machine"))
        assert "doesn't match instance type" in (await until(engine, box, over)).message
        if "machines" not in (await engine.probe()).extras:
            real = unit()
            await engine.start(real, machine(image="a-machine", options={"type": "virtual-machine"}))
            assert "virtual-machine" in (await until(engine, real, over)).message
    finally:
        incus.cli("image", "delete", "a-machine")


@pytest.mark.req("S0-6", "S0-27", "S0-29")
@pytest.mark.parametrize("seconds", [0.02, 0.1, 0.3, 0.6])
async def test_a_new_agent_waits_for_an_operation_of_the_earlier_one(
    incus: Incus, tmp_path: Path, seconds: float
) -> None:
    """Incus completes an operation without an agent; the next agent continues with the result."""
    box, launch = unit(), machine(options={"config": {"user.word": "once"}})
    async with IncusEngine(tmp_path / "engine", url=incus.url) as engine:
        starting = asyncio.create_task(engine.start(box, launch))
        await asyncio.sleep(seconds)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
    async with IncusEngine(tmp_path / "engine", url=incus.url) as again:
        await again.start(box, launch)
        await until(again, box, running)
        listed = incus.cli("list", "user.word=once", "--format", "csv", "--columns", "ns").splitlines()
        assert listed == [f"{instance_name(box)},RUNNING"]
        await again.remove(box)


@pytest.mark.req("S2-7")
async def test_a_published_port_reaches_the_task(engine: IncusEngine, incus: Incus) -> None:
    web = unit()
    serves = "mkdir -p /www; echo inside > /www/index.html; exec httpd -f -p 8080 -h /www"
    await engine.start(web, shell(serves, ports={"http": 8080}, host_ports={"http": 18081}))
    await until(engine, web, running)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (page := await asyncio.to_thread(incus.enclosure.fetch, BRIDGE, 18081)) != "inside":
            assert page == ""
            await asyncio.sleep(0.1)


@pytest.mark.req("S0-29")
async def test_a_command_survives_a_killed_incusd_and_its_end_is_reported(engine: IncusEngine, incus: Incus) -> None:
    stays, ends = unit(), unit()
    await engine.start(stays, shell("trap 'exit 0' TERM; n=0; while :; do echo $n; n=$((n+1)); sleep 0.2; done"))
    await engine.start(ends, shell("echo begun; sleep 2; echo done; exit 5"))
    before = await until(engine, stays, running)
    await until(engine, ends, running)
    incus.kill()
    with pytest.raises(EngineDown):
        await engine.list()
    await no_process_has("sleep 2; echo done; exit 5")
    await asyncio.to_thread(incus.start)
    ended = await until(engine, ends, over)
    assert (ended.exit_code, ended.reason) == (5, "Error")
    assert [line.text for line in await lines(engine, ends)] == [b"begun", b"done"]
    again = await until(engine, stays, running)
    assert (again.started_at, again.unit) == (before.started_at, before.unit)
    await engine.start(stays, shell("exit 1"))
    await engine.stop(stays, grace_seconds=PATIENCE_SECONDS)
    assert (await until(engine, stays, over)).exit_code == 0
    said = [line.text for line in await lines(engine, stays)]
    assert said == [str(number).encode() for number in range(len(said))]


async def test_an_incusd_that_hangs_is_down_and_not_waited_for(incus: Incus, tmp_path: Path) -> None:
    async with IncusEngine(tmp_path / "engine", url=incus.url, answer_seconds=0.5) as engine:
        incus.pause()
        try:
            with pytest.raises(EngineDown, match="does not answer"):
                await engine.list()
        finally:
            incus.resume()


async def test_an_interrupted_start_is_continued(engine: IncusEngine, incus: Incus, tmp_path: Path) -> None:
    """The agent died after the container was created and before its command started."""
    half = unit()
    task = asyncio.create_task(engine.start(half, shell("echo here; exec sleep 3600")))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while instance_name(half) not in incus.cli("list", "--format", "csv", "--columns", "n"):
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    async with IncusEngine(tmp_path / "engine", url=incus.url) as again:
        await again.start(half, shell("echo here; exec sleep 3600"))
        await until(again, half, running)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while [line.text for line in await lines(again, half)] != [b"here"]:
                await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("launch", "said"),
    [
        (machine(image="no-such-image"), "no image no-such-image"),
        (machine(image=None), "the task has no `image`"),
        (machine(image="nowhere:debian/13"), "an unknown server 'nowhere'"),
        (machine(options={"typ": "container"}), "options.incus"),
        (shell("exit 0", options={"type": "virtual-machine"}), "only in containers"),
        (shell("exit 0", user="nobody"), "must be numbers"),
        (machine(options={"profiles": ["no-such-profile"]}), "no-such-profile"),
        (machine(options={"devices": {"gpu": {"type": "teapot"}}}), "teapot"),
        (machine(options={"config": {"limits.teapot": "1"}}), "limits.teapot"),
        (machine(options={"type": "virtual-machine"}), 'doesn\'t match instance type "virtual-machine"'),
    ],
)
async def test_a_unit_that_can_never_start_has_a_reason_and_leaves_nothing(
    engine: IncusEngine, incus: Incus, launch: Launch, said: str
) -> None:
    wrong = unit()
    await engine.start(wrong, launch)
    ended = await until(engine, wrong, over)
    assert ended.reason == "StartFailed"
    assert said in ended.message
    assert instance_name(wrong) not in incus.cli("list", "--format", "csv", "--columns", "n")


async def test_links_that_a_container_creates_in_the_shared_folder_are_not_followed(
    engine: IncusEngine, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the node\n")
    bad = unit()
    script = f"rm /.mandor/out /.mandor/err; ln -s {secret} /.mandor/out; mkfifo /.mandor/err; exec sleep 3600"
    await engine.start(bad, shell(script))
    await until(engine, bad, running)
    folder = UnitFolder(tmp_path / "engine" / "units" / instance_name(bad))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (folder.io / "out").is_symlink():
            await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)
    assert await lines(engine, bad) == []
    assert secret.read_text() == "of the node\n"
    await engine.stop(bad, grace_seconds=0)


@asynccontextmanager
async def relayed(enclosure: Enclosure, port: int) -> AsyncIterator[int]:
    """Return a port of the node that is forwarded to a port of the instance."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made = await asyncio.to_thread(enclosure.connect, "127.0.0.1", port)
        inside, outside = await asyncio.open_connection(sock=made)
        await asyncio.gather(copy(reader, outside), copy(inside, writer))

    server = await asyncio.start_server(serve, "0.0.0.0", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.mark.req("S0-6")
async def test_it_is_reached_over_https_with_a_certificate_it_trusts(incus: Incus, tmp_path: Path) -> None:
    issued = trustme.CA().issue_cert("agent@mandor.test")
    certificate, key = tmp_path / "agent.pem", tmp_path / "agent.key"
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    incus.cli("config", "set", "core.https_address", "127.0.0.1:18443")
    async with relayed(incus.enclosure, 18443) as port:
        settings: dict[str, Any] = {
            "url": f"https://127.0.0.1:{port}",
            "certificate": certificate,
            "key": key,
            "server_certificate": incus.folder / "server.crt",
        }
        async with IncusEngine(tmp_path / "engine", **settings) as engine:
            with pytest.raises(EngineDown, match="does not trust"):
                await engine.probe()
            incus.cli("config", "trust", "add-certificate", str(certificate))
            assert (await engine.probe()).version
            box = unit()
            await engine.start(box, machine())
            await until(engine, box, running)
            await engine.remove(box)
            assert await engine.list() == []
        unpinned = {name: value for name, value in settings.items() if name != "server_certificate"}
        async with IncusEngine(tmp_path / "unpinned", **unpinned) as engine:
            with pytest.raises(EngineDown, match=r"self.signed certificate.*`server_certificate`"):
                await engine.probe()
        # An address that is not known as this machine's own stands for an Incus on another machine.
        away = settings | {"url": f"https://127.0.0.2:{port}"}
        async with IncusEngine(tmp_path / "away", **away) as engine:
            found = await engine.probe()
            assert NO_COMMANDS in found.extras
            assert not found.extras & {"mounts", "hosts"}
            assert engine.published_at == "127.0.0.2"
            box = unit()
            mount = Mount(path="/data", source=str(tmp_path))
            await engine.start(box, replace(machine(), mounts=(mount,)))
            (refused,) = await engine.list()
            assert "a folder of the agent's machine" in refused.message
            await engine.remove(box)
    incus.cli("config", "unset", "core.https_address")
