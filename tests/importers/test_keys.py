"""Every key of files that have them all: it makes a difference in the manifests, or the report has it."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from mandor.importers.base import Options
from mandor.importers.fates import KeyFate, key_fates, leaves, with_value
from mandor.importers.trees import parse_tree

ROOT = Path(__file__).parents[2]
FORMATS = ("compose", "kubernetes", "nomad")
SAYS_NOTHING = {
    "compose": {"services.web.env_file.path"},  # of the file that is not there, and need not be
    "kubernetes": {
        "spec.template.spec.securityContext.runAsNonRoot",  # it has a user who is not root
        "spec.template.spec.volumes.configMap.optional",  # what may be absent is there
        "spec.template.spec.containers.envFrom.configMapRef.optional",
        "spec.template.spec.containers.env.valueFrom.configMapKeyRef.optional",
    },
    "nomad": {
        "shop.group.service.provider",  # both are told at the service's name
    },
}


@cache
def table() -> ModuleType:
    spec = importlib.util.spec_from_file_location("imported_keys", ROOT / "scripts" / "imported_keys.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.req("S0-32")
@pytest.mark.parametrize("name", FORMATS)
def test_no_key_is_lost_in_silence(name: str) -> None:
    found: list[KeyFate] = table().fates(name)
    lost = [each.path for each in found if each.outcome == "silent"]
    silent = {".".join(step for step in path[1:] if isinstance(step, str)) for path in lost}
    assert silent == SAYS_NOTHING[name]


@pytest.mark.req("S0-32")
def test_the_page_about_keys_shows_what_the_importers_do() -> None:
    page = (ROOT / "docs" / "reference" / "imported-keys.md").read_text(encoding="utf-8")
    assert page == table().page(), "run scripts/imported_keys.py"


def test_a_key_that_is_taken_and_not_used_is_found() -> None:
    found = parse_tree("compose", "services: {a: {image: b, user: '1'}}", Options())
    outcomes = {each.path[-1]: each.outcome for each in key_fates(found.tree, found.read, {})}
    assert outcomes == {"image": "mapped", "user": "mapped"}
    deaf = key_fates(found.tree, lambda tree: found.read(with_value(tree, (0, "services", "a", "user"), "1")), {})
    assert {each.path[-1]: each.outcome for each in deaf} == {"image": "mapped", "user": "silent"}


def test_a_changed_copy_leaves_the_tree_as_it_was() -> None:
    tree = {"a": [{"b": 1}, {"c": {"d": [1]}}]}
    assert list(leaves(tree)) == [("a", 0, "b"), ("a", 1, "c", "d")]
    assert with_value(tree, ("a", 1, "c", "d"), 2) == {"a": [{"b": 1}, {"c": {"d": 2}}]}
    assert tree == {"a": [{"b": 1}, {"c": {"d": [1]}}]}
