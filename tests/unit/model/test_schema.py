"""The JSON Schema says the same as the reader."""

from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from mandor.errors import Invalid
from mandor.lib.yaml12 import load_all
from mandor.model.codec import KINDS, to_plain
from mandor.model.json_schema import schemas
from mandor.model.manifest import load_manifests
from mandor.model.schema import manifest_schema

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))


@pytest.fixture(scope="module")
def checks() -> Any:
    return jsonschema_rs.validator_for(manifest_schema())


def test_the_schema_is_a_schema() -> None:
    jsonschema_rs.meta.validate(manifest_schema())
    assert manifest_schema()["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_passes(checks: Any, path: Path) -> None:
    for document in load_all(path.read_bytes()):
        checks.validate(document.value)


@pytest.mark.parametrize(
    "text",
    [
        "name: a\nimage: x",
        "name: a\ncommand: [a, 5]\nenv: {A: 1, B: true}\ncount: 3\nengine: process",
        "name: a\nimage: x\nengine: [a, b]\nports: {http: 80, s: {port: 1, host: 2, protocol: udp}}",
        "name: a\nimage: x\nresources: {cpu: 0.5, memory: 1Gi, limits: {cpu: 500m, memory: 2GB}}",
        "name: a\nimage: x\nplacement: {where: [a == b, {any: [a exists], strength: prefer, weight: 3}]}",
        "name: a\nimage: x\nplacement: {pool: {name: b, strength: should}, near: [{workload: self, over: zone}]}",
        "name: a\nimage: x\nplacement: {apart: [{match: {a: b}, strength: should}], spread: [{over: zone}]}",
        "name: a\nimage: x\ndisconnect: {stop_after: never, lost_after: 1h30m}",
        "name: a\ngroups: {w: {count: 1, tasks: {t: {image: x, role: main}}}}",
        "kind: namespace\nname: a\nengines: [process]",
        "kind: workload\nname: a\nimage: x",
    ],
)
def test_what_the_reader_takes_passes(checks: Any, text: str) -> None:
    load_manifests(text)
    (document,) = load_all(text)
    checks.validate(document.value)


@pytest.mark.parametrize(
    "text",
    [
        "name: a",
        "image: x",
        "name: A\nimage: x",
        "name: a\nimage: x\nreplcias: 1",
        "name: a\nimage: x\nreplicas: -1",
        "name: a\nimage: x\nresources: {cpu: 5x}",
        "name: a\nimage: x\nresources: {memory: 5Zi}",
        "name: a\nimage: x\nstop: {grace: soon}",
        "name: a\nimage: x\ntype: demon",
        "name: a\nimage: x\nports: {a: 99999}",
        "name: a\nimage: x\ngroups: {w: {tasks: {t: {image: x}}}}",
        "name: a\ngroups: {w: {}}",
        "name: a\ncommand: sleep",
        "kind: namespace",
        "kind: namespace\nname: a\nimage: x",
        "kind: other\nname: a\nimage: x",
    ],
)
def test_what_the_reader_refuses_fails(checks: Any, text: str) -> None:
    with pytest.raises(Invalid):
        load_manifests(text)
    (document,) = load_all(text)
    assert not checks.is_valid(document.value)


def test_every_key_of_a_task_is_explained_or_obvious() -> None:
    defs = manifest_schema()["$defs"]
    assert defs["Group"]["properties"]["engine"]["description"].startswith("Engines in order of preference")
    assert defs["Probe"]["properties"]["interval"]["default"] == "10s"


def test_every_kind_has_a_schema_that_its_objects_pass() -> None:
    defs = schemas(KINDS.values())
    (document,) = load_manifests(EXAMPLES[0].read_bytes())
    schema = {"$ref": "#/$defs/Workload", "$defs": defs}
    jsonschema_rs.validator_for(schema).validate(to_plain(document.object))
    assert {cls.__name__ for cls in KINDS.values()} <= defs.keys()
