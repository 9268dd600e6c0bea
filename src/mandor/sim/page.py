"""The report as one page that needs nothing else: tables, and the charts drawn beside it."""

from collections.abc import Sequence
from html import escape
from typing import Any

from mandor.lib.words import counted
from mandor.sim.chart import NAMES_MOST, bar, brief, colour, nodes_chart, shown_time, table, timeline

NOTES_MOST = 400

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1200px; padding: 0 1rem; }
h1, h2, h3 { line-height: 1.2; } h2 { border-top: 1px solid var(--line); padding-top: 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1rem; }
td, th { padding: .2rem .6rem; text-align: left; vertical-align: top; }
th { font-weight: 600; } tr + tr td { border-top: 1px solid var(--soft); }
.bar { display: inline-block; background: var(--soft); width: 120px; height: .8em; }
.bar i { display: block; height: 100%; }
.cell { display: block; padding: 0 .3rem; white-space: nowrap; }
.good { color: #2a7d2a; } .bad { color: #c0392b; }
svg text { font: 11px system-ui, sans-serif; fill: currentColor; }
.key span { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }
details { margin: .5rem 0; } summary { cursor: pointer; }
"""


def make_page(report: dict[str, Any]) -> str:
    nodes = list(report["strategies"][0]["phases"][0]["nodes"])
    colours = {name: colour(number) for number, name in enumerate(nodes)}
    passed = report["passed"]
    verdict = "every expectation holds" if passed else counted(len(report["failures"]), "broken expectation")
    body = [
        f"<h1>{escape(report['scenario'])}</h1><p>{escape(report['description'])}</p>",
        f"<p>{counted(len(report['seeds']), 'seed')}, {counted(len(report['strategies']), 'strategy', 'strategies')}: "
        f"<b class={'good' if passed else 'bad'}>{verdict}</b></p>",
        _comparison(report),
        _failures(report["failures"]),
        _imported(report["imported"]),
        _replay(report, colours),
        *(_strategy(each, report, colours) for each in report["strategies"]),
    ]
    title = escape(f"{report['scenario']}: simulated")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>{"".join(body)}</html>\n'
    )


def _comparison(report: dict[str, Any]) -> str:
    strategies = report["strategies"]
    classes = list(dict.fromkeys(name for each in strategies for name in each["downtime_by_class"]))
    most = max(
        (each["downtime_by_class"].get(name, {"median": 0})["median"] for each in strategies for name in classes),
        default=0,
    )
    rows = [["runs with broken expectations", *(f"{each['failed_runs']} of {each['runs']}" for each in strategies)]]
    for title, key in (
        ("pending at the end of phases", "pending"),
        ("preemptions", "preemptions"),
        ("evictions", "evictions"),
        ("relaxed rules", "relaxed"),
    ):
        rows.append([title, *(f"{sum(phase[key]['median'] for phase in each['phases']):g}" for each in strategies)])
    for name in classes:
        cells = []
        for number, each in enumerate(strategies):
            seconds = each["downtime_by_class"].get(name, {"median": 0})["median"]
            cells.append(bar(100 * seconds / most if most else 0, colour(number)) + f" {shown_time(seconds)}")
        rows.append([f"down: {escape(name)}", *cells])
    return (
        "<h2>Strategies</h2><p>Medians over all seeds; downtime is summed over the workloads of a class.</p>"
        + table(["", *(each["name"] for each in strategies)], rows)
    )


def _failures(failures: Sequence[dict[str, Any]]) -> str:
    if not failures:
        return ""
    rows = [
        [
            escape(each["expectation"]),
            escape(each["strategy"]),
            str(each["seed"]),
            escape(each["phase"]),
            escape(each["message"]),
        ]
        for each in failures[:NOTES_MOST]
    ]
    told = table(["EXPECTATION", "STRATEGY", "SEED", "PHASE", "MESSAGE"], rows)
    return f"<h2>Broken expectations</h2><details open><summary>{len(failures)}</summary>{told}</details>"


def _imported(imported: dict[str, Any] | None) -> str:
    """Return the section about keys of imported files that were not mapped."""
    if imported is None:
        return ""
    rows = [
        [
            escape(f"{each['file']}:{each['line']}"),
            escape(each["path"]),
            escape(each["fate"]),
            escape(each["text"]),
        ]
        for each in imported["notes"][:NOTES_MOST]
    ]
    told = f"{imported['mapped']} of {imported['mapped'] + imported['dropped']} keys mapped"
    notes = table(["FILE", "KEY", "RESULT", "MESSAGE"], rows) if rows else ""
    return f"<h2>Imported files</h2><details><summary>{told}</summary>{notes}</details>"


def _replay(report: dict[str, Any], colours: dict[str, str]) -> str:
    """Return the section that compares the recording with each strategy."""
    replay = report["replay"]
    if replay is None:
        return ""
    rows = []
    for number, (name, each) in enumerate(replay["strategies"].items()):
        shade = colour(number)
        moved = "".join(
            f"<li>{escape('{instance} on {replayed} instead of {recorded}'.format(**other))}</li>"
            for other in each["elsewhere"]
        )
        told = f"<details><summary>{len(each['elsewhere'])}</summary><ul>{moved}</ul></details>" if moved else "0"
        shares = [each["same_node_percent"], each["same_count_percent"]]
        bars = [f"{bar(share, shade)} {share:.0f} %" for share in shares]
        rows.append([escape(name), *bars, shown_time(each["replayed_seconds"]), told])
    really = next(iter(replay["strategies"].values()))["recorded_seconds"]
    rows.append(["recorded", "", "", shown_time(really), ""])
    notes = "".join(f"<p class=bad>{escape(note)}</p>" for note in replay["notes"])
    titles = ["STRATEGY", "SAME NODE", "SAME COUNT ON THE NODE", "INSTANCES RAN", "MOSTLY ON ANOTHER NODE"]
    return (
        "<h2>Comparison with the recording</h2><p>Shares of the time for which instances ran in the recording.</p>"
        + table(titles, rows)
        + notes
        + timeline(replay["stays"], report["phases"], colours)
    )


def _strategy(strategy: dict[str, Any], report: dict[str, Any], colours: dict[str, str]) -> str:
    parts = [f"<h2>Strategy {escape(strategy['name'])}</h2>", _phases(strategy), nodes_chart(strategy, colours)]
    seen = []
    for title, key in (("Typical", "typical"), ("Worst", "worst")):
        run = strategy[key]
        if run["seed"] in seen:
            continue
        seen.append(run["seed"])
        parts.append(f"<h3>{title} seed: {run['seed']}</h3>")
        parts.append(timeline(run["stays"], report["phases"], colours))
        parts.append(_notes(run))
    return "".join(parts)


def _phases(strategy: dict[str, Any]) -> str:
    rows = []
    for phase in strategy["phases"]:
        reasons = "<br>".join(f"{count} × {escape(text)}" for text, count in phase["pending_reasons"].items())
        rules = "<br>".join(f"{count} × {escape(text)}" for text, count in phase["relaxed_rules"].items())
        crossing = phase["crossing_percent"]
        times = {name: each["median"] for name, each in phase["down_by_workload"].items() if each["median"]}
        longest = dict(sorted(times.items(), key=lambda item: -item[1])) if len(times) > NAMES_MOST else times
        down = escape(brief([f"{name} {shown_time(seconds)}" for name, seconds in longest.items()]))
        rows.append(
            [
                f"<b>{escape(phase['name'])}</b>",
                _range(phase["pending"]) + (f"<details><summary>why</summary>{reasons}</details>" if reasons else ""),
                _range(phase["preemptions"])
                + (f", chain {phase['cascade_most']}" if phase["cascade_most"] > 1 else ""),
                _range(phase["relaxed"]) + (f"<details><summary>which</summary>{rules}</details>" if rules else ""),
                _range(phase["evictions"]),
                "-" if crossing is None else f"{crossing['median']:.0f} %",
                down or "-",
            ]
        )
    return table(
        ["PHASE", "PENDING", "PREEMPTED", "RELAXED RULES", "EVICTED", "CROSSING TRAFFIC", "DOWN (MEDIAN)"], rows
    )


def _notes(run: dict[str, Any]) -> str:
    notes = run["notes"][:NOTES_MOST]
    rows = [[shown_time(each["at"]), escape(each["kind"]), escape(each["text"])] for each in notes]
    return (
        f"<details><summary>Timeline ({len(run['notes'])})</summary>{table(['AT', 'KIND', 'MESSAGE'], rows)}</details>"
    )


def _range(values: dict[str, float]) -> str:
    least, most = values["least"], values["most"]
    return f"{least:g}" if least == most else f"{least:g}-{most:g}"
