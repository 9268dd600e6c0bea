"""Runs a scenario: every strategy with every seed, on as many processors as it pays, and sums up."""

import logging
import multiprocessing
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.pool import Pool
from pathlib import Path

import msgspec

from mandor.errors import Invalid
from mandor.lib.words import did_you_mean
from mandor.lib.yaml12 import Map
from mandor.sim.result import Failure, RunResult
from mandor.sim.run import LoadedScenario, run_scenario
from mandor.sim.scenario import Scenario, read_file
from mandor.sim.strategy import check_names
from mandor.sim.work import load_work, places

ALONE_MOST = 2
"""Runs up to which one process is used."""
Progress = Callable[[int, int], None]


def load_scenario(path: Path) -> LoadedScenario:
    """The scenario and all its work; `Invalid` tells what is wrong, and where."""
    scenario, source = read_file(path)
    folder = path.parent
    first = load_work(source["workloads"], folder, str(path))
    later = [load_work(each.get("submit", ()), folder, str(path)) for each in source.get("timeline", ())]
    imported = sum((each.report for each in later), first.report)
    loaded = LoadedScenario(
        scenario,
        path,
        first.objects,
        [each.objects for each in later],
        imported,
        places=places((first, *later)),
    )
    _check_workloads(loaded, source, str(path))
    return loaded


def _check_workloads(loaded: LoadedScenario, source: Map, file: str) -> None:
    scenario, known = loaded.scenario, [each.meta.name for each in loaded.workloads]
    for name, strategy in scenario.strategies.items():
        check_names(name, strategy, known)
    for where, name in _named(scenario):
        if name not in known:
            line = _line(source, where)
            raise Invalid(f"there is no workload {name!r}", hint=did_you_mean(name, known), file=file, line=line)


def _named(scenario: Scenario) -> Iterator[tuple[tuple[str, int | str], str]]:
    yield from ((("usage", name), name) for name in scenario.usage if name != "default")
    for number, traffic in enumerate(scenario.traffic):
        yield ("traffic", number), traffic.source
        yield ("traffic", number), traffic.to
    for number, entry in enumerate(scenario.timeline):
        yield from ((("timeline", number), name) for _, name in entry.workloads)
    for number, each in enumerate(scenario.expect):
        told = (each.downtime_most, each.availability_least, each.instances)
        for name in (
            *each.running,
            *each.any_running,
            *each.apart,
            *(each.evicted or ()),
            *(name for every in told for name in every),
        ):
            yield ("expect", number), name


def _line(source: Map, where: tuple[str, int | str]) -> int:
    key, place = where
    part = source.get(key)
    lines = getattr(part, "lines", None)
    if isinstance(lines, dict | list):
        try:
            return int(lines[place])  # type: ignore[index]
        except (KeyError, IndexError):
            pass
    return source.lines.get(key, source.line)


def narrowed(loaded: LoadedScenario, names: Sequence[str]) -> LoadedScenario:
    """Return the scenario with only these strategies and their expectations."""
    plans = loaded.scenario.plans
    for name in names:
        if name not in plans:
            raise Invalid(f"there is no strategy {name!r}", hint=did_you_mean(name, plans))
    kept = [each for each in loaded.scenario.expect if not each.strategy or set(each.strategy) & set(names)]
    expect = tuple(
        msgspec.structs.replace(each, strategy=tuple(one for one in each.strategy if one in names)) for each in kept
    )
    strategies = {name: plans[name] for name in names}
    return replace(loaded, scenario=msgspec.structs.replace(loaded.scenario, strategies=strategies, expect=expect))


def run_all(
    loaded: LoadedScenario,
    seeds: Sequence[int],
    *,
    workers: int | None = None,
    progress: Progress = lambda done, of: None,
) -> list[RunResult]:
    """Run each strategy with each seed, in several processes; return the results in order of strategy and seed."""
    jobs = [(name, seed) for name in loaded.scenario.plans for seed in seeds]
    again = _repeated(loaded, seeds)
    total = len(jobs) + len(again)
    workers = min(workers or os.cpu_count() or 1, total)
    found: list[RunResult] = []
    if workers < 2 or total <= ALONE_MOST:
        for number, (name, seed) in enumerate((*jobs, *again), start=1):
            found.append(run_scenario(loaded, name, seed))
            progress(number, total)
    else:
        with _processes(loaded, workers) as pool:
            for number, result in enumerate(pool.imap(_one, (*jobs, *again), chunksize=1), start=1):
                found.append(msgspec.msgpack.decode(result, type=RunResult))
                progress(number, total)
    return _compared(found[: len(jobs)], found[len(jobs) :], loaded)


def _processes(loaded: LoadedScenario, workers: int) -> Pool:
    """Return a pool of forked processes, or of new processes that read the files again where fork is not safe."""
    if sys.platform == "linux" and threading.active_count() == 1:
        return multiprocessing.get_context("fork").Pool(workers, initializer=_begin, initargs=(lambda: loaded,))
    read = loaded.again or partial(load_scenario, loaded.path)
    again = partial(_narrowed_again, read, tuple(loaded.scenario.strategies))
    return multiprocessing.get_context("spawn").Pool(workers, initializer=_begin, initargs=(again,))


def _narrowed_again(read: Callable[[], LoadedScenario], strategies: tuple[str, ...]) -> LoadedScenario:
    return narrowed(read(), strategies) if strategies else read()


_loaded: LoadedScenario | None = None


def _begin(read: Callable[[], LoadedScenario]) -> None:
    global _loaded  # noqa: PLW0603 - a worker process runs one scenario
    logging.getLogger("mandor").setLevel(logging.CRITICAL)  # Simulated failures are not logged.
    _loaded = read()


def _one(job: tuple[str, int]) -> bytes:
    assert _loaded is not None
    return msgspec.msgpack.encode(run_scenario(_loaded, *job))


def _repeated(loaded: LoadedScenario, seeds: Sequence[int]) -> list[tuple[str, int]]:
    """Return the runs to repeat: one seed of each strategy with `same_placement`."""
    wanted = [each for each in loaded.scenario.expect if each.same_placement]
    names = {name for each in wanted for name in (each.strategy or loaded.scenario.plans)}
    return [(name, random.Random(len(seeds)).choice(list(seeds))) for name in loaded.scenario.plans if name in names]


def _compared(results: list[RunResult], again: Sequence[RunResult], loaded: LoadedScenario) -> list[RunResult]:
    title = next((each.title for each in loaded.scenario.expect if each.same_placement), "")
    for second in again:
        place = next(
            n for n, each in enumerate(results) if (each.strategy, each.seed) == (second.strategy, second.seed)
        )
        first = results[place]
        if first.digest != second.digest:
            message = "two runs of one seed came to two histories"
            failure = Failure(expectation=title, strategy=first.strategy, seed=first.seed, phase="", message=message)
            results[place] = msgspec.structs.replace(first, failures=(*first.failures, failure))
    return results
