"""The process engine without root, on uvloop, and with many units."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import uvloop

from mandor.engines.base import Launch, Unit, UnitPhase
from mandor.engines.process import ProcessEngine
from mandor.lib.ids import new_uid
from tests.integration.engines.conftest import WAIT_SECONDS, Bench

ROOT = Path(__file__).resolve().parents[3]
SOMEONE = 54321
"""User id that is not root and not in /etc/passwd."""


def interpreter_for_all() -> list[str] | None:
    """A Python that another user can run, with the packages of the tests."""
    packages = sysconfig.get_path("purelib")
    for program in (sys.executable, "/usr/bin/python3"):
        try:
            found = subprocess.run(
                [program, "-c", "import pytest, msgspec, psutil, sys; assert sys.version_info >= (3, 11)"],
                user=SOMEONE,
                group=SOMEONE,
                extra_groups=[],
                env={"PYTHONPATH": packages},
                capture_output=True,
                check=False,
            )
        except OSError:
            continue
        if found.returncode == 0:
            return [program]
    return None


@pytest.mark.slow
@pytest.mark.req("S2-25")
@pytest.mark.skipif(os.geteuid() != 0, reason="the suite runs as someone else than root already")
def test_the_engine_passes_the_suite_for_a_user_without_root() -> None:
    program = interpreter_for_all()
    if program is None:
        message = "no Python on this machine can be run by another user"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    folder = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    os.chown(folder, SOMEONE, SOMEONE)
    paths = [sysconfig.get_path("purelib"), str(ROOT / "src"), str(ROOT)]
    suite = "tests/conformance/test_engine_process.py::TestProcessEngineRestricted"
    try:
        done = subprocess.run(
            [
                *program,
                "-m",
                "pytest",
                "-q",
                suite,
                "-p",
                "no:cacheprovider",
                "-p",
                "no:xdist",
                f"--basetemp={folder}/t",
            ],
            user=SOMEONE,
            group=SOMEONE,
            extra_groups=[],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(paths), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=170,
            check=False,
        )
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_it_works_on_either_event_loop(factory: object, tmp_path: Path) -> None:
    async def work() -> None:
        async with ProcessEngine(tmp_path / "engine") as engine:
            unit = Unit(new_uid(), "main", 0)
            await engine.start(unit, Launch(name="test", command=("sh", "-c", "echo begun; sleep 3600")))
            execution = await engine.exec(unit, ["sh", "-c", "read x; echo got $x; exit 3"], terminal=True)
            await execution.write(b"word\n")
            seen = b""
            while piece := await execution.read():
                seen += piece[1]
            assert b"got word" in seen
            assert await execution.wait() == 3
            await execution.close()
            events = engine.events()
            stopping = asyncio.create_task(engine.stop(unit, grace_seconds=WAIT_SECONDS))
            await anext(events)
            await stopping
            assert [line.text async for line in engine.logs(unit)] == [b"begun"]
            (observed,) = await engine.list()
            assert (observed.phase, observed.exit_code) == (UnitPhase.EXITED, 143)
            await engine.remove(unit)
            await events.aclose()  # type: ignore[attr-defined]

    with asyncio.Runner(loop_factory=factory) as runner:  # type: ignore[arg-type]
        runner.run(asyncio.wait_for(work(), WAIT_SECONDS))


_opened: list[str] | None = None


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if _opened is not None and event in {"open", "os.listdir", "os.scandir"}:
        _opened.append(f"{event} {arguments[0]}")


async def test_a_repeated_list_reads_only_the_list_of_folders(bench: Bench) -> None:
    """A cheap `list` lets an agent poll many units."""
    global _opened  # noqa: PLW0603
    running = [await bench.start("sleep 3600") for _ in range(3)]
    over = [await bench.start("exit 3") for _ in range(3)]
    for unit in over:
        await bench.ended(unit)
    before = await bench.engine.list()
    sys.addaudithook(_note)
    _opened = []
    try:
        for _ in range(5):
            assert await bench.engine.list() == before
        assert len(set(_opened)) == 1
        assert len(_opened) == 5
    finally:
        _opened = None
    assert {observed.unit for observed in before} == {*running, *over}


async def test_an_end_is_noticed_without_looking(bench: Bench) -> None:
    unit = await bench.start("sleep 0.3; exit 7")
    events = bench.engine.events()
    async with asyncio.timeout(WAIT_SECONDS):
        await anext(events)
    observed = await bench.look(unit)
    assert observed is not None
    assert (observed.phase, observed.exit_code) == (UnitPhase.EXITED, 7)


async def test_an_end_is_noticed_by_an_engine_that_only_adopted_the_unit(bench: Bench) -> None:
    unit = await bench.start("sleep 1; exit 7")
    engine = await bench.again()
    assert [observed.phase for observed in await engine.list()] == [UnitPhase.RUNNING]
    events = engine.events()
    async with asyncio.timeout(WAIT_SECONDS):
        await anext(events)
    observed = await bench.look(unit)
    assert observed is not None
    assert (observed.phase, observed.exit_code) == (UnitPhase.EXITED, 7)


def test_a_supervisor_imports_few_modules() -> None:
    """There is one supervisor per task, so its imports cost memory on a busy node."""
    look = (
        f"import sys; sys.path.append({str(ROOT / 'src')!r}); import mandor.engines.shim.supervisor;"
        " print(*(name for name in sys.modules if name != '__main__'))"
    )
    shown = subprocess.run([sys.executable, "-I", "-S", "-c", look], capture_output=True, text=True, check=True).stdout
    loaded = set(shown.split())
    assert loaded & {"json", "re", "enum", "ctypes", "typing", "subprocess", "collections", "contextlib"} == set()
    assert {name for name in loaded if name.startswith("mandor")} == {
        "mandor",
        "mandor.engines",
        *(
            f"mandor.engines.shim{name}"
            for name in ("", ".confine", ".entry", ".groups", ".kernel", ".light", ".logfile", ".mounts")
        ),
        *(f"mandor.engines.shim.{name}" for name in ("supervisor", "task_user", "view")),
    }
