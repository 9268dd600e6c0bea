"""Kubernetes' files that were not written for these tests, and what is left of them when they are damaged."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mandor.errors import Invalid
from mandor.importers import kubernetes
from mandor.importers.base import Imported, Options, Source
from mandor.importers.kubernetes import KubernetesImporter
from mandor.importers.part import plain
from mandor.importers.registry import convert, detect
from mandor.lib.yaml12 import dump, load_all
from mandor.model.group import Group
from mandor.model.manifest import load_files
from mandor.model.placement import Apart, Spread, Toleration
from mandor.model.resources import TaskResources
from mandor.model.route import RouteSpec
from mandor.model.service import ServiceSpec
from mandor.model.task import Probe, Task
from mandor.model.volume import GroupVolume, VolumeType
from mandor.model.workload import WorkloadSpec

FILES = Path(__file__).parent / "files" / "kubernetes"
APPLICATIONS = sorted((FILES / "applications").iterdir())
MODEL = (
    Apart,
    Group,
    GroupVolume,
    Probe,
    RouteSpec,
    ServiceSpec,
    Spread,
    Toleration,
    Task,
    TaskResources,
    WorkloadSpec,
)
FOLDERS = [*APPLICATIONS, *sorted((FILES / "addons").iterdir())]
EVERYTHING = FILES / "everything.yaml"


def sources(folder: Path) -> list[Source]:
    return [Source(str(each), each.read_text()) for each in sorted(folder.glob("*.y*ml"))]


def imported(folder: Path) -> Imported:
    return convert(KubernetesImporter(), sources(folder), Options())


@pytest.mark.req("S0-32")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda each: each.name)
def test_a_folder_of_real_files_becomes_manifests_that_are_valid_together(folder: Path) -> None:
    assert all(isinstance(detect(each), KubernetesImporter) for each in sources(folder))
    found = imported(folder)
    assert found.made
    load_files([(each.file, dump(each.manifest)) for each in found.made])
    assert all(note.line > 0 and note.text for note in found.report.notes)
    assert not [note for note in found.report.notes if note.fate == "unknown"]


@pytest.mark.req("S0-32")
def test_at_least_95_percent_of_the_keys_of_applications_are_mapped() -> None:
    reports = [imported(folder).report for folder in APPLICATIONS]
    mapped, total = sum(each.mapped for each in reports), sum(each.total for each in reports)
    assert mapped / total >= 0.95


def test_all_of_the_large_example_is_mapped() -> None:
    found = convert(KubernetesImporter(), [Source("a.yaml", EVERYTHING.read_text())], Options())
    assert found.report.dropped == 0
    assert {each.manifest.get("kind", "workload") for each in found.made} == {
        "workload", "namespace", "priority-class", "volume", "quota", "limit-defaults",
    }  # fmt: skip


GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "bring-your-files.md"
CODE = Path(kubernetes.__file__).parent


def table() -> list[tuple[list[str], list[str]]]:
    """The rows of the guide's table: the words of each side."""
    text = GUIDE.read_text().partition("## Kubernetes")[2].partition("## ")[0]
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return [(re.findall(r"`([^`]+)`", left), re.findall(r"`([^`]+)`", right)) for left, right in rows]


def test_the_table_of_the_guide_speaks_of_keys_that_both_sides_have() -> None:
    names = CODE.parents[1] / "model" / "kubernetes_names.py"
    code = "".join(each.read_text() for each in (*CODE.glob("*.py"), names))
    known = {each.encode_name for kind in MODEL for each in msgspec.structs.fields(kind)}
    known |= {*get_args(VolumeType), "kind"}
    rows = table()
    assert len(rows) > 25
    for left, right in rows:
        assert not [word for word in left if f'"{word}"' not in code and word.partition(":")[0] not in code]
        words = [word for each in right if "/" not in each for word in re.split(r"[.:]", each)[:1]]
        assert not [word for word in words if word not in known and f'"{word}"' not in code]


# Damaged files.

WHOLE = [plain(each.value) for each in load_all(EVERYTHING.read_text())]
FREE = {"labels", "matchLabels", "data", "binaryData", "nodeSelector", "requests", "limits", "selector", "hard"} | {
    "defaultRequest", "max", "metadata",
}  # fmt: skip
"""Whose keys the author is free to choose."""


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in it that has something."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, each in inner for found in places(each, (*path, key)))]


PLACES = [path for path in places(WHOLE) if len(path) > 1]
MAPPINGS = [path for path in PLACES if not FREE & set(path)]
JUNK = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("aZ0 $({%", max_size=6)
    | st.lists(st.text("ab", max_size=2) | st.none(), max_size=2)
    | st.dictionaries(st.text("ab", max_size=2), st.integers() | st.none(), max_size=2)
)  # fmt: skip


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


def read(objects: list[Any]) -> Imported:
    text = "\n---\n".join(dump(each) for each in objects)
    return KubernetesImporter().read([Source("a.yaml", text)], Options())


def refusal_of(objects: list[Any]) -> Invalid | None:
    """None: they can be read, and every key is accounted for."""
    try:
        assert read(objects).report.total > 0
    except Invalid as error:
        return error
    return None


@given(st.sampled_from(PLACES), JUNK)
@settings(max_examples=200, deadline=None)
def test_a_file_with_nonsense_in_it_is_read_or_refused_with_its_line(path: tuple[Any, ...], junk: Any) -> None:
    objects = copy.deepcopy(WHOLE)
    at(objects, path[:-1])[path[-1]] = junk
    refused = refusal_of(objects)
    assert refused is None or isinstance(refused.facts["line"], int)


@given(st.sampled_from(PLACES))
@settings(max_examples=150, deadline=None)
def test_a_file_that_lacks_something_is_read_or_refused(path: tuple[Any, ...]) -> None:
    objects = copy.deepcopy(WHOLE)
    del at(objects, path[:-1])[path[-1]]
    refused = refusal_of(objects)
    assert refused is None or isinstance(refused.facts["line"], int)


@given(st.sampled_from([path for path in MAPPINGS if isinstance(at(WHOLE, path), dict)]))
@settings(max_examples=100, deadline=None)
def test_an_unknown_key_is_in_the_report_at_any_depth(path: tuple[Any, ...]) -> None:
    objects = copy.deepcopy(WHOLE)
    at(objects, path)["surprise"] = 1
    try:
        report = read(objects).report
    except Invalid:
        return
    assert any(note.path.endswith(".surprise") and note.fate in {"unknown", "dropped"} for note in report.notes)
