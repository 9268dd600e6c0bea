"""Charts of the HTML report: where instances ran as a timeline, memory of nodes as bars or shades."""

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from mandor.lib.quantity import Seconds

COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#eeca3b", "#9d755d", "#bab0ac", "#ff9da6")
WIDTH = 1000
LEFT = 170
TOP = 30
ROW = 16
ROWS_MOST = 80
LABEL_MOST = 28
"""Characters that fit to the left of the rows."""
NAMES_MOST = 20
BESIDE_MOST = 6
"""Nodes that fit in columns, with the names of their instances."""
NODES_MOST = 200


def colour(number: int) -> str:
    """Return a colour of the palette, then generated hues that differ from the previous ones."""
    return COLOURS[number] if number < len(COLOURS) else f"hsl({number * 137.5 % 360:.0f} 55% 55%)"


def bar(percent: float, shade: str) -> str:
    return f'<span class="bar"><i style="width:{max(0.0, min(100.0, percent)):.0f}%;background:{shade}"></i></span>'


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table; cells are HTML already."""
    head = "".join(f"<th>{escape(each)}</th>" for each in titles)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def shown_time(seconds: float) -> str:
    return str(Seconds(round(seconds)))


def brief(names: Sequence[str]) -> str:
    more = len(names) - NAMES_MOST
    return ", ".join(names[:NAMES_MOST]) + (f" and {more} more" if more > 0 else "")


def nodes_chart(strategy: dict[str, Any], colours: dict[str, str]) -> str:
    draw = _columns if len(colours) <= BESIDE_MOST else _shades
    return "<h3>Requested memory and running instances, in the typical seed</h3>" + draw(strategy, colours)


def _columns(strategy: dict[str, Any], colours: dict[str, str]) -> str:
    rows = []
    for phase, typical in zip(strategy["phases"], strategy["typical"]["phases"], strict=True):
        cells = []
        for name, shade in colours.items():
            node, peak = typical["nodes"][name], phase["nodes"][name]["peak_percent"]["most"]
            told = f" {node['memory_percent']:.0f} % (peak use {peak:.0f} %)"
            there = f"<br><small>{escape(brief(node['instances']))}</small>"
            cells.append(bar(node["memory_percent"], shade) + told + there if node["ready"] else "down")
        rows.append([escape(phase["name"]), *cells])
    return table(["PHASE", *colours], rows)


def _shades(strategy: dict[str, Any], colours: dict[str, str]) -> str:
    """Return a row per node with a cell per phase; fuller nodes are darker."""
    phases = strategy["typical"]["phases"]
    rows = []
    for name in list(colours)[:NODES_MOST]:
        cells = []
        for phase in phases:
            node = phase["nodes"][name]
            share = max(0.0, min(100.0, node["memory_percent"]))
            told = f"{share:.0f} % · {len(node['instances'])}" if node["ready"] else "down"
            title = escape(brief(node["instances"]) or "nothing runs here")
            shade = f"rgba(76,120,168,{share / 125:.2f})" if node["ready"] else "rgba(228,87,86,.35)"
            cells.append(f'<span class="cell" title="{title}" style="background:{shade}">{told}</span>')
        rows.append([escape(name), *cells])
    more = len(colours) - len(rows)
    left_out = f"<p>{more} more nodes are not shown; `-o json` lists them.</p>" if more > 0 else ""
    key = "<p>Share of the memory and number of instances; point at a cell for their names.</p>"
    return key + table(["NODE", *(phase["name"] for phase in phases)], rows) + left_out


def timeline(stays: Sequence[dict[str, Any]], phases: Sequence[dict[str, Any]], colours: dict[str, str]) -> str:
    """Return the timeline: a row per instance, coloured by node; if there are many, a row per workload."""
    many = len({each["instance"] for each in stays}) > ROWS_MOST
    rows = sorted({each["workload" if many else "instance"] for each in stays}, key=_natural)
    more = len(rows) - ROWS_MOST
    rows = rows[:ROWS_MOST]
    height = TOP + ROW * len(rows)
    end = phases[-1]["end_seconds"]
    scale = (WIDTH - LEFT) / end
    drawn = [f'<svg viewBox="0 0 {WIDTH} {height}" width="100%" role="img" aria-label="nodes on which instances ran">']
    for number, phase in enumerate(phases):
        x = LEFT + phase["begin_seconds"] * scale
        drawn.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}" stroke="currentColor" stroke-opacity=".25"/>'
        )
        drawn.append(f'<text x="{x + 2:.1f}" y="{10 if number % 2 else 22}">{escape(phase["name"])}</text>')
    for number, name in enumerate(rows):
        drawn.append(f'<text x="0" y="{TOP + ROW * number + 11}">{_label(name)}</text>')
    places = {name: TOP + ROW * number + 2 for number, name in enumerate(rows)}
    drawn += _counts(stays, places, scale, end) if many else _boxes(stays, places, scale, colours)
    drawn.append("</svg>")
    left_out = f"<p>{more} more workloads are not shown; `-o json` lists them.</p>" if more > 0 else ""
    return (_counts_key() if many else _nodes_key(colours)) + "".join(drawn) + left_out


def _boxes(
    stays: Sequence[dict[str, Any]], places: dict[str, int], scale: float, colours: dict[str, str]
) -> Iterable[str]:
    for stay in stays:
        x, width = LEFT + stay["begin"] * scale, max(0.5, (stay["end"] - stay["begin"]) * scale)
        told = escape(f"{stay['instance']} on {stay['node']}, {shown_time(stay['begin'])} to {shown_time(stay['end'])}")
        box = f'x="{x:.1f}" y="{places[stay["instance"]]}" width="{width:.1f}" height="{ROW - 4}"'
        yield f'<rect {box} fill="{colours.get(stay["node"], "#999")}"><title>{told}</title></rect>'


def _counts(stays: Sequence[dict[str, Any]], places: dict[str, int], scale: float, end: float) -> Iterable[str]:
    """Yield a step chart per workload, scaled to its maximum."""
    changes: dict[str, Counter[float]] = {name: Counter() for name in places}
    for stay in stays:
        if (found := changes.get(stay["workload"])) is not None:
            found[stay["begin"]] += 1
            if stay["end"] < end:
                found[stay["end"]] -= 1
    for name, y in places.items():
        steps, running = [], 0
        for at in sorted(changes[name]):
            running += changes[name][at]
            steps.append((at, running))
        most = max((count for _, count in steps), default=0) or 1
        foot = y + ROW - 4
        path = f"M{LEFT},{foot}" + "".join(
            f"H{LEFT + at * scale:.1f}V{foot - (ROW - 4) * count / most:.1f}" for at, count in steps
        )
        told = escape(f"{name}: at most {most}, {running} at the end")
        line = f"{path}H{LEFT + end * scale:.1f}V{foot}Z"
        yield f'<path d="{line}" fill="{COLOURS[0]}"><title>{told}</title></path>'


def _counts_key() -> str:
    return "<p>Running instances of each workload, relative to its maximum.</p>"


def _nodes_key(colours: dict[str, str]) -> str:
    key = "".join(f'<span style="background:{shade}"></span>{escape(name)}' for name, shade in colours.items())
    return f'<p class="key">{key}</p>'


def _label(name: str) -> str:
    if len(name) <= LABEL_MOST:
        return escape(name)
    return f"{escape(name[: LABEL_MOST - 1])}…<title>{escape(name)}</title>"


def _natural(name: str) -> tuple[str, int]:
    """`web-10` after `web-9`."""
    before, _, number = name.rpartition("-")
    return (before, int(number)) if number.isdecimal() else (name, -1)
