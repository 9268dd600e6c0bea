"""Runs with faults in several processes: of a scenario, or of a random scenario per seed."""

import logging
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from mandor.sim.compare import load_scenario, narrowed
from mandor.sim.fault_run import FaultRunResult, run_with_faults
from mandor.sim.random_scenario import random_scenario
from mandor.sim.run import LoadedScenario

ALONE_MOST = 2
"""Runs up to which one process is used."""


class FaultRunSource(msgspec.Struct, frozen=True, kw_only=True):
    """The scenario of the runs: a file, or a random one per seed."""

    path: Path | None = None
    """A scenario file; None: a random scenario for each seed."""
    strategies: tuple[str, ...] = ()
    """Strategies of the scenario; empty: all."""
    profile: str = ""
    """A scheduler configuration for random scenarios."""

    def load(self, seed: int) -> LoadedScenario:
        if self.path is None:
            return random_scenario(seed, self.profile)
        loaded = load_scenario(self.path)
        return narrowed(loaded, self.strategies) if self.strategies else loaded


def run_all_with_faults(
    source: FaultRunSource, seeds: Sequence[int], *, workers: int | None = None, story: bool = False
) -> Iterator[FaultRunResult]:
    """Yield the results in order of seed and strategy."""
    names = list(source.load(seeds[0]).scenario.plans)  # Raises the errors of the scenario.
    jobs = [(source, name, seed, story) for seed in seeds for name in names]
    workers = min(workers or os.cpu_count() or 1, len(jobs))
    if workers < 2 or len(jobs) <= ALONE_MOST:
        for job in jobs:
            yield _run(*job)
        return
    # A fresh interpreter each: nothing of this process may leak into a run.
    with multiprocessing.get_context("spawn").Pool(workers, initializer=_begin) as pool:
        for result in pool.imap(_one, jobs, chunksize=1):
            yield msgspec.msgpack.decode(result, type=FaultRunResult)


def _begin() -> None:
    logging.getLogger("mandor").setLevel(logging.CRITICAL)  # Simulated failures are not logged.


def _one(job: tuple[FaultRunSource, str, int, bool]) -> bytes:
    return msgspec.msgpack.encode(_run(*job))


def _run(source: FaultRunSource, strategy: str, seed: int, story: bool) -> FaultRunResult:
    return run_with_faults(source.load(seed), strategy, seed, story=story)
