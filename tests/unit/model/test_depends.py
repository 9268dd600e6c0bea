"""`depends_on` in manifests: cycles and names, with their lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandor.errors import Invalid
from mandor.model.dependency_cycle import find_cycles
from mandor.model.manifest import load_manifests
from tests.scenarios.make import make_workload


def mistake(text: str) -> tuple[str, int, str]:
    with pytest.raises(Invalid) as caught:
        load_manifests(text)
    facts = caught.value.facts
    return str(caught.value), int(str(facts["line"])), str(facts["path"])


def test_a_cycle_over_several_workloads_is_reported_with_its_path_and_line() -> None:
    text = """\
name: a
image: x
depends_on: {c: healthy}
---
name: b
image: x
depends_on:
  a: started
---
name: c
image: x
depends_on: {b: healthy}
"""
    message, line, path = mistake(text)
    assert "a → c → b → a" in message
    assert (line, path) == (3, "depends_on.c")


def test_groups_that_wait_for_each_other_or_for_themselves_are_refused() -> None:
    text = """\
name: shop
groups:
  web:
    depends_on:
      db: healthy
    tasks: {main: {image: x}}
  db:
    depends_on: {web: started}
    tasks: {main: {image: x}}
"""
    message, line, _ = mistake(text)
    assert "shop/web → shop/db → shop/web" in message
    assert line == 5
    assert "web → web" in mistake("name: web\nimage: x\ndepends_on: {web: healthy}\n")[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("depends_on: {db: ready}", "`ready` is not one of started, healthy, completed"),
        ("depends_on: [db]", "expected a mapping, got a list"),
        ("depends_on: {Db: healthy}", "'Db' is not a name of a group or workload"),
        ("depends_on: {main: completed}", "a group of a service or daemon never completes"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, says: str) -> None:
    assert says in mistake(f"name: web\nimage: x\n{text}\n")[0]


def test_a_group_comes_before_a_workload_of_the_same_name() -> None:
    text = """\
name: db
image: x
depends_on: {shop: healthy}
---
name: shop
groups:
  web: {depends_on: {db: healthy}, tasks: {main: {image: x}}}
  db: {tasks: {main: {image: x}}}
"""
    assert len(load_manifests(text)) == 2


edges = st.dictionaries(st.sampled_from("abcdef"), st.sets(st.sampled_from("abcdef")), max_size=6)


@given(edges)
def test_cycles_are_found_exactly_where_there_are_some(graph: dict[str, set[str]]) -> None:
    workloads = [make_workload(name, depends_on=dict.fromkeys(others, "started")) for name, others in graph.items()]
    found = find_cycles(workloads)
    for each in found:
        chain = each.chain
        assert all(other in graph[name] for name, other in zip(chain, (*chain[1:], chain[0]), strict=True))

    def reaches(start: str) -> bool:
        seen, queue = set[str](), [start]
        while queue:
            for other in graph.get(queue.pop(), ()):
                if other == start:
                    return True
                if other in graph and other not in seen:
                    seen.add(other)
                    queue.append(other)
        return False

    assert bool(found) == any(map(reaches, graph))
