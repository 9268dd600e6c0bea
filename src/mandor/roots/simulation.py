"""Runs simulations for callers of the API: `mandor simulate` in a process of its own, with limits."""

import shutil
import sys
from pathlib import Path
from tempfile import mkdtemp

from mandor.api.http.fair_queue import LIMITS, Lane
from mandor.errors import Invalid, TooLarge, TooMany
from mandor.lib.limited import Limits, Overran, run_limited

AT_ONCE = LIMITS[Lane.SIMULATION].slots
RUN = Limits(seconds=120.0, cpu_seconds=120, memory_bytes=2 << 30, output_bytes=32 << 20, files=256, niceness=10)
SCENARIO, PAGE = "scenario.yaml", "page.html"


class Simulations:
    """Runs a few simulations at a time; the API allows one per identity."""

    def __init__(self) -> None:
        self._running = 0

    async def __call__(self, scenario: str, seeds: int) -> tuple[bytes, str]:
        """Return the report as JSON and as a page; raise `Invalid` with the error in the scenario and its line."""
        if self._running >= AT_ONCE:
            raise TooMany(
                f"{AT_ONCE} simulations are running",
                hint="try again in a minute, or run `mandor simulate` on your machine",
            )
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
    command = (sys.executable, "-m", "mandor.cli.main", *words)
    try:
        ended = await run_limited(command, RUN, folder=folder)
    except Overran as error:
        hint = "use fewer seeds or less time, or run `mandor simulate` on your machine"
        raise TooLarge(f"the simulation was stopped: {error}", hint=hint) from None
    page = folder / PAGE
    if ended.status not in {0, 1} or not ended.output or not page.is_file():
        raise _error_of(ended.errors.decode(errors="replace"), ended.status)
    if page.stat().st_size > RUN.output_bytes:
        raise TooLarge(f"the page of the simulation has more than {RUN.output_bytes} bytes", hint="use fewer seeds")
    return ended.output, page.read_text(encoding="utf-8")


def _error_of(output: str, status: int | None) -> Invalid:
    """Return the first error that the command printed."""
    lines = [each for each in output.splitlines() if each.startswith(("error:", "hint:"))]
    message = next((each.removeprefix("error:").strip() for each in lines if each.startswith("error:")), "")
    hint = next((each.removeprefix("hint:").strip() for each in lines if each.startswith("hint:")), None)
    return Invalid(message or f"the simulation ended with status {status}", hint=hint)
