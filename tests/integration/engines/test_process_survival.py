"""Survival of tasks, stop orders and records when agents, supervisors or the node end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from mandor.engines.base import Launch, Unit, UnitPhase
from mandor.engines.process.confinement import Confinement
from mandor.engines.process.folder import UnitFolder
from mandor.engines.process.hierarchy import Hierarchies
from mandor.engines.process.launch import NodeFeatures, make_record
from mandor.engines.process.spawn import spawn_supervisor
from mandor.errors import EngineDown
from tests.integration.engines.conftest import Bench, lives, supervisor_of, until

FAMILY = "trap '' TERM; sleep 3600 & setsid sleep 3601 & (trap '' HUP; sleep 3602 &) ; echo $$ $!; wait; sleep 3603"
"""A task with a child, a child in its own session, and an orphan."""


async def family(bench: Bench) -> tuple[Unit, int, list[int]]:
    """Start a unit; return it, its supervisor and all processes below."""
    unit = await bench.start(FAMILY)
    await bench.printed(unit)
    supervisor = supervisor_of(bench, unit)
    await until(lambda: len(below(supervisor)) >= 4, lambda: f"only {below(supervisor)}")
    return unit, supervisor, below(supervisor)


def below(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


async def test_a_task_whose_supervisor_is_killed_ends_and_is_listed_as_vanished(each_bench: Bench) -> None:
    bench = each_bench
    unit, supervisor, processes = await family(bench)
    os.kill(supervisor, signal.SIGKILL)
    ended = await bench.ended(unit)
    assert (ended.reason, ended.exit_code) == ("Vanished", None)
    assert "supervisor" in ended.message
    await until(lambda: not any(map(lives, processes)), lambda: f"alive: {[p for p in processes if lives(p)]}")
    assert await bench.look(unit) == ended


async def test_processes_of_a_killed_supervisor_are_killed_by_the_next_agent(each_bench: Bench) -> None:
    bench = each_bench
    unit, supervisor, processes = await family(bench)
    await bench.engine.close()
    os.kill(supervisor, signal.SIGKILL)
    await until(lambda: not lives(supervisor), lambda: "the supervisor lives")
    await bench.again()
    assert (await bench.ended(unit)).reason == "Vanished"
    await until(lambda: not any(map(lives, processes)), lambda: f"alive: {[p for p in processes if lives(p)]}")


async def test_stopping_ends_every_descendant(each_bench: Bench) -> None:
    bench = each_bench
    unit, supervisor, processes = await family(bench)
    await bench.engine.stop(unit, grace_seconds=0.2)
    assert not lives(supervisor)
    assert [pid for pid in processes if lives(pid)] == []


async def test_when_the_task_itself_ends_its_children_end_with_it(bench_without_cgroups: Bench) -> None:
    bench = bench_without_cgroups
    unit = await bench.start("setsid sleep 3600 & echo $!; exit 5", level="privileged")
    assert (await bench.ended(unit)).exit_code == 5
    (child,) = await bench.output(unit)
    assert not lives(int(child))


AGENT = """
import asyncio, signal, sys
from pathlib import Path
from mandor.engines.base import Launch, Unit
from mandor.engines.process import ProcessEngine

# `nohup` makes all its descendants ignore it.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

async def main(directory, order, uid):
    engine = ProcessEngine(Path(directory))
    unit = Unit(uid, "main", 0)
    if order == "start":
        script = "echo begun; trap 'sleep 1; echo bye; exit 4' TERM; while :; do sleep 0.1; done"
        await engine.start(unit, Launch(name="test", command=("sh", "-c", script)))
        print("started", flush=True)
    else:
        asyncio.create_task(engine.stop(unit, grace_seconds=60))
        await asyncio.sleep(0.1)
        print("ordered", flush=True)
    await asyncio.sleep(3600)

asyncio.run(main(*sys.argv[1:]))
"""


def run_agent(bench: Bench, order: str, unit: Unit) -> subprocess.Popen[str]:
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, str(bench.directory), order, unit.uid],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert agent.stdout is not None
    assert agent.stdout.readline()
    return agent


def end(agent: subprocess.Popen[str], number: signal.Signals) -> None:
    os.killpg(agent.pid, number)
    try:
        agent.wait(60)
    finally:
        agent.kill()
        assert agent.stdout is not None
        agent.stdout.close()


@pytest.mark.req("S0-29", "S2-25")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGINT])
async def test_a_task_outlives_its_agent_and_the_agents_process_group(bench: Bench, number: signal.Signals) -> None:
    unit = bench.unit()
    agent = run_agent(bench, "start", unit)
    end(agent, number)
    observed = await bench.look(unit)
    assert observed is not None
    assert observed.phase is UnitPhase.RUNNING
    assert await bench.printed(unit) == [b"begun"]


@pytest.mark.req("S0-29")
async def test_a_stop_order_is_carried_out_after_the_agent_has_died(bench: Bench) -> None:
    unit = bench.unit()
    end(run_agent(bench, "start", unit), signal.SIGKILL)
    await bench.printed(unit)
    end(run_agent(bench, "stop", unit), signal.SIGKILL)
    ended = await bench.ended(unit)
    assert ended.exit_code == 4
    assert b"bye" in await bench.output(unit)


@pytest.mark.req("S0-27")
async def test_a_second_supervisor_of_a_unit_exits_at_once(bench: Bench) -> None:
    unit = await bench.start("echo begun; sleep 3600")
    await bench.printed(unit)
    before = supervisor_of(bench, unit)
    folder = UnitFolder(bench.folder(unit))
    for _ in range(3):
        second, ready = spawn_supervisor(folder)
        assert await ready.wait(60)
        assert os.waitpid(second, 0)[1] == 0
    assert supervisor_of(bench, unit) == before
    assert await bench.output(unit) == [b"begun"]


@pytest.mark.req("S0-27")
async def test_a_late_supervisor_starts_nothing(bench: Bench) -> None:
    unit = await bench.start("echo begun")
    ended = await bench.ended(unit)
    second, ready = spawn_supervisor(UnitFolder(bench.folder(unit)))
    assert await ready.wait(60)
    assert os.waitpid(second, 0)[1] == 0
    await bench.again()
    assert await bench.look(unit) == ended
    assert await bench.output(unit) == [b"begun"]


@pytest.mark.req("S0-27")
async def test_a_unit_left_by_a_crash_is_started_as_a_new_one(bench: Bench) -> None:
    """The agent died after it created the folder and before it started the supervisor."""
    unit = bench.unit()
    await bench.engine.list()
    folder = UnitFolder(bench.folder(unit))
    folder.make(open_to_pass=False)
    assert await bench.look(unit) is None
    await bench.engine.start(unit, Launch(name="test", command=("sh", "-c", "echo begun")))
    assert (await bench.ended(unit)).reason == "Completed"

    other = bench.unit()
    UnitFolder(bench.folder(other)).make(open_to_pass=False)
    await bench.again()
    assert await bench.look(other) is None
    assert not bench.folder(other).exists()


@pytest.mark.req("S0-27")
async def test_a_removed_folder_is_not_started_by_a_late_supervisor(bench: Bench) -> None:
    unit = bench.unit()
    await bench.engine.list()
    folder = UnitFolder(bench.folder(unit))
    folder.make(open_to_pass=False)
    launch = Launch(name="test", command=("sh", "-c", "sleep 3600"))
    features = NodeFeatures(Hierarchies.detect(bench.directory), Confinement(), "boot", mounts=False)
    folder.write_launch(make_record(unit, launch, folder, features))
    trash = bench.directory / "trash" / "taken"
    assert folder.take_away(trash)
    late, ready = spawn_supervisor(UnitFolder(trash))
    assert await ready.wait(60)
    assert os.waitpid(late, 0)[1] == 0
    assert not (trash / "running.json").exists()


async def test_after_a_reboot_a_task_has_vanished(bench: Bench) -> None:
    unit = await bench.start("sleep 3600")
    supervisor = supervisor_of(bench, unit)
    await bench.engine.close()
    record = bench.folder(unit) / "running.json"
    before = json.loads(record.read_text())
    os.kill(supervisor, signal.SIGKILL)
    await until(lambda: not lives(supervisor), lambda: "the supervisor lives")
    record.write_text(json.dumps(before | {"boot": "another"}))
    await bench.again()
    ended = await bench.ended(unit)
    assert (ended.reason, ended.message) == ("Vanished", "the machine was restarted")
    assert ended.started_at == before["started_at"]


@pytest.mark.parametrize("record", ["exit.json", "running.json"])
async def test_a_damaged_record_affects_only_its_unit(bench: Bench, record: str) -> None:
    running = await bench.start("echo begun; sleep 3600")
    spoiled = await bench.start("exit 3")
    await bench.ended(spoiled)
    (bench.folder(spoiled) / "exit.json").unlink()
    (bench.folder(spoiled) / record).write_bytes(b'{"code":')
    (bench.directory / "units" / "not a unit").mkdir()
    (bench.directory / "units" / "file.main.0").touch()
    await bench.again()
    assert {o.unit: (o.phase, o.reason) for o in await bench.engine.list()} == {
        running: (UnitPhase.RUNNING, ""),
        spoiled: (UnitPhase.EXITED, "Vanished"),
    }
    await bench.engine.remove(spoiled)
    (bench.folder(running) / "launch.json").write_bytes(b"")
    await bench.engine.stop(running, grace_seconds=60)
    assert (await bench.ended(running)).exit_code == 143


async def test_a_folder_that_is_gone_is_an_engine_that_is_down(bench: Bench) -> None:
    await bench.engine.list()
    (bench.directory / "units").rename(bench.directory / "elsewhere")
    with pytest.raises(EngineDown):
        await bench.engine.list()
    (bench.directory / "elsewhere").rename(bench.directory / "units")
    assert await bench.engine.list() == []


@pytest.mark.req("S0-14")
async def test_a_process_that_reuses_the_id_of_a_dead_supervisor_is_not_killed(bench: Bench) -> None:
    """The records name the id of a foreign process, which no verb of the engine affects."""
    unit = await bench.start("sleep 3600")
    supervisor = supervisor_of(bench, unit)
    await bench.engine.close()
    os.kill(supervisor, signal.SIGKILL)
    await until(lambda: not lives(supervisor), lambda: "the supervisor lives")
    stranger = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    try:
        record = bench.folder(unit) / "running.json"
        record.write_text(json.dumps(json.loads(record.read_text()) | {"pid": stranger.pid}))
        await bench.again()
        assert (await bench.ended(unit)).reason == "Vanished"
        await bench.engine.stop(unit, grace_seconds=0)
        await bench.engine.remove(unit)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


async def test_a_hanging_supervisor_is_killed_with_its_task(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mandor.engines.process.engine.SUPERVISOR_SECONDS_MAX", 0.5)
    unit, supervisor, processes = await family(bench)
    os.kill(supervisor, signal.SIGSTOP)
    await bench.engine.stop(unit, grace_seconds=0.1)
    assert (await bench.ended(unit)).reason == "Vanished"
    await until(lambda: not any(map(lives, [supervisor, *processes])), lambda: "something lives")


async def test_groups_of_unknown_units_are_removed(bench: Bench) -> None:
    """The folder was deleted and the groups were not: an agent was killed during a removal."""
    unit = await bench.start("sleep 3600")
    supervisor = supervisor_of(bench, unit)
    await bench.engine.close()
    os.kill(supervisor, signal.SIGKILL)
    await until(lambda: not lives(supervisor), lambda: "the supervisor lives")
    bench.folder(unit).rename(bench.directory / "trash" / "old")
    await bench.again()
    assert await bench.engine.list() == []
    await bench.engine.close()
    assert not (bench.directory / "trash" / "old").exists()


async def test_two_engines_at_once_see_the_same(bench: Bench) -> None:
    """Two engine objects over one folder, as while an old agent hands over to a new one."""
    unit = await bench.start("echo begun; trap 'exit 0' TERM; while :; do sleep 0.1; done")
    await bench.printed(unit)
    other = Bench(bench.directory)
    assert await other.look(unit) == await bench.look(unit)
    await asyncio.gather(bench.engine.stop(unit, grace_seconds=60), other.engine.stop(unit, grace_seconds=60))
    assert await other.ended(unit) == await bench.ended(unit)
    await other.engine.remove(unit)
    assert await bench.look(unit) is None
    await other.engine.close()


async def test_a_mount_left_by_a_task_is_not_deleted(bench: Bench, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can leave a mount behind")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("data")
    unit = await bench.start(f"mkdir here && mount --bind {precious} here && echo mounted", level="privileged")
    if (await bench.ended(unit)).reason != "Completed":
        pytest.skip("this machine lets nobody mount")
    try:
        await bench.engine.remove(unit)
        assert (precious / "file").read_text() == "data"
        assert await bench.engine.list() == []
    finally:
        (left,) = (bench.directory / "trash").glob("*/*/here")
        subprocess.run(["umount", str(left)], check=True)
    await bench.again()
    await bench.engine.list()
    await bench.engine.close()
    assert list((bench.directory / "trash").iterdir()) == []
    assert (precious / "file").exists()
