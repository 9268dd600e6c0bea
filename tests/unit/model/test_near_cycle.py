"""`must` near-rules that wait for each other are found exactly where there are some."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mandor.model.near_cycle import find_deadlocks
from tests.scenarios.make import make_workload

NAMES = "abcdef"
rules = st.lists(st.sampled_from((*NAMES, "nobody")), max_size=3)


@given(st.dictionaries(st.sampled_from(NAMES), rules))
def test_only_near_rules_without_a_possible_start_are_found(graph: dict[str, list[str]]) -> None:
    workloads = [
        make_workload(name, placement={"near": [{"workload": other, "strength": "must"} for other in others]})
        for name, others in graph.items()
    ]
    found = find_deadlocks(workloads)

    free: set[str] = set()
    for _ in graph:
        free |= {
            name
            for name, others in graph.items()
            if all(other in free or other == name or other not in graph for other in others)
        }
    stuck = graph.keys() - free
    blocked = {name: {*graph[name]} & (stuck - {name}) for name in stuck}

    def reached(start: str) -> set[str]:
        seen, queue = set[str](), [start]
        while queue:
            more = blocked[queue.pop()] - seen
            seen |= more
            queue += more
        return seen

    assert {each.workload.meta.name for each in found} == {name for name in blocked if name in reached(name)}
    for each in found:
        chain = each.chain
        assert all(other in blocked[name] for name, other in zip(chain, (*chain[1:], chain[0]), strict=True))
