"""Simulations for callers of the API: `mandor simulate` in a process of its own, with limits."""

import asyncio
import os
import resource
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp

from mandor.errors import Invalid, TooLarge, TooMany

AT_ONCE = 1
SECONDS_MOST = 120.0
MEMORY_BYTES_MOST = 2 << 30
NICENESS = 10
"""Whatever the server itself does comes first."""
SCENARIO, PAGE = "scenario.yaml", "page.html"
KEPT = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "HOME")
"""What of the server's environment is no secret, and needed."""


class Simulations:
    """Runs one at a time."""

    def __init__(self) -> None:
        self._running = 0

    async def __call__(self, scenario: str, seeds: int) -> tuple[bytes, str]:
        """The report as JSON, and as a page; `Invalid` with what is wrong in the scenario, and where."""
        if self._running >= AT_ONCE:
            raise TooMany("another simulation runs", hint="try again in a minute, or run `mandor simulate` yourself")
        self._running += 1
        folder = Path(mkdtemp(prefix="mandor-simulate-"))
        try:
            (folder / SCENARIO).write_text(scenario, encoding="utf-8")
            return await _run(folder, seeds)
        finally:
            self._running -= 1
            shutil.rmtree(folder, ignore_errors=True)


async def _run(folder: Path, seeds: int) -> tuple[bytes, str]:
    words = ["simulate", SCENARIO, "--seeds", str(seeds), "--workers", "1", "--html", PAGE, "-o", "json"]
    environment = {name: os.environ[name] for name in KEPT if name in os.environ} | {"OPENBLAS_NUM_THREADS": "1"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mandor.cli.main", *words),
        cwd=folder,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        with suppress(ProcessLookupError):
            resource.prlimit(process.pid, resource.RLIMIT_DATA, (MEMORY_BYTES_MOST, MEMORY_BYTES_MOST))
            os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
        async with asyncio.timeout(SECONDS_MOST):
            report, told = await process.communicate()
    except TimeoutError:
        message = f"the simulation took more than {SECONDS_MOST:.0f} s"
        raise TooLarge(message, hint="fewer seeds, less time, or `mandor simulate` on a machine of yours") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode not in {0, 1} or not report:
        raise _mistake(told.decode(errors="replace"), process.returncode)
    return report, (folder / PAGE).read_text(encoding="utf-8")


def _mistake(told: str, status: int | None) -> Invalid:
    """The first of what the command complains about."""
    lines = [each for each in told.splitlines() if each.startswith(("error:", "hint:"))]
    message = next((each.removeprefix("error:").strip() for each in lines if each.startswith("error:")), "")
    hint = next((each.removeprefix("hint:").strip() for each in lines if each.startswith("hint:")), None)
    return Invalid(message or f"the simulation ended with status {status}", hint=hint)
