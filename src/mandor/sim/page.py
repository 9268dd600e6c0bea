"""The report as one page that needs nothing else: tables, charts and a timeline, drawn here."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from mandor.lib.quantity import Seconds

COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#eeca3b", "#9d755d", "#bab0ac", "#ff9da6")
WIDTH = 1000
LEFT = 170
ROW = 16
NOTES_MOST = 400
ROWS_MOST = 80
NAMES_MOST = 20

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1200px; padding: 0 1rem; }
h1, h2, h3 { line-height: 1.2; } h2 { border-top: 1px solid var(--line); padding-top: 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1rem; }
td, th { padding: .2rem .6rem; text-align: left; vertical-align: top; }
th { font-weight: 600; } tr + tr td { border-top: 1px solid var(--soft); }
.bar { display: inline-block; background: var(--soft); width: 120px; height: .8em; }
.bar i { display: block; height: 100%; }
.good { color: #2a7d2a; } .bad { color: #c0392b; }
svg text { font: 11px system-ui, sans-serif; fill: currentColor; }
.key span { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }
details { margin: .5rem 0; } summary { cursor: pointer; }
"""


def make_page(report: dict[str, Any]) -> str:
    nodes = list(report["strategies"][0]["phases"][0]["nodes"])
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(nodes)}
    passed = report["passed"]
    verdict = "every expectation holds" if passed else f"{len(report['failures'])} broken expectations"
    body = [
        f"<h1>{escape(report['scenario'])}</h1><p>{escape(report['description'])}</p>",
        f"<p>{len(report['seeds'])} seeds, {len(report['strategies'])} strategies: "
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


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are HTML already."""
    head = "".join(f"<th>{escape(each)}</th>" for each in titles)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


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
        ("rules given up", "relaxed"),
    ):
        rows.append([title, *(f"{sum(phase[key]['median'] for phase in each['phases']):g}" for each in strategies)])
    for name in classes:
        cells = []
        for number, each in enumerate(strategies):
            seconds = each["downtime_by_class"].get(name, {"median": 0})["median"]
            cells.append(
                _bar(100 * seconds / most if most else 0, COLOURS[number % len(COLOURS)]) + f" {_time(seconds)}"
            )
        rows.append([f"down: {escape(name)}", *cells])
    return (
        "<h2>Side by side</h2><p>Medians over all seeds; downtime is summed over the workloads of a class.</p>"
        + _table(["", *(each["name"] for each in strategies)], rows)
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
    table = _table(["EXPECTATION", "STRATEGY", "SEED", "PHASE", "WHAT HAPPENED"], rows)
    return f"<h2>Broken expectations</h2><details open><summary>{len(failures)}</summary>{table}</details>"


def _imported(imported: dict[str, Any] | None) -> str:
    """What files of other tools say, and the work here does not."""
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
    table = _table(["WHERE", "KEY", "FATE", ""], rows) if rows else ""
    return f"<h2>Files of other tools</h2><details><summary>{told}</summary>{table}</details>"


def _replay(report: dict[str, Any], colours: dict[str, str]) -> str:
    """What really happened, and how far each strategy agrees with it."""
    replay = report["replay"]
    if replay is None:
        return ""
    rows = []
    for number, (name, each) in enumerate(replay["strategies"].items()):
        colour = COLOURS[number % len(COLOURS)]
        moved = "".join(
            f"<li>{escape('{instance} on {replayed} instead of {recorded}'.format(**other))}</li>"
            for other in each["elsewhere"]
        )
        told = f"<details><summary>{len(each['elsewhere'])}</summary><ul>{moved}</ul></details>" if moved else "0"
        shares = [each["same_node_percent"], each["same_count_percent"]]
        bars = [f"{_bar(share, colour)} {share:.0f} %" for share in shares]
        rows.append([escape(name), *bars, _time(each["replayed_seconds"]), told])
    really = next(iter(replay["strategies"].values()))["recorded_seconds"]
    rows.append(["really", "", "", _time(really), ""])
    notes = "".join(f"<p class=bad>{escape(note)}</p>" for note in replay["notes"])
    titles = ["STRATEGY", "SAME NODE", "SAME COUNT ON THE NODE", "INSTANCES RAN", "MOSTLY ELSEWHERE"]
    return (
        "<h2>Beside what really happened</h2><p>Shares of the time that instances really ran.</p>"
        + _table(titles, rows)
        + notes
        + _timeline({"stays": replay["stays"]}, report["phases"], colours)
    )


def _strategy(strategy: dict[str, Any], report: dict[str, Any], colours: dict[str, str]) -> str:
    parts = [f"<h2>Strategy {escape(strategy['name'])}</h2>", _phases(strategy), _nodes(strategy, colours)]
    seen = []
    for title, key in (("Typical", "typical"), ("Worst", "worst")):
        run = strategy[key]
        if run["seed"] in seen:
            continue
        seen.append(run["seed"])
        parts.append(f"<h3>{title} seed: {run['seed']}</h3>")
        parts.append(_timeline(run, report["phases"], colours))
        parts.append(_notes(run))
    return "".join(parts)


def _phases(strategy: dict[str, Any]) -> str:
    rows = []
    for phase in strategy["phases"]:
        reasons = "<br>".join(f"{count} × {escape(text)}" for text, count in phase["pending_reasons"].items())
        rules = "<br>".join(f"{count} × {escape(text)}" for text, count in phase["relaxed_rules"].items())
        crossing = phase["crossing_percent"]
        down = ", ".join(
            f"{escape(name)} {_time(each['median'])}"
            for name, each in phase["down_by_workload"].items()
            if each["median"]
        )
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
    return _table(
        ["PHASE", "PENDING", "PREEMPTED", "RULES GIVEN UP", "EVICTED", "CROSSING TRAFFIC", "DOWN (MEDIAN)"], rows
    )


def _nodes(strategy: dict[str, Any], colours: dict[str, str]) -> str:
    names = list(colours)
    rows = []
    for phase, typical in zip(strategy["phases"], strategy["typical"]["phases"], strict=True):
        cells = []
        for name in names:
            node = phase["nodes"][name]
            percent = node["memory_percent"]["median"]
            told = f" {percent:.0f} % (peak use {node['peak_percent']['most']:.0f} %)"
            there = f"<br><small>{_names(typical['nodes'][name]['instances'])}</small>"
            cells.append(_bar(percent, colours[name]) + told + there if node["ready_share"] else "down")
        rows.append([escape(phase["name"]), *cells])
    return "<h3>Memory requested, and who runs where in the typical seed</h3>" + _table(["PHASE", *names], rows)


def _timeline(run: dict[str, Any], phases: Sequence[dict[str, Any]], colours: dict[str, str]) -> str:
    """Instances as rows (workloads, if there are many), where they ran as colours, phases as lines."""
    end = phases[-1]["end_seconds"]
    by = "instance" if len({each["instance"] for each in run["stays"]}) <= ROWS_MOST else "workload"
    rows = sorted({each[by] for each in run["stays"]}, key=_natural)
    height = 30 + ROW * len(rows)
    scale = (WIDTH - LEFT) / end
    drawn = [f'<svg viewBox="0 0 {WIDTH} {height}" width="100%" role="img" aria-label="who ran where">']
    for number, phase in enumerate(phases):
        x = LEFT + phase["begin_seconds"] * scale
        drawn.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}" stroke="currentColor" stroke-opacity=".25"/>'
        )
        drawn.append(f'<text x="{x + 2:.1f}" y="{10 if number % 2 else 22}">{escape(phase["name"])}</text>')
    for number, name in enumerate(rows):
        drawn.append(f'<text x="0" y="{30 + ROW * number + 11}">{escape(name)}</text>')
    for stay in run["stays"]:
        x, width = LEFT + stay["begin"] * scale, max(0.5, (stay["end"] - stay["begin"]) * scale)
        y = 30 + ROW * rows.index(stay[by]) + 2
        told = escape(f"{stay['instance']} on {stay['node']}, {_time(stay['begin'])} to {_time(stay['end'])}")
        colour = colours.get(stay["node"], "#999")
        box = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 4}"'
        drawn.append(f'<rect {box} fill="{colour}"><title>{told}</title></rect>')
    drawn.append("</svg>")
    key = "".join(f'<span style="background:{colour}"></span>{escape(name)}' for name, colour in colours.items())
    return f'<p class="key">{key}</p>' + "".join(drawn)


def _notes(run: dict[str, Any]) -> str:
    notes = run["notes"][:NOTES_MOST]
    rows = [[_time(each["at"]), escape(each["kind"]), escape(each["text"])] for each in notes]
    return (
        f"<details><summary>What happened ({len(run['notes'])})</summary>{_table(['AT', 'WHAT', ''], rows)}</details>"
    )


def _names(instances: Sequence[str]) -> str:
    more = len(instances) - NAMES_MOST
    return escape(", ".join(instances[:NAMES_MOST]) + (f" and {more} more" if more > 0 else ""))


def _natural(name: str) -> tuple[str, int]:
    """`web-10` after `web-9`."""
    before, _, number = name.rpartition("-")
    return (before, int(number)) if number.isdecimal() else (name, -1)


def _bar(percent: float, colour: str) -> str:
    return f'<span class="bar"><i style="width:{max(0.0, min(100.0, percent)):.0f}%;background:{colour}"></i></span>'


def _range(values: dict[str, float]) -> str:
    least, most = values["least"], values["most"]
    return f"{least:g}" if least == most else f"{least:g}-{most:g}"


def _time(seconds: float) -> str:
    return str(Seconds(round(seconds)))
