"""Files of Kubernetes, imported and planned: the API takes what the importer makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mandor.importers.base import Options, Source
from mandor.importers.kubernetes import KubernetesImporter
from mandor.importers.registry import convert
from mandor.lib.yaml12 import dump
from mandor.model.node import Capabilities, Node
from mandor.store.base import Put
from tests.api.conftest import Api
from tests.scenarios.make import make_node

FILES = Path(__file__).parents[1] / "importers" / "files" / "kubernetes"
EXAMPLE = Path(__file__).parents[2] / "examples" / "kubernetes"
FOLDERS = [EXAMPLE, FILES, *sorted((FILES / "applications").iterdir()), *sorted((FILES / "addons").iterdir())]
DOCKER = Capabilities(images=True, extras=frozenset({"mounts", "tmpfs", "sandbox", "security", "exec", "ports"}))


def node(name: str) -> Node:
    return make_node(name, cpu=16, engines={"docker": DOCKER}, facts={"os": "linux", "host.paths": "/"})


def manifests(folder: Path) -> list[dict[str, Any]]:
    files = [Source(str(each), each.read_text()) for each in sorted(folder.glob("*.y*ml"))]
    return [each.manifest for each in convert(KubernetesImporter(), files, Options()).made]


@pytest.mark.req("S0-32")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda each: each.name)
async def test_what_was_imported_can_be_planned(dev: Api, folder: Path) -> None:
    await dev.store.commit(Put(node("n1")), Put(node("n2")))
    made = manifests(folder)
    missing = {each["namespace"] for each in made if "namespace" in each} - {
        each["name"] for each in made if each.get("kind") == "namespace"
    }
    texts = [dump({"kind": "namespace", "name": name, "level": "privileged"}) for name in sorted(missing)]
    made = [each | {"level": "privileged"} if each.get("kind") == "namespace" else each for each in made]
    body = {"files": [{"name": f"{n}.yaml", "text": text} for n, text in enumerate([*texts, *map(dump, made)])]}
    session = await dev.session()
    async with session.post("/v1/plan", json=body) as answer:
        found = await answer.json()
        assert answer.status == 200, found
    assert {each["action"] for each in found["results"]} == {"created"}


async def test_the_example_is_imported_without_a_loss_and_has_its_place(dev: Api) -> None:
    await dev.store.commit(Put(node("n1")), Put(node("n2")))
    (made,) = manifests(EXAMPLE)
    session = await dev.session()
    async with session.post("/v1/plan", json={"files": [{"name": "a.yaml", "text": dump(made)}]}) as answer:
        found = await answer.json()
    assert found["fits"] is True
    assert {each["node"] for each in found["placements"]} == {"n1", "n2"}
