"""A part accounts for each of its keys: whatever a reader does, none is lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandor.errors import Invalid
from mandor.importers.part import Ledger, Part
from mandor.lib.yaml12 import dump, load_all

KEYS = st.sampled_from(["a", "b", "c", "d"])
SCALARS = st.none() | st.booleans() | st.integers() | st.text("xyz", max_size=3)


def holding(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return SCALARS | st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4)


VALUES = holding(holding(SCALARS))


def opened(text: str, file: str = "a.yaml") -> tuple[Ledger, Part]:
    ledger = Ledger()
    return ledger, ledger.open(load_all(text)[0].value, file)


def keys_of(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(keys_of(each) for each in value.values())
    return sum(keys_of(each) for each in value) if isinstance(value, list) else 0


@pytest.mark.req("S0-32")
def test_an_unread_key_is_in_the_report_with_its_file_line_and_path() -> None:
    ledger, part = opened("image: nginx\ndeploy:\n  replicas: 2\n  colour: red\n")
    assert part.text("image") == "nginx"
    assert part.part("deploy").whole("replicas") == 2

    report = ledger.report()

    assert [(note.file, note.line, note.path, note.fate) for note in report.notes] == [
        ("a.yaml", 4, "deploy.colour", "unknown")
    ]
    assert (report.mapped, report.dropped) == (3, 1)


def test_a_dropped_key_counts_with_all_below_it_and_shows_why() -> None:
    ledger, part = opened("build:\n  context: .\n  args: {A: 1}\n")
    part.drop("build", "nothing is built here", "push the image")

    report = ledger.report()

    assert (report.mapped, report.dropped) == (0, 4)
    assert str(report.notes[0]) == "a.yaml:1: build: dropped: nothing is built here (push the image)"


def test_a_mapping_taken_as_a_whole_is_one_key() -> None:
    ledger, part = opened("env: {A: 1.10, B: 0x10, C: yes, D: }\n")
    assert part.text_map("env") == {"A": "1.10", "B": "0x10", "C": "yes", "D": ""}
    assert ledger.report().mapped == 1


def test_an_extension_counts_neither_way() -> None:
    ledger, part = opened("x-any: {a: 1}\n")
    part.ignore("x-any")
    assert (ledger.report().total, ledger.report().share) == (0, 1.0)


def test_an_item_of_a_list_can_be_dropped_by_itself() -> None:
    ledger, part = opened("ports:\n  - 80\n  - sctp\n")
    part.texts("ports")
    part.drop_item("ports", 1, "not known")
    report = ledger.report()
    assert (report.mapped, report.dropped, report.notes[0].line, report.notes[0].path) == (1, 1, 3, "ports[1]")


def test_a_guess_is_mapped_and_reported() -> None:
    ledger, part = opened("cpu: 500\n")
    part.whole("cpu")
    part.guess("cpu", "taken as 250m")
    assert ledger.report().summary == "1 of 1 keys mapped, 1 of them with a guess"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("a: {b: 1}", lambda part: part.text("a")),
        ("a: [{b: 1}]", lambda part: part.texts("a")),
        ("a: word", lambda part: part.whole("a")),
        ("a: word", lambda part: part.flag("a")),
        ("a: word", lambda part: part.part("a")),
        ("a: [1]", lambda part: part.parts("a")),
        ("a: {b: [1]}", lambda part: part.text_map("a")),
    ],
)
def test_a_value_of_the_wrong_shape_is_an_error_with_its_line(text: str, read: Any) -> None:
    _, part = opened("\n" + text)
    with pytest.raises(Invalid) as caught:
        read(part)
    assert (caught.value.facts["file"], caught.value.facts["line"]) == ("a.yaml", 2)


@pytest.mark.req("S0-32")
@given(st.dictionaries(KEYS, VALUES, min_size=1), st.randoms(use_true_random=False))
def test_whatever_a_reader_does_every_key_is_mapped_or_in_the_report(value: dict[str, Any], chance: Any) -> None:
    ledger, part = opened(dump(value))
    wholes = 0

    def wander(here: Part) -> None:
        nonlocal wholes
        for key in here.keys():  # noqa: SIM118
            choice = chance.choice(["forget", "take", "drop", "open"])
            if choice == "take":
                wholes += keys_of(here.peek(key))
                here.take(key)
            elif choice == "drop":
                here.drop(key, "because")
            elif choice == "open" and isinstance(here.peek(key), dict):
                wander(here.part(key))

    wander(part)
    report = ledger.report()
    told = {note.path for note in report.notes}

    def check(here: Part) -> int:
        """How many keys are below those that are told."""
        found = 0
        for key in here.keys():  # noqa: SIM118
            state = ledger.states.get((id(here.source), key))
            assert (here.path_of(key) in told) == (state in {None, "dropped"})
            if state == "opened":
                found += sum(check(each) for each in here.inside(key))
        return found

    check(part)
    assert report.total + wholes == keys_of(value)
