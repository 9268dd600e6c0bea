"""How the code reads, as far as a machine can tell: small files, small interfaces, one sentence at the top."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import mandor
from mandor import errors

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "mandor"
LINES_MOST = 600
ABSTRACT_MOST = 7
VAGUE = {"util", "utils", "helper", "helpers", "common", "manager", "managers", "misc"}

FILES = sorted(SOURCE.rglob("*.py"))


def relative(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_a_module_shows_what_it_is_for(path: Path) -> None:
    sentence = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").strip()
    assert sentence, "no docstring at the top"


def test_no_file_is_longer_than_600_lines() -> None:
    lengths = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {name: count for name, count in lengths.items() if count > LINES_MOST} == {}


def test_no_module_has_a_name_that_shows_nothing() -> None:
    assert [relative(path) for path in FILES if VAGUE & set(path.stem.split("_"))] == []


def test_every_package_is_marked_as_one() -> None:
    folders = {path.parent for path in FILES}
    assert [relative(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def classes() -> Iterator[type]:
    for module in pkgutil.walk_packages(mandor.__path__, "mandor."):
        if module.name.endswith("__main__"):
            continue
        loaded = importlib.import_module(module.name)
        for _, each in inspect.getmembers(loaded, inspect.isclass):
            if each.__module__ == module.name:
                yield each


def test_an_interface_has_at_most_seven_abstract_methods() -> None:
    sizes = {f"{each.__module__}.{each.__name__}": len(getattr(each, "__abstractmethods__", ())) for each in classes()}
    assert {name: size for name, size in sizes.items() if size > ABSTRACT_MOST} == {}
    assert sizes["mandor.store.base.Store"] == 4


def error_classes() -> list[type[errors.MandorError]]:
    return [each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, errors.MandorError)]


def test_an_error_code_belongs_to_one_class() -> None:
    codes = [each.code for each in error_classes()]
    assert len(codes) == len(set(codes))
    assert all("code" in vars(each) for each in error_classes()), "a class inherits its parent's code"


def test_the_error_tree_is_drawn_as_it_is() -> None:
    drawn = {
        words[0]: words[1] for line in (errors.__doc__ or "").splitlines() if (words := line.strip("│├└─ ").split())[1:]
    }
    for each in error_classes():
        assert drawn.get(each.__name__) == each.code
