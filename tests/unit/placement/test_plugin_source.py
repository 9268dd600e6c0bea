"""Plugins from outside: entry points and files, their versions, and what is wrong with some."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from mandor.errors import Invalid
from mandor.placement.plugin_source import GROUP, find_plugins

SOURCE = """\
from mandor.plugin import FilterPlugin

class {name}(FilterPlugin):
    name = "{name}"

    def filter_node(self, state, request, view):
        return {answer}
"""


def write(folder: Path, file: str, name: str = "Mine", answer: str = "True") -> Path:
    path = folder / file
    path.write_text(SOURCE.format(name=name, answer=answer))
    return path


@pytest.mark.req("S1-29", "S0-3")
def test_a_file_in_the_folder_is_a_plugin_with_a_version_of_its_own(tmp_path: Path) -> None:
    write(tmp_path, "mine.py")
    write(tmp_path, "other.py", "Other")
    (tmp_path / "_shared.py").write_text("raise RuntimeError")
    (tmp_path / "notes.txt").write_text("not Python")
    found = find_plugins(tmp_path, points=[])
    mine = found["Mine"]
    assert mine.origin == str(tmp_path / "mine.py")
    assert len(mine.version) == 12
    assert found["NodePorts"].version == ""
    assert find_plugins(tmp_path, points=[])["Mine"] == mine, "the same file is the same plugin"

    write(tmp_path, "mine.py", answer="False")
    changed = find_plugins(tmp_path, points=[])
    assert changed["Mine"].version != mine.version
    assert changed["Mine"].cls is not mine.cls
    assert changed["Other"] == found["Other"]
    assert sum(name.startswith("mandor_plugin_mine_") for name in sys.modules) == 1, "old versions are let go"


@pytest.mark.req("S1-29")
def test_an_entry_point_is_a_plugin() -> None:
    point = EntryPoint("mine", "tests.unit.placement.test_config:CustomOne", GROUP)
    assert find_plugins(points=[point])["CustomOne"].origin.startswith("the entry point mine = ")
    for value, problem in (
        ("tests.unit.placement.test_config:read", "is not a plugin class"),
        ("no.such.module:Thing", "cannot be loaded: ModuleNotFoundError"),
    ):
        with pytest.raises(Invalid, match=problem):
            find_plugins(points=[EntryPoint("mine", value, GROUP)])


@pytest.mark.parametrize(
    ("source", "line", "problem"),
    [
        ("def broken(:\n", 1, "this plugin cannot be loaded"),
        ("x = 1\n\nraise RuntimeError('oops')\n", 3, "RuntimeError: oops"),
        ("import no_such_module\n", 1, "ModuleNotFoundError"),
        ("x = 1\n", None, "there is no plugin in"),
        (SOURCE.format(name="NodePorts", answer="True"), None, "two plugins are called NodePorts"),
        ("# " + "x" * 1024 * 1024, None, "at most"),
        ("\0", 1, "cannot be loaded"),
    ],
)
def test_a_file_that_is_no_plugin_is_refused_with_its_line(
    tmp_path: Path, source: str, line: int | None, problem: str
) -> None:
    (tmp_path / "bad.py").write_text(source)
    with pytest.raises(Invalid) as caught:
        find_plugins(tmp_path, points=[])
    assert problem in str(caught.value)
    if line is not None:
        assert f"bad.py:{line}:" in str(caught.value)
        left = [
            name for name, module in sys.modules.items() if getattr(module, "__file__", "") == str(tmp_path / "bad.py")
        ]
        assert left == [], "nothing half-loaded is left behind"


def test_two_files_with_one_name_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "a.py")
    write(tmp_path, "b.py")
    with pytest.raises(Invalid, match="two plugins are called Mine"):
        find_plugins(tmp_path, points=[])


def test_a_missing_plugin_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="cannot read the plugin folder"):
        find_plugins(tmp_path / "nowhere", points=[])
