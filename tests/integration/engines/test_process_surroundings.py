"""Folder, files, user, environment and limits of a task, and the messages when they are not possible."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from mandor.engines.base import Unit
from mandor.engines.process.hierarchy import Hierarchies
from mandor.engines.process.memory import find_memory
from mandor.errors import EngineDown, Invalid
from mandor.model.task import File
from tests.integration.engines.conftest import Bench

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.mark.req("S2-44")
@pytest.mark.parametrize(
    ("parts", "words"),
    [
        pytest.param({"command": ("nosuchprogram",)}, "there is no program `nosuchprogram` in /usr", id="program"),
        pytest.param({"command": ("/no/such",)}, "there is no program `/no/such`", id="path"),
        pytest.param({"command": ("/etc/passwd",)}, "this user may not execute", id="permission"),
        pytest.param({"command": ("/tmp",)}, "this user may not execute", id="folder"),
        pytest.param({"command": ("a\0b",)}, "null", id="null byte"),
        pytest.param({"command": ()}, "no command", id="nothing"),
        pytest.param({"command": ("",)}, "no command", id="empty"),
        pytest.param({"user": "nosuchuser"}, "no user `nosuchuser`", id="user"),
        pytest.param({"user": "root:nosuchgroup"}, "no group `nosuchgroup`", id="group"),
        pytest.param({"working_dir": "/no/such/folder"}, "/no/such/folder does not exist", id="folder missing"),
        pytest.param({"working_dir": "/etc/passwd"}, "cannot change to the working directory", id="folder is a file"),
        pytest.param({"working_dir": "../../x"}, "must not contain `..`", id="folder outside"),
        pytest.param({"image": "nginx"}, "not images", id="image"),
        pytest.param({"files": (File(path="/etc/passwd", content=""),)}, "absolute path", id="absolute file"),
        pytest.param(
            {"files": (File(path="x", content=""),), "working_dir": "/tmp"},
            "belongs to the node",
            id="file in host folder",
        ),
        pytest.param({"stop_signal": "SIGNOTHING"}, "not a signal", id="signal"),
        pytest.param({"env": {"A": "\ud800"}}, "surrogate", id="half a character"),
        pytest.param({"env": {"A": "x\0y"}}, "null", id="null byte in the environment"),
        pytest.param({"args": ("x" * 200_000,)}, "Argument list too long", id="too long"),
    ],
)
async def test_a_task_that_cannot_start_has_a_reason(bench: Bench, parts: dict[str, Any], words: str) -> None:
    unit = await bench.start("true", **parts)
    ended = await bench.ended(unit)
    assert (ended.reason, ended.exit_code) == ("StartFailed", None)
    assert words in ended.message
    assert await bench.look(unit) == ended


async def test_a_script_without_its_interpreter_fails_to_start_with_a_message(bench: Bench, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    unit = await bench.start("", command=(str(script),), level="privileged")
    assert f"the interpreter of {script} does not exist" in (await bench.ended(unit)).message


async def test_a_file_that_is_not_executable_fails_to_start_with_a_message(bench: Bench, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x00garbage")
    program.chmod(0o755)
    unit = await bench.start("", command=(str(program),), level="privileged")
    ended = await bench.ended(unit)
    assert (ended.reason, "cannot be executed" in ended.message) == ("StartFailed", True)


@pytest.mark.parametrize(
    "unit", [Unit("../x", "main", 0), Unit("a/b", "main", 0), Unit("", "main", 0), Unit("a", "", 0)]
)
async def test_a_unit_name_with_a_path_is_refused(bench: Bench, unit: Unit) -> None:
    from mandor.engines.base import Launch

    with pytest.raises(Invalid):
        await bench.engine.start(unit, Launch(name="test", command=("true",)))
    await bench.engine.stop(unit, grace_seconds=0)
    await bench.engine.remove(unit)
    assert await bench.engine.list() == []


async def test_the_environment_is_the_tasks_own_and_small(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_SECRET", "do not tell")
    unit = await bench.start("env", env={"A": "1", "HOME": "/nowhere"})
    await bench.ended(unit)
    shown = dict(line.decode().split("=", 1) for line in await bench.output(unit))
    assert shown.pop("A") == "1"
    assert shown.pop("HOME") == "/nowhere"
    assert shown.pop("MANDOR_UNIT") == str(unit)
    assert "/usr/bin" in shown.pop("PATH")
    assert set(shown) == {"USER", "LOGNAME", "PWD"}  # A shell sets the last one.


async def test_a_task_has_its_own_folder(bench: Bench) -> None:
    unit = await bench.start("pwd; echo $HOME; touch here; umask; cat /proc/self/oom_score_adj")
    await bench.ended(unit)
    work = str(bench.folder(unit) / "work").encode()
    assert await bench.output(unit) == [work, work, b"0022", b"0"]
    assert (bench.folder(unit) / "work" / "here").exists()


async def test_a_relative_folder_is_made_inside_and_files_are_put_there(bench: Bench) -> None:
    files = (File(path="a/b.txt", content="text"), File(path="run.sh", content="#!/bin/sh\ncat a/b.txt\n", mode="755"))
    unit = await bench.start("", command=("./run.sh",), working_dir="srv/app", files=files)
    assert (await bench.ended(unit)).reason == "Completed"
    assert await bench.output(unit) == [b"text"]
    assert (bench.folder(unit) / "work/srv/app/a/b.txt").read_text() == "text"


async def test_a_task_starts_with_three_open_files(bench: Bench) -> None:
    look = "ls /proc/self/fd | tr '\\n' ' '"
    foreign = os.open("/etc/passwd", os.O_RDONLY)
    os.set_inheritable(foreign, True)  # An agent that was started with an open file.
    try:
        unit = await bench.start(f"{look}; readlink /proc/self/fd/0; sleep 3600")
        # `ls` itself holds the folder open as 3.
        assert await bench.printed(unit) == [b"0 1 2 3 /dev/null"]
        execution = await bench.engine.exec(unit, ["sh", "-c", look])
        assert await execution.read() == ("stdout", b"0 1 2 3 ")
        await execution.close()
    finally:
        os.close(foreign)


async def test_signals_are_as_a_program_expects_them(bench: Bench) -> None:
    unit = await bench.start("grep -E '^Sig(Blk|Ign)' /proc/self/status")
    await bench.ended(unit)
    usual = (1 << 31) - 1  # The C library reserves two of the others.
    assert [int(line.split()[1], 16) & usual for line in await bench.output(unit)] == [0, 0]


@root_only
@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("nobody", "uid=65534(nobody) gid=65534(nogroup) groups=65534(nogroup)"),
        (65534, "uid=65534(nobody) gid=65534(nogroup) groups=65534(nogroup)"),
        ("54321", "uid=54321 gid=54321 groups=54321"),
        ("nobody:daemon", "uid=65534(nobody) gid=1(daemon) groups=1(daemon)"),
        ("54321:12345", "uid=54321 gid=12345 groups=12345"),
        (0, "uid=0(root) gid=0(root) groups=0(root)"),
    ],
)
async def test_a_task_of_another_user_has_only_the_groups_of_that_user(
    bench: Bench, user: str | int, expected: str
) -> None:
    files = (File(path="mine/file", content="x", mode="0600"),)
    level = "baseline" if user else "privileged"
    unit = await bench.start("id; cat mine/file; touch new && ls", user=user, files=files, level=level)
    ended = await bench.ended(unit)
    lines = await bench.output(unit)
    assert ended.reason == "Completed", lines
    assert lines == [expected.encode(), b"xmine", b"new"]


@root_only
async def test_another_user_cannot_read_the_launch_nor_the_logs(bench: Bench) -> None:
    script = "echo begun; for f in launch.json running.json log lock; do cat ../$f && echo $f is open; done; sleep 3600"
    unit = await bench.start(script, user="nobody", env={"PASSWORD": "secret"})
    await bench.printed(unit, 5)
    assert not [line for line in await bench.output(unit) if b"is open" in line or b"secret" in line]


@root_only
async def test_another_user_may_not_enter_a_folder_that_is_closed_to_them(bench: Bench, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    unit = await bench.start("pwd", user="nobody", working_dir=str(closed), level="privileged")
    assert "cannot change to the working directory" in (await bench.ended(unit)).message


@root_only
async def test_a_task_of_another_user_ends_with_its_supervisor(bench_without_cgroups: Bench) -> None:
    import signal

    from tests.integration.engines.conftest import find_pid, lives, supervisor_of, until

    bench = bench_without_cgroups
    unit = await bench.start("echo $$; sleep 3600", user="nobody")
    (pid,) = (find_pid(unit, int(word)) for word in await bench.printed(unit))
    await bench.engine.close()
    os.kill(supervisor_of(bench, unit), signal.SIGKILL)
    await until(lambda: not lives(pid), lambda: "the task lives")


async def test_secrets_are_in_memory_while_the_task_runs_and_gone_when_it_is_over(bench: Bench) -> None:
    files = (File(path="key", content="very secret"),)
    unit = await bench.start(
        "cat key; echo; sleep 3600", env={"PASSWORD": "very secret"}, files=files, secret_files=frozenset({"key"})
    )
    assert await bench.printed(unit) == [b"very secret"]
    (bench.folder(unit) / "log").write_bytes(b"")
    memory = find_memory(bench.directory)
    assert memory is not None, "this machine has no file system in memory"
    record = memory / str(unit) / "launch.json"
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert stat.S_IMODE(record.parent.stat().st_mode) == 0o700
    assert "very secret" in record.read_text()

    def on_disk() -> list[Path]:
        found = (path for path in bench.folder(unit).rglob("*") if path.is_file())
        return [path for path in found if b"very secret" in path.read_bytes()]

    assert on_disk() == []
    await bench.engine.stop(unit, grace_seconds=60)
    assert on_disk() == []
    assert list(memory.iterdir()) == []


async def test_a_command_beside_the_task_has_its_user_folder_and_environment(bench: Bench) -> None:
    user = "nobody" if os.geteuid() == 0 else None
    unit = await bench.start("pwd; id -u; cat /proc/self/cgroup; sleep 3600", user=user, memory_bytes=64 << 20)
    expected = b"\n".join(await bench.printed(unit, 3)) + b"\n"
    execution = await bench.engine.exec(unit, ["sh", "-c", "pwd; id -u; cat /proc/self/cgroup"])
    seen = b""
    while piece := await execution.read():
        seen += piece[1]
    assert await execution.wait() == 0
    await execution.close()
    assert seen == expected


async def test_an_invalid_command_is_refused(bench: Bench) -> None:
    unit = await bench.start("sleep 3600")
    for command in ([], ["a\0b"]):
        with pytest.raises(Invalid):
            await bench.engine.exec(unit, command)


@pytest.mark.parametrize(("command", "code"), [("nosuchprogram", 127), ("/etc/passwd", 126)])
async def test_a_command_that_cannot_run_reports_it_as_a_shell_would(bench: Bench, command: str, code: int) -> None:
    unit = await bench.start("sleep 3600")
    execution = await bench.engine.exec(unit, [command])
    piece = await execution.read()
    assert piece is not None
    assert (piece[0], command in piece[1].decode()) == ("stderr", True)
    assert await execution.wait() == code
    await execution.close()


async def test_a_command_beside_the_task_ends_with_the_task(bench_without_cgroups: Bench) -> None:
    bench = bench_without_cgroups
    unit = await bench.start("echo begun; sleep 3600")
    await bench.printed(unit)
    execution = await bench.engine.exec(unit, ["sh", "-c", "echo up; exec sleep 3600"])
    assert await asyncio.wait_for(execution.read(), 60) == ("stdout", b"up\n")
    await bench.engine.stop(unit, grace_seconds=60)
    assert await asyncio.wait_for(execution.wait(), 60) == 137
    await execution.close()


async def test_closing_the_engine_ends_commands_and_no_task(bench: Bench) -> None:
    unit = await bench.start("sleep 3600")
    execution = await bench.engine.exec(unit, ["sleep", "3600"])
    reading = asyncio.create_task(execution.read())
    await asyncio.sleep(0)
    before = await bench.look(unit)
    await bench.again()
    assert await reading is None
    assert await execution.wait() == 137
    assert await bench.look(unit) == before


async def test_a_folder_that_cannot_be_used_is_an_engine_that_is_down(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    bench = Bench(tmp_path / "file" / "engine")
    with pytest.raises(EngineDown, match="cannot use"):
        await bench.engine.probe()


@pytest.mark.skipif("memory" not in Hierarchies.detect(Path("/")).limits, reason="no memory cgroup may be made here")
async def test_a_child_that_runs_out_of_memory_is_the_reason_when_the_task_fails_for_it(bench: Bench) -> None:
    eat = 'x=0123456789abcdef; while :; do x="$x$x"; done'
    unit = await bench.start(f"sh -c '{eat}'; exit 3", memory_bytes=32 << 20)
    ended = await bench.ended(unit)
    assert ended.reason == "OOMKilled"
    unit = await bench.start(f"sh -c '{eat}'; exit 0", memory_bytes=32 << 20)
    ended = await bench.ended(unit)
    assert ended.reason == ("OOMKilled" if ended.exit_code else "Completed")


@pytest.mark.skipif(not Hierarchies.detect(Path("/")).trees, reason="no cgroup may be made here")
async def test_no_cgroup_is_left_when_the_last_unit_is_removed(bench: Bench) -> None:
    unit = await bench.start("sleep 3600", memory_bytes=64 << 20, cpu_milli=100, processes=5)
    trees = Hierarchies.detect(bench.directory)
    paths = trees.paths(str(unit))
    assert all(os.path.isdir(path) for path in paths)
    await bench.engine.remove(unit)
    assert not any(os.path.exists(path) for path in [*paths, *trees.paths("")])
