"""`mandor simulate`: simulates a scenario before anything is deployed."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mandor.cli.importing import show_report
from mandor.cli.options import output_option
from mandor.cli.output import show_json, show_table
from mandor.cli.progress import BAR, Bar
from mandor.errors import Invalid
from mandor.lib.words import counted

if TYPE_CHECKING:
    from mandor.sim.run import LoadedScenario

TEXTS_MOST = 12
LINES_MOST = 40
NODES_MOST = 40
SEEDS = 20
"""Default number of seeds with --faults."""


@click.command("simulate")
@click.argument("file", metavar="[SCENARIO]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--replay", metavar="FILE", type=click.Path(path_type=Path), help="Recording to replay, instead of a scenario."
)
@click.option("--plugins", metavar="DIR", type=click.Path(path_type=Path), help="With --replay: scheduler plugins.")
@click.option(
    "--seeds", type=click.IntRange(1, 10_000), help="Number of runs of each strategy.  [default: that of the scenario]"
)
@click.option("--seed", type=click.IntRange(0), help="Run only this seed, for example to reproduce a failure.")
@click.option("--strategy", "wanted", multiple=True, help="Run only this strategy; repeatable.")
@click.option(
    "--html", "page", metavar="FILE", type=click.Path(path_type=Path), help="Write the report as an HTML page."
)
@click.option("--workers", type=click.IntRange(1, 256), help="Number of processes.  [default: one per CPU]")
@click.option("--faults", is_flag=True, help="Inject faults derived from the seed, and check the invariants.")
@click.option("--from", "first", type=click.IntRange(0), default=0, help="With --faults: first seed.")
@click.option("--profile", metavar="FILE", default="", help="Scheduler configuration, with --replay or --faults.")
@click.option("--history", is_flag=True, help="With --faults: show the full history.")
@click.option("--strict", is_flag=True, help="Fail if a key of another tool's file cannot be imported.")
@output_option("table", "json")
def simulate_command(
    file: Path | None,
    replay: Path | None,
    plugins: Path | None,
    seeds: int | None,
    seed: int | None,
    wanted: tuple[str, ...],
    page: Path | None,
    workers: int | None,
    faults: bool,
    first: int,
    profile: str,
    history: bool,
    strict: bool,
    output: str,
) -> int:
    """Simulate a scenario on a virtual clock, with the real scheduler, controllers and agents on simulated machines.

    SCENARIO defines nodes, workloads, a timeline, strategies to compare, and expectations. Each seed submits the
    workloads in another order; the same seed always gives the same history.

    With --replay, a recording of a live cluster (`mandor server --record FILE`) is the scenario: the same machines and
    workloads, with the recorded scheduler configuration and, with --profile, with another one. The report shows how far
    the replay agrees with the recording.

    With --faults, machines and agents crash, messages are lost, delayed and repeated, the control plane fails over and
    clocks jump. Instead of expectations, invariants are checked, and the cluster must settle once the faults stop.
    Without SCENARIO, each seed generates a cluster of its own.

    The exit status is 1 if an expectation or an invariant is violated.
    """
    if seed is not None and seeds is not None:
        raise click.UsageError("--seed and --seeds cannot be combined")
    if faults:
        if replay is not None:
            raise click.UsageError("--replay cannot be combined with --faults")
        return _with_faults(file, seeds, seed, wanted, page, workers, first, profile, history, output)
    if first or history:
        raise click.UsageError("--from and --history require --faults")
    from mandor.lib.logs import silence
    from mandor.sim.compare import narrowed, run_all
    from mandor.sim.report import make_report

    if page is not None and not page.parent.is_dir():
        raise Invalid(f"cannot write {page}: the directory {page.parent} does not exist")
    loaded = _load(file, replay, profile, plugins)
    loaded = narrowed(loaded, wanted) if wanted else loaded
    show_report(loaded.imported, strict=strict)
    chosen = [seed] if seed is not None else list(range(seeds or loaded.scenario.seeds))
    with Bar() as bar, silence():  # Errors in the simulation are part of the report.
        results = run_all(loaded, chosen, workers=workers, progress=bar.show)
    report = make_report(loaded, results, chosen)
    if output == "json":
        show_json(report)
    else:
        _show(report)
    _print_failures(report, loaded.path)
    if page is not None:
        _write_page(report, page)
    return 0 if report["passed"] else 1


def _write_page(report: dict[str, Any], page: Path) -> None:
    from mandor.sim.page import make_page

    try:
        page.write_text(make_page(report), encoding="utf-8")
    except OSError as error:
        raise Invalid(f"cannot write {page}: {(error.strerror or str(error)).lower()}") from error
    click.echo(f"wrote the report to {page}", err=True)


def _load(file: Path | None, replay: Path | None, profile: str, plugins: Path | None) -> "LoadedScenario":
    if (file is None) == (replay is None):
        raise click.UsageError("give a SCENARIO, --replay FILE or --faults")
    if file is not None:
        if profile or plugins is not None:
            raise click.UsageError("--profile and --plugins require --replay; a scenario defines `strategies`")
        from mandor.sim.compare import load_scenario

        return load_scenario(file)
    from mandor.sim.replay import load_replay

    assert replay is not None
    return load_replay(replay, Path(profile) if profile else None, plugins)


def _with_faults(
    file: Path | None,
    seeds: int | None,
    seed: int | None,
    wanted: tuple[str, ...],
    page: Path | None,
    workers: int | None,
    first: int,
    profile: str,
    history: bool,
    output: str,
) -> int:
    from mandor.cli.fault_runs import try_seeds
    from mandor.sim.fault_runs import FaultRunSource

    if page is not None:
        raise click.UsageError("--html cannot be combined with --faults")
    if file is None and wanted:
        raise click.UsageError("--strategy requires a SCENARIO")
    if file is not None and profile:
        raise click.UsageError(
            "--profile is only for generated clusters; a SCENARIO defines its own under `strategies`"
        )
    source = FaultRunSource(path=file, strategies=wanted, profile=profile)
    chosen = [seed] if seed is not None else list(range(first, first + (seeds or SEEDS)))
    return 0 if try_seeds(source, chosen, workers=workers, history=history, output=output) else 1


# Tables.


def _show(report: dict[str, Any]) -> None:
    seeds, phases = counted(len(report["seeds"]), "seed"), counted(len(report["phases"]), "phase")
    click.echo(f"{report['scenario']}: {seeds}, {phases}")
    for strategy in report["strategies"]:
        click.echo()
        click.echo(click.style(f"Strategy {strategy['name']}", bold=True))
        _show_phases(strategy)
        _show_nodes(strategy)
        _show_texts(strategy)
    if len(report["strategies"]) > 1:
        _show_comparison(report)
    elif (only := report["strategies"][0])["runs"] > 1:
        click.echo(f"\nworst seed {only['worst_seed']}, typical seed {only['typical_seed']}")
    if report["replay"] is not None:
        _show_replay(report["replay"])


def _show_phases(strategy: dict[str, Any]) -> None:
    rows = [
        (
            phase["name"],
            _range(phase["pending"]),
            _range(phase["preemptions"]),
            str(phase["cascade_most"]),
            _range(phase["relaxed"]),
            _range(phase["evictions"]),
            _seconds(phase["down_seconds"]["median"]),
            "-" if phase["crossing_percent"] is None else f"{phase['crossing_percent']['median']:.0f} %",
        )
        for phase in strategy["phases"]
    ]
    show_table(("PHASE", "PENDING", "PREEMPTED", "CHAIN", "RELAXED", "EVICTED", "DOWN", "CROSSING"), rows)


def _show_nodes(strategy: dict[str, Any]) -> None:
    click.echo()
    rows = []
    typical = {phase["name"]: phase for phase in strategy["typical"]["phases"]}
    for phase in strategy["phases"]:
        for number, (name, over_all) in enumerate(list(phase["nodes"].items())[:NODES_MOST]):
            node = typical[phase["name"]]["nodes"][name]
            percent = node["memory_percent"]
            state = bar(percent) + f" {percent:3.0f} %" if node["ready"] else "down"
            title = phase["name"] if number == 0 else ""
            peak = f"{over_all['peak_percent']['most']:.0f} %"
            rows.append((title, name, state, peak, _brief(node["instances"])))
        if (more := len(phase["nodes"]) - NODES_MOST) > 0:
            rows.append(("", f"… and {more} more", "see -o json", "", ""))
    if strategy["runs"] > 1:
        click.echo(f"Nodes in the typical seed {strategy['typical_seed']}; the peak is over all seeds:")
    show_table(("PHASE", "NODE", "MEMORY REQUESTED", "PEAK USE", "INSTANCES"), rows)


def _brief(names: list[str]) -> str:
    shown = ", ".join(names[:TEXTS_MOST])
    return shown + (f" and {len(names) - TEXTS_MOST} more" if len(names) > TEXTS_MOST else "") or "-"


def _show_texts(strategy: dict[str, Any]) -> None:
    lines = []
    for phase in strategy["phases"]:
        lines += [
            f"{phase['name']}: pending in {counted(count, 'case')}: {text}"
            for text, count in phase["pending_reasons"].items()
        ]
        lines += [
            f"{phase['name']}: {counted(count, 'time')} without `{rule}`"
            for rule, count in phase["relaxed_rules"].items()
        ]
        down = [
            f"{name} {_seconds(each['median'])}"
            for name, each in phase["down_by_workload"].items()
            if each["median"] >= 1
        ]
        lines += [f"{phase['name']}: down: {_brief(down)}"] if down else []
    for phase in strategy["typical"]["phases"]:
        lines += [
            f"{phase['name']}: {each['victim']} preempted by {each['by']} on {each['node']} (chain of {each['depth']})"
            for each in phase["preemptions"][:TEXTS_MOST]
        ]
    if lines:
        click.echo()
    for line in lines[:LINES_MOST]:
        click.echo(line)
    if len(lines) > LINES_MOST:
        click.echo(f"… and {len(lines) - LINES_MOST} more lines: use -o json or --html for all")


def _show_comparison(report: dict[str, Any]) -> None:
    click.echo()
    click.echo(click.style("Comparison", bold=True))
    strategies = report["strategies"]
    classes = list(dict.fromkeys(name for each in strategies for name in each["downtime_by_class"]))
    rows = [("runs with violated expectations", *(f"{each['failed_runs']} of {each['runs']}" for each in strategies))]
    for title, key in (("preemptions", "preemptions"), ("evictions", "evictions"), ("relaxed rules", "relaxed")):
        rows.append((title, *(f"{sum(phase[key]['median'] for phase in each['phases']):g}" for each in strategies)))
    for name in classes:
        down = [each["downtime_by_class"].get(name, {"median": 0})["median"] for each in strategies]
        rows.append((f"down: {name}", *(_seconds(each) for each in down)))
    rows.append(("worst seed", *(str(each["worst_seed"]) for each in strategies)))
    rows.append(("typical seed", *(str(each["typical_seed"]) for each in strategies)))
    show_table(("", *(each["name"] for each in strategies)), rows)


def _show_replay(replay: dict[str, Any]) -> None:
    click.echo()
    click.echo(click.style("Comparison with the recording", bold=True))
    rows = [
        (
            name,
            f"{each['same_node_percent']:.0f} %",
            f"{each['same_count_percent']:.0f} %",
            _seconds(each["replayed_seconds"]),
        )
        for name, each in replay["strategies"].items()
    ]
    really = next(iter(replay["strategies"].values()))["recorded_seconds"]
    rows.append(("recorded", "", "", _seconds(really)))
    show_table(("STRATEGY", "SAME NODE", "SAME COUNT ON THE NODE", "INSTANCES RAN"), rows)
    for name, each in replay["strategies"].items():
        for other in each["elsewhere"][:TEXTS_MOST]:
            click.echo(f"{name}: {other['instance']} on {other['replayed']} instead of {other['recorded']}")
    for note in replay["notes"]:
        click.echo(f"{click.style('note:', fg='yellow', bold=True)} {note}", err=True)


def _print_failures(report: dict[str, Any], file: Path) -> None:
    grouped: dict[str, list[dict[str, Any]]] = {}
    for each in report["failures"]:
        grouped.setdefault(each["expectation"], []).append(each)
    for title, failures in grouped.items():
        first = failures[0]
        seeds = len({(each["strategy"], each["seed"]) for each in failures})
        where = f"{first['phase']}: " if first["phase"] else ""
        click.echo(f"{click.style('violated:', fg='red', bold=True)} {title} ({counted(seeds, 'run')})", err=True)
        click.echo(f"  {where}{first['message']}", err=True)
        words = ("mandor", "simulate", str(file), "--strategy", first["strategy"], "--seed", str(first["seed"]))
        again = shlex.join(words)
        click.echo(f"  repeat: {again}", err=True)


def bar(percent: float, width: int = BAR) -> str:
    filled = max(0, min(width, round(percent * width / 100)))
    return "█" * filled + "░" * (width - filled)


def _range(values: dict[str, float]) -> str:
    least, most = values["least"], values["most"]
    return f"{least:g}" if least == most else f"{least:g}-{most:g}"


def _seconds(value: float) -> str:
    from mandor.lib.quantity import Seconds

    return str(Seconds(round(value)))
