"""Output of a task: bounded on disk, in complete lines, across rotations."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mandor.engines.base import LogLine
from tests.integration.engines.conftest import WAIT_SECONDS, Bench, until

KIB = 1024
SMALL = {"log_size": "64Ki", "log_files": 3}


def log_files(bench: Bench, folder: Path) -> list[int]:
    return sorted(size for path in folder.glob("log*") if (size := size_of(path)) is not None)


def size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None  # The file is being renamed.


async def test_logs_are_bounded_and_old_lines_are_dropped(bench: Bench) -> None:
    unit = await bench.start("i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done", options=SMALL)
    await bench.ended(unit)
    sizes = log_files(bench, bench.folder(unit))
    assert len(sizes) == 3
    assert max(sizes) <= 64 * KIB
    lines = await bench.output(unit)
    assert lines == [f"line {n}".encode() for n in range(20000 - len(lines), 20000)]
    last = [line.text async for line in bench.engine.logs(unit, tail=2500)]
    assert last == lines[-2500:]


async def test_an_image_of_a_single_file_is_loaded(bench: Bench) -> None:
    options = {"log_size": "64Ki", "log_files": 1}
    unit = await bench.start("i=0; while [ $i -lt 8000 ]; do echo line $i; i=$((i+1)); done", options=options)
    await bench.ended(unit)
    assert len(log_files(bench, bench.folder(unit))) == 1
    assert (await bench.output(unit))[-1] == b"line 7999"


async def test_following_loses_nothing_when_files_rotate(bench: Bench) -> None:
    """The task pauses, so that the reader stays within the kept files."""
    script = "i=0; while [ $i -lt 9000 ]; do echo line $i; i=$((i+1)); [ $((i % 1000)) -ne 0 ] || sleep 0.6; done"
    unit = await bench.start(script, options={"log_size": "64Ki", "log_files": 5})
    async with asyncio.timeout(WAIT_SECONDS):
        seen = [line.text async for line in bench.engine.logs(unit, follow=True)]
    assert seen == [f"line {n}".encode() for n in range(9000)]
    assert len(log_files(bench, bench.folder(unit))) > 1


async def test_a_long_line_is_split_and_nothing_of_it_is_lost(bench: Bench) -> None:
    unit = await bench.start("head -c 100000 /dev/zero | tr '\\0' x; echo; echo short; printf 'no end'")
    await bench.ended(unit)
    lines = await bench.output(unit)
    assert max(map(len, lines)) <= 16 * KIB
    assert lines[-2:] == [b"short", b"no end"]
    assert b"".join(lines[:-2]) == b"x" * 100_000


async def test_bytes_that_are_not_utf_8_are_logged_unchanged(bench: Bench) -> None:
    unit = await bench.start(r"printf '\377\376\000 \r\n \t\n\n'; printf '1.5 o fake\n'")
    await bench.ended(unit)
    assert await bench.output(unit) == [b"\xff\xfe\x00 \r", b" \t", b"", b"1.5 o fake"]


async def test_output_without_end_is_bounded_and_slows_only_its_task(bench: Bench) -> None:
    unit = await bench.start("yes flood", options=SMALL)
    await bench.printed(unit, 1000)
    await until(lambda: len(log_files(bench, bench.folder(unit))) == 3, lambda: "it does not rotate")
    assert sum(log_files(bench, bench.folder(unit))) <= 4 * 64 * KIB
    await bench.engine.stop(unit, grace_seconds=60)
    assert set(await bench.output(unit)) <= {b"flood", b"floo", b"flo", b"fl", b"f"}


async def test_a_process_that_keeps_the_output_open_does_not_delay_the_end(bench: Bench) -> None:
    unit = await bench.start("setsid sleep 3600 & echo last; exit 3")
    ended = await bench.ended(unit)
    assert ended.exit_code == 3
    assert await bench.output(unit) == [b"last"]


async def test_following_ends_when_the_unit_is_removed(bench: Bench) -> None:
    unit = await bench.start("echo begun; sleep 3600")
    lines: list[LogLine] = []

    async def follow() -> None:
        lines.extend([line async for line in bench.engine.logs(unit, follow=True)])

    following = asyncio.create_task(follow())
    await bench.printed(unit)
    await bench.engine.remove(unit)
    await asyncio.wait_for(following, WAIT_SECONDS)
    assert [line.text for line in lines] in ([b"begun"], [])


@pytest.mark.parametrize("options", [{"log_size": "1Ki"}, {"log_files": 0}, {"log_size": "many"}, {"colour": "red"}])
async def test_unknown_options_are_refused_by_name(bench: Bench, options: dict[str, object]) -> None:
    unit = await bench.start("true", options=options)
    ended = await bench.ended(unit)
    assert ended.reason == "StartFailed"
    assert next(iter(options)) in ended.message
