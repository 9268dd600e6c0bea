"""Output of `mandor simulate --faults`."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from mandor.cli.output import show_json
from mandor.cli.progress import Bar
from mandor.lib.logs import silence
from mandor.lib.quantity import Seconds
from mandor.lib.words import counted
from mandor.sim.fault_run import FaultRunResult
from mandor.sim.fault_runs import FaultRunSource, run_all_with_faults

BROKEN_MOST = 5


def try_seeds(source: FaultRunSource, seeds: Sequence[int], *, workers: int | None, history: bool, output: str) -> bool:
    """Run the seeds and show the results; returns whether all invariants held."""
    results: list[FaultRunResult] = []
    with Bar() as bar, silence():  # Errors are expected here: faults are injected.
        total = len(seeds) * len(source.load(seeds[0]).scenario.plans)
        for each in run_all_with_faults(source, seeds, workers=workers, story=history):
            results.append(each)
            bar.show(len(results), total)
    broken = [each for each in results if each.broken]
    if output == "json":
        show_json(_report(results, history=history))
    else:
        _show(results, history=history)
    for each in broken[:BROKEN_MOST]:
        _print_failure(each, source, many=len({one.strategy for one in results}) > 1)
    if len(broken) > BROKEN_MOST:
        click.echo(f"and {len(broken) - BROKEN_MOST} more", err=True)
    return not broken


def _show(results: Sequence[FaultRunResult], *, history: bool) -> None:
    if history:
        for result in results:
            for note in result.notes:
                click.echo(f"{note.at:10.3f}  {note.kind:<11} {note.text}")
    broken = sum(bool(each.broken) for each in results)
    rest = sorted(each.seconds for each in results if not each.broken)
    changes = sum(each.changes for each in results)
    said = f"{counted(len(results), 'run')}, {counted(changes, 'change')}: {broken} broken"
    if rest:
        said += f"; settled after {Seconds(round(rest[len(rest) // 2]))}, at most {Seconds(round(rest[-1]))}"
    click.echo(said)


def _report(results: Sequence[FaultRunResult], *, history: bool) -> dict[str, Any]:
    return {
        "passed": not any(each.broken for each in results),
        "items": [
            {
                "seed": each.seed,
                "strategy": each.strategy,
                "digest": each.digest,
                "changes": each.changes,
                "seconds": each.seconds,
                "broken": list(each.broken),
                **(
                    {"history": [{"at": note.at, "kind": note.kind, "text": note.text} for note in each.notes]}
                    if history
                    else {}
                ),
            }
            for each in results
        ],
    }


def _print_failure(result: FaultRunResult, source: FaultRunSource, *, many: bool) -> None:
    where = f"seed {result.seed}" + (f", {result.strategy}" if many else "")
    click.echo(f"{click.style('broken:', fg='red', bold=True)} {where}, at {Seconds(round(result.seconds))}", err=True)
    for text in result.broken[:BROKEN_MOST]:
        click.echo(f"  {text}", err=True)
    click.echo(f"  repeat: {again(source, result, many=many)}", err=True)


def again(source: FaultRunSource, result: FaultRunResult, *, many: bool = False) -> str:
    """Return the command that repeats the run with its full history."""
    words: list[str | Path] = ["mandor", "simulate"]
    words += [source.path] if source.path is not None else []
    words += ["--faults", "--seed", str(result.seed), "--history"]
    words += ["--strategy", result.strategy] if many else []
    words += ["--profile", source.profile] if source.profile else []
    return shlex.join(map(str, words))
