"""The cri engine with a real containerd: sandboxes, ports, restarts, log rotation."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mandor.engines.base import Launch, Mount, Observed, Unit, UnitPhase
from mandor.engines.cri import CriEngine
from mandor.errors import EngineDown, NotFound
from mandor.model.task import Security
from tests.components.containerd import Containerd
from tests.components.image import NAME
from tests.integration.engines.conftest import no_process_has

PATIENCE_SECONDS = 60.0
SERVES = "mkdir -p /www; echo {text} > /www/index.html; exec httpd -f -p {port} -h /www"


@pytest.fixture
async def engine(containerd: Containerd, tmp_path: Path) -> AsyncIterator[CriEngine]:
    async with CriEngine(tmp_path / "engine", socket=containerd.socket, dial=containerd.dial) as engine:
        yield engine
        for observed in await engine.list():
            await engine.remove(observed.unit)


def unit(task: str = "main", uid: str = "") -> Unit:
    return Unit(uid or uuid.uuid4().hex, task, 0)


def shell(script: str, **parts: Any) -> Launch:
    return Launch(**{"name": "web-0", "image": NAME, "command": ("sh", "-c"), "args": (script,)} | parts)


async def until(engine: CriEngine, which: Unit, test: Callable[[Observed], bool]) -> Observed:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            for observed in await engine.list():
                if observed.unit == which and test(observed):
                    return observed
            await asyncio.sleep(0.05)


def running(observed: Observed) -> bool:
    return observed.phase is UnitPhase.RUNNING


def over(observed: Observed) -> bool:
    return observed.phase is UnitPhase.EXITED


async def output(engine: CriEngine, which: Unit, command: Sequence[str]) -> tuple[bytes, int]:
    execution = await engine.exec(which, command)
    await execution.write(b"")
    said = b""
    while (found := await execution.read()) is not None:
        said += found[1]
    code = await execution.wait()
    await execution.close()
    return said, code


async def fetched(containerd: Containerd, address: str, port: int) -> str:
    """Fetch a page, retried until it is served."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                return await asyncio.to_thread(containerd.enclosure.fetch, address, port)
            except AssertionError:
                await asyncio.sleep(0.1)


@pytest.mark.req("S2-6")
async def test_tasks_of_one_instance_share_an_address_and_others_have_their_own(engine: CriEngine) -> None:
    uid = uuid.uuid4().hex
    web, side, other = unit("web", uid), unit("side", uid), unit()
    await engine.start(web, shell(SERVES.format(text="hello", port=8080)))
    await engine.start(side, shell("exec sleep 3600"))
    await engine.start(other, shell("exec sleep 3600"))
    addresses = [(await until(engine, each, running)).address for each in (web, side, other)]
    assert addresses[0] == addresses[1] != addresses[2]
    assert all(addresses)
    asked = "until wget -q -O- http://localhost:8080; do sleep 0.1; done"
    assert await output(engine, side, ("sh", "-c", asked)) == (b"hello\n", 0)
    across = f"until wget -q -O- http://{addresses[0]}:8080; do sleep 0.1; done"
    assert await output(engine, other, ("sh", "-c", across)) == (b"hello\n", 0)
    await engine.remove(web)
    assert (await until(engine, side, running)).address == addresses[0]


@pytest.mark.req("S2-7")
async def test_a_published_port_reaches_the_task(engine: CriEngine, containerd: Containerd) -> None:
    web = unit()
    launch = shell(SERVES.format(text="from outside", port=8080), ports={"http": 8080}, host_ports={"http": 18080})
    await engine.start(web, launch)
    await until(engine, web, running)
    gateway = "10.79.0.1"
    assert await fetched(containerd, gateway, 18080) == "from outside"


@pytest.mark.req("S0-29")
async def test_tasks_outlive_a_killed_runtime_and_are_found_again(engine: CriEngine, containerd: Containerd) -> None:
    stays, ends = unit(), unit()
    await engine.start(stays, shell("trap 'exit 0' TERM; while :; do sleep 0.1; done"))
    await engine.start(ends, shell("sleep 3; exit 5"))
    before = await until(engine, stays, running)
    containerd.kill()
    with pytest.raises(EngineDown):
        await engine.list()
    await no_process_has("sleep 3; exit 5")
    containerd.start()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                assert await until(engine, stays, running) == before
                break
            except EngineDown:
                await asyncio.sleep(0.2)
    ended = await until(engine, ends, over)
    assert (ended.reason, ended.exit_code) == ("Vanished", None)  # containerd does not report it
    await engine.start(stays, shell("exit 1"))
    assert await until(engine, stays, running) == before
    await engine.stop(stays, grace_seconds=PATIENCE_SECONDS)
    assert (await until(engine, stays, over)).exit_code == 0


async def test_a_runtime_that_hangs_is_down_and_not_waited_for(containerd: Containerd, tmp_path: Path) -> None:
    async with CriEngine(tmp_path / "engine", socket=containerd.socket, answer_seconds=0.5) as engine:
        await engine.probe()
        containerd.pause()
        try:
            with pytest.raises(EngineDown, match="does not answer"):
                await engine.list()
        finally:
            containerd.resume()


async def test_a_runtime_is_absent_before_its_first_use_and_down_after_it(tmp_path: Path) -> None:
    async with CriEngine(tmp_path / "engine", socket=tmp_path / "nobody.sock") as engine:
        with pytest.raises(NotFound, match="no CRI runtime"):
            await engine.probe()
        assert engine.owner
        with pytest.raises(EngineDown, match=r"nobody\.sock"):
            await engine.probe()


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"image": "mandor.test/nothing:1", "options": {"pull": "never"}}, "`pull: never` forbids"),
        ({"image": None}, "the task has no `image`"),
        ({"options": {"pul": "never"}}, "options.cri"),
        ({"working_dir": "somewhere"}, "not absolute"),
        ({"mounts": (Mount(path="/data", source="/there/is/no/such/folder"),)}, "its source /there/is"),
        ({"user": "nobody-knows-her"}, "nobody-knows-her"),
    ],
)
async def test_a_unit_that_can_never_start_has_a_reason(engine: CriEngine, parts: dict[str, Any], said: str) -> None:
    wrong = unit()
    await engine.start(wrong, shell("exit 0", **parts))
    ended = await until(engine, wrong, over)
    assert ended.reason == "StartFailed"
    assert said in ended.message


async def test_security_settings_of_the_task_are_applied(engine: CriEngine) -> None:
    walled = unit()
    security = Security(read_only_root=True, cap_drop=("ALL",), cap_add=("NET_RAW",), no_new_privileges=True)
    show = "touch /x 2>&1; grep CapEff /proc/self/status; grep NoNewPrivs /proc/self/status"
    await engine.start(walled, shell(show, security=security))
    await until(engine, walled, over)
    refused, powers, gained = [line.text.decode() async for line in engine.logs(walled)]
    assert "Read-only file system" in refused
    assert int(powers.split()[-1], 16) == 1 << 13, "CAP_NET_RAW, and nothing else"
    assert gained.split() == ["NoNewPrivs:", "1"]


async def test_logs_are_rotated_before_they_grow_too_large(engine: CriEngine, tmp_path: Path) -> None:
    chatty = unit()
    script = "n=0; while [ $n -lt 3000 ]; do echo line $n of many words; n=$((n+1)); done; echo ready; exec sleep 3600"
    await engine.start(chatty, shell(script, options={"log_size": "20Ki", "log_files": 2}))
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for line in engine.logs(chatty, follow=True):
            if line.text == b"ready":
                break
    await engine.usage()
    await engine.usage()
    names = sorted(path.name for path in (tmp_path / "engine" / "logs" / chatty.uid).iterdir())
    assert names == ["main.0.log", "main.0.log.1"]
    assert [line.text async for line in engine.logs(chatty, tail=2)] == [b"line 2999 of many words", b"ready"]


async def test_a_sandbox_of_an_interrupted_start_is_removed(
    engine: CriEngine, containerd: Containerd, tmp_path: Path
) -> None:
    """Make a sandbox without a container, as a crash leaves it."""
    from mandor.engines.containers import labels as marks
    from mandor.engines.cri import wire
    from mandor.engines.cri.client import CriClient
    from mandor.engines.cri.config import sandbox_config
    from mandor.engines.cri.options import CriOptions

    uid = uuid.uuid4().hex
    labels = {marks.OWNER: engine.owner, marks.UID: uid}
    client = CriClient(containerd.socket)
    made = sandbox_config(uid, shell("exit 0"), CriOptions(), labels, tmp_path)
    await client.call(wire.RUN_SANDBOX, config=made)
    assert await engine.list() == []
    wanted = wire.make("PodSandboxFilter", label_selector=labels)
    assert not list((await client.call(wire.LIST_SANDBOXES, filter=wanted)).items)
    await client.close()


@pytest.mark.req("S2-26")
async def test_traffic_of_a_shared_network_is_counted_once(engine: CriEngine) -> None:
    uid = uuid.uuid4().hex
    web, side, other = unit("web", uid), unit("side", uid), unit()
    await engine.start(web, shell(SERVES.format(text="x" * 100_000, port=8080)))
    await engine.start(side, shell("exec sleep 3600"))
    await engine.start(other, shell("exec sleep 3600"))
    address = (await until(engine, web, running)).address
    await until(engine, other, running)
    await until(engine, side, running)
    fetch = f"until wget -q -O /dev/null http://{address}:8080; do sleep 0.1; done"
    assert await output(engine, other, ("sh", "-c", fetch)) == (b"", 0)
    used = await engine.usage()
    assert used[other].network_in_bytes > 100_000
    assert used[web].network_out_bytes + used[side].network_out_bytes > 100_000
    assert 0 in (used[web].network_out_bytes, used[side].network_out_bytes)
