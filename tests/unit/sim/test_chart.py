"""Charts of the report's page: of a few nodes and instances each is drawn, of many they are summed up."""

from __future__ import annotations

from typing import Any

from mandor.sim.chart import BESIDE_MOST, LEFT, NODES_MOST, ROWS_MOST, WIDTH, colour, nodes_chart, timeline

PHASES = [{"name": "all", "begin_seconds": 0.0, "end_seconds": 100.0}]


def strategy(nodes: int, *, typical: float, median: float) -> dict[str, Any]:
    over_all = {"memory_percent": {"median": median}, "peak_percent": {"most": 99.0}}
    one = {"ready": True, "memory_percent": typical, "instances": ["<web>-0"]}
    names = [f"n{number}" for number in range(nodes)]
    return {
        "phases": [{"name": "all", "nodes": dict.fromkeys(names, over_all)}],
        "typical": {"phases": [{"name": "all", "nodes": dict.fromkeys(names, one)}]},
    }


def colours(nodes: int) -> dict[str, str]:
    return {f"n{number}": colour(number) for number in range(nodes)}


def stay(instance: str, node: str, begin: float, end: float) -> dict[str, Any]:
    return {
        "workload": instance.rpartition("-")[0],
        "instance": instance,
        "node": node,
        "begin": begin,
        "end": end,
    }


def test_shares_are_of_the_seed_whose_instances_are_named() -> None:
    for nodes in (2, BESIDE_MOST + 1):
        shown = nodes_chart(strategy(nodes, typical=20, median=62), colours(nodes))
        assert "20 %" in shown
        assert "62 %" not in shown
        assert "&lt;web&gt;-0" in shown


def test_many_nodes_are_rows_and_those_without_one_are_counted() -> None:
    shown = nodes_chart(strategy(NODES_MOST + 5, typical=20, median=20), colours(NODES_MOST + 5))
    assert shown.count("<tr>") == NODES_MOST + 1
    assert "<th>NODE</th><th>all</th>" in shown
    assert "5 more nodes are not shown" in shown


def test_a_few_instances_are_drawn_where_they_ran() -> None:
    shown = timeline([stay("web-0", "n0", 0, 50), stay("web-0", "n1", 50, 100)], PHASES, colours(2))
    assert shown.count("<rect") == 2
    assert f'width="{(WIDTH - LEFT) / 2:.1f}"' in shown
    assert "web-0 on n1, 50s to 1m40s" in shown


def test_of_many_instances_it_is_drawn_how_many_ran() -> None:
    stays = [stay(f"web-{number}", "n0", 0, 100 if number % 2 else 50) for number in range(ROWS_MOST + 2)]
    shown = timeline(stays, PHASES, colours(1))
    middle, right = (LEFT + WIDTH) // 2, WIDTH
    full, half, foot = 32.0, 38.0, 44
    assert f'd="M{LEFT},{foot}H{LEFT}.0V{full}H{middle}.0V{half}H{right}.0V{foot}Z"' in shown
    assert f"web: at most {ROWS_MOST + 2}, {ROWS_MOST // 2 + 1} at the end" in shown
    assert "<rect" not in shown


def test_a_name_that_is_too_long_is_cut_and_shown_under_the_pointer() -> None:
    name = "a-name-that-would-run-into-the-picture-0"
    shown = timeline([stay(name, "n0", 0, 1)], PHASES, colours(1))
    assert f"…<title>{name}</title></text>" in shown


def test_every_node_has_a_colour_of_its_own() -> None:
    assert len(set(colours(60).values())) == 60
