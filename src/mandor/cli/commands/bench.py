"""`mandor bench`: measures the scheduler with cases in the format of Kubernetes' scheduler_perf."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mandor.cli.options import output_option, seconds
from mandor.cli.output import show_json, show_table

if TYPE_CHECKING:
    from mandor.bench.scenario import Case


@click.command("bench")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--case", "wanted", metavar="NAME/WORKLOAD", help="The case to run.  [default: list all cases]")
@click.option(
    "--store",
    type=click.Choice(["memory", "sqlite", "etcd"]),
    default="memory",
    show_default=True,
    help="Store used for the run; deleted afterwards.",
)
@click.option(
    "--etcd", metavar="HOST:PORT[,…]", default="", help="Address of a running etcd.  [default: start one for this run]"
)
@click.option(
    "--profile", type=click.Path(path_type=Path), help="Scheduler configuration.  [default: that of the case]"
)
@click.option("--lenient", is_flag=True, help="Skip unsupported parts of the case with a note, instead of failing.")
@click.option("--timeout", default="10m", show_default=True, help="Time limit of the run.")
@output_option("table", "json")
def bench_command(
    file: Path,
    wanted: str | None,
    store: str,
    etcd: str,
    profile: Path | None,
    lenient: bool,
    timeout: str,
    output: str,
) -> None:
    """Measure scheduling throughput and latency.

    FILE is a list of test cases in the format of Kubernetes' scheduler_perf (performance-config.yaml). The case runs in
    this process, with the real scheduler and without agents. Throughput is sampled once a second, or twenty times in a
    run of less than five seconds.
    """
    from mandor.bench.scenario import find_case, read_cases

    limit = seconds(timeout)
    cases = read_cases(file)
    if wanted is None:
        _show_cases(cases, output)
        return
    case, workload = find_case(cases, wanted)
    from mandor.bench.run import run_case

    results = run_case(
        case,
        workload,
        home=store,
        etcd=etcd,
        profile=profile,
        lenient=lenient,
        seconds=limit,
        say=lambda text: click.echo(text, err=True),
    )
    if output == "json":
        show_json(results)
    else:
        _show_results(results)


def _show_cases(cases: "list[Case]", output: str) -> None:
    items: list[dict[str, Any]] = [
        {
            "case": f"{case.name}/{workload.name}",
            "labels": list(workload.labels),
            "threshold": workload.threshold,
            "params": dict(workload.params),
        }
        for case in cases
        for workload in case.workloads
    ]
    if output == "json":
        show_json({"items": items})
        return
    rows = [(str(each["case"]), ", ".join(each["labels"]), _params(each["params"])) for each in items]
    show_table(("CASE", "LABELS", "PARAMETERS"), rows)


def _params(params: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in params.items())


def _show_results(results: dict[str, Any]) -> None:
    """Print the results as a table of a few lines."""
    speed, decision, waited = results["throughput"], results["decision_ms"], results["bound_after_ms"]
    rows = [
        ("case", f"{results['case']} on {results['store']}"),
        ("bound", f"{results['bound']:,} in {results['seconds']:,.2f} s, on {results['nodes']:,} nodes"),
        ("throughput", _each(speed, "/s", "average", "p50", "p90", "p99") + f" (every {speed['sample_seconds']:g} s)"),
        ("decision", _each(decision, " ms", "p50", "p90", "p99")),
        ("created to bound", _each(waited, " ms", "p50", "p90", "p99")),
        ("CPU", f"{results['cpu_seconds']:,.2f} s, {results['bound_per_cpu_second']:,.0f} bound per CPU second"),
        ("memory", f"{results['memory_peak_bytes'] / 2**20:,.0f} MiB peak"),
    ]
    if results["threshold"]:
        rows.append(("Kubernetes' threshold", f"{results['threshold']:,.0f}/s"))
    show_table(("", results["case"].partition("/")[0]), rows)
    for note in results["notes"]:
        click.echo(f"skipped: {note}", err=True)


def _each(values: dict[str, float], unit: str, *names: str) -> str:
    shown = {name: f"{values[name]:,.4g}" if values[name] < 100 else f"{values[name]:,.0f}" for name in names}
    return ", ".join(f"{name} {value}{unit}" for name, value in shown.items())
