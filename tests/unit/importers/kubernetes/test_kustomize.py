"""Kustomization folders, rendered as Kustomize renders them."""

from __future__ import annotations

from typing import Any

import pytest

from mandor.errors import Invalid, TooLarge
from mandor.importers.base import Imported, Options, Source
from mandor.importers.kustomize import Kustomizer
from mandor.importers.kustomize.generation import content_hash
from mandor.importers.kustomize.patching import PatchError, apply_json, merge_strategic
from mandor.importers.part import Ledger, plain
from mandor.importers.registry import import_files

WEB = """apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: main
        image: nginx:1.10
        env: [{name: A, value: a}]
        envFrom: [{configMapRef: {name: conf}}]
        ports: [{containerPort: 80}]
      volumes: [{name: s, secret: {secretName: keys}}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
"""


def rendered(text: str, **files: str) -> dict[str, dict[str, Any]]:
    """The objects by kind and name."""
    around = {f"k/{name.replace('__', '/')}.yaml": each for name, each in ({"web": WEB} | files).items()}
    found = Kustomizer(Ledger(), Options(read=around.get)).render("k/kustomization.yaml", text)
    objects = [plain(document.value) for _, documents in found for document in documents]
    return {f"{each['kind']} {each['metadata']['name']}": each for each in objects}


def container(text: str, **files: str) -> dict[str, Any]:
    found = rendered("resources: [web.yaml]\n" + text, **files)
    deployment = next(each for name, each in found.items() if name.startswith("Deployment"))
    first: dict[str, Any] = deployment["spec"]["template"]["spec"]["containers"][0]
    return first


HASHES = [
    ("ConfigMap", {}, "6ct58987ht"),
    ("ConfigMap", {"data": {"one": ""}}, "9g67k2htb6"),
    ("ConfigMap", {"data": {"two": "2", "one": "", "three": "3"}}, "f5h7t85m9b"),
    ("ConfigMap", {"binaryData": {"one": ""}}, "6mtk2m274t"),
    ("Secret", {"type": "my-type", "data": {"one": ""}}, "74bd68bm66"),
    ("Secret", {"type": "my-type", "data": {"two": "Mg==", "one": "", "three": "Mw=="}}, "dgcb6h9tmk"),
]
"""Hashes that Kustomize gives to objects without a name."""


@pytest.mark.req("S0-32")
@pytest.mark.parametrize(("kind", "data", "suffix"), HASHES)
def test_the_hash_of_an_object_is_that_of_kustomize(kind: str, data: dict[str, Any], suffix: str) -> None:
    assert content_hash(kind, data, "") == suffix


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("files: [application.properties]", "example-configmap-1-8mbdf7882g"),
        ("literals: [FOO=Bar]", "example-configmap-2-g2hdhfc6tk"),
        ("envs: [application.properties]", "example-configmap-2-g2hdhfc6tk"),
    ],
)
def test_a_generated_object_has_its_hash_in_its_name(text: str, name: str) -> None:
    files = {"k/application.properties": "FOO=Bar\n"}
    text = f"configMapGenerator: [{{name: {name.rpartition('-')[0]}, {text}}}]"
    found = Kustomizer(Ledger(), Options(read=files.get)).render("k/kustomization.yaml", text)
    assert [plain(each[0].value)["metadata"]["name"] for _, each in found] == [name]


def test_names_and_references_get_prefix_suffix_and_hash() -> None:
    text = """resources: [web.yaml]
namePrefix: a-
nameSuffix: -z
namespace: team
configMapGenerator: [{name: conf, literals: [A=b]}]
secretGenerator: [{name: keys, literals: [k=v], options: {disableNameSuffixHash: true}}]
"""
    found = rendered(text)
    config = next(name for name in found if name.startswith("ConfigMap")).removeprefix("ConfigMap ")
    assert config.startswith("a-conf-z-")
    spec = found["Deployment a-web-z"]["spec"]["template"]["spec"]
    assert spec["containers"][0]["envFrom"] == [{"configMapRef": {"name": config}}]
    assert spec["volumes"] == [{"name": "s", "secret": {"secretName": "a-keys-z"}}]
    assert {each["metadata"]["namespace"] for each in found.values()} == {"team"}
    assert "Service a-web-z" in found


def test_labels_reach_selectors_and_templates() -> None:
    found = rendered("resources: [web.yaml]\ncommonLabels: {team: x}\nlabels: [{pairs: {only: meta}}]")
    deployment, service = found["Deployment web"], found["Service web"]
    assert deployment["metadata"]["labels"] == {"team": "x", "only": "meta"}
    assert deployment["spec"]["selector"]["matchLabels"] == {"app": "web", "team": "x"}
    assert deployment["spec"]["template"]["metadata"]["labels"] == {"app": "web", "team": "x"}
    assert service["spec"]["selector"] == {"app": "web", "team": "x"}


@pytest.mark.parametrize(
    ("image", "becomes"),
    [
        ("newTag: '2'", "nginx:2"),
        ("newName: r.io/n", "r.io/n:1.10"),
        ("newName: n, newTag: '3'", "n:3"),
        ("digest: 'sha256:ab'", "nginx@sha256:ab"),
    ],
)
def test_images_are_replaced(image: str, becomes: str) -> None:
    assert container(f"images: [{{name: nginx, {image}}}]")["image"] == becomes


PATCH = """apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  template:
    spec:
      containers:
"""
MAIN = PATCH + "      - {name: main, env: [{name: B, value: b}]}\n"


@pytest.mark.parametrize("text", ["patches: [{path: p.yaml}]", "patchesStrategicMerge: [p.yaml]"])
def test_a_strategic_merge_patch_merges_lists_by_their_names(text: str) -> None:
    made = container(text, p=MAIN)
    assert made["image"] == "nginx:1.10"
    assert {each["name"]: each["value"] for each in made["env"]} == {"A": "a", "B": "b"}
    assert rendered(f"resources: [web.yaml]\n{text}", p=MAIN)["Deployment web"]["spec"]["replicas"] == 3


def test_a_patch_may_delete_an_item_a_key_or_an_object() -> None:
    assert "env" not in container("patches: [{path: p.yaml}]", p=PATCH + "      - {name: main, env: null}\n")
    gone = PATCH + "      - {name: main, env: [{name: A, $patch: delete}]}\n"
    assert container("patches: [{path: p.yaml}]", p=gone)["env"] == []
    whole = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n$patch: delete\n"
    assert list(rendered("resources: [web.yaml]\npatches: [{path: p.yaml}]", p=whole)) == ["Deployment web"]


def test_a_json_patch_changes_the_objects_of_its_target() -> None:
    text = """patches:
- target: {kind: Deploy.*, name: web}
  patch: |-
    - {op: replace, path: /spec/template/spec/containers/0/image, value: "b:2"}
    - {op: add, path: /spec/template/spec/containers/0/env/-, value: {name: C, value: c}}
    - {op: remove, path: /spec/template/spec/containers/0/ports}
    - {op: add, path: /metadata/annotations, value: {a~b/c: d}}
    - {op: test, path: /metadata/annotations/a~0b~1c, value: d}
"""
    made = container(text)
    assert (made["image"], [each["name"] for each in made["env"]], "ports" in made) == ("b:2", ["A", "C"], False)


@pytest.mark.parametrize(
    "operations",
    [
        [{"op": "remove", "path": "/b"}],
        [{"op": "replace", "path": "/b/c", "value": 1}],
        [{"op": "test", "path": "/a", "value": 2}],
        [{"op": "add", "path": "/a/5", "value": 1}],
        [{"op": "fly", "path": "/a"}],
        [{"path": "/a"}],
        {"op": "add"},
    ],
)
def test_a_json_patch_that_does_not_fit_is_an_error(operations: Any) -> None:
    with pytest.raises(PatchError):
        apply_json({"a": [1]}, operations)


def test_merging_leaves_the_value_as_it_was() -> None:
    value = {"containers": [{"name": "a", "env": [{"name": "x"}]}]}
    made = merge_strategic(value, {"containers": [{"name": "a", "image": "b"}, {"name": "c"}]})
    assert made == {"containers": [{"name": "c"}, {"name": "a", "env": [{"name": "x"}], "image": "b"}]}
    assert value == {"containers": [{"name": "a", "env": [{"name": "x"}]}]}


def test_an_overlay_changes_its_base() -> None:
    files = {
        "k/base/kustomization.yaml": "resources: [web.yaml]\n"
        "configMapGenerator: [{name: conf, literals: [A=b, C=d]}]\n",
        "k/base/web.yaml": WEB,
    }
    text = """resources: [../base]
namePrefix: prod-
replicas: [{name: web, count: 5}]
configMapGenerator: [{name: conf, behavior: merge, literals: [A=z]}]
"""
    found = Kustomizer(Ledger(), Options(read=files.get)).render("k/prod/kustomization.yaml", text)
    objects = {plain(each[0].value)["kind"]: plain(each[0].value) for _, each in found}
    assert objects["Deployment"]["spec"]["replicas"] == 5
    assert objects["ConfigMap"]["data"] == {"A": "z", "C": "d"}
    name = objects["ConfigMap"]["metadata"]["name"]
    assert name.startswith("prod-conf-")
    (main,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert main["envFrom"] == [{"configMapRef": {"name": name}}]


def imported(text: str, **options: Any) -> Imported:
    return import_files([Source("k/kustomization.yaml", text)], Options(**options))


@pytest.mark.req("S0-32")
def test_a_kustomization_is_imported_and_notes_have_the_lines_of_its_files() -> None:
    files = {"k/web.yaml": WEB.replace("value: a}]", "value: a}]\n        colour: red")}
    text = "resources: [web.yaml]\nimages: [{name: nginx, newTag: '2'}]\nvars: [{name: X}]\n"
    found = imported(text, read=files.get)
    assert found.made[0].manifest["image"] == "nginx:2"
    notes = {(note.file, note.line, note.path): note.fate for note in found.report.notes}
    assert notes["k/web.yaml", 13, "spec.template.spec.containers[0].colour"] == "unknown"
    assert notes["k/kustomization.yaml", 3, "vars"] == "dropped"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("resources: [https://example.com/a.yaml]", "fetched from elsewhere"),
        ("resources: [gone.yaml]", "there is no file gone.yaml"),
        ("resources: [../../etc/passwd]", "outside of the folder"),
        ("configMapGenerator: [{name: a, files: [/etc/passwd]}]", "outside of the folder"),
        ("configMapGenerator: [{name: a, files: [../secret]}]", "outside of the folder"),
        ("resources: [.]", "contains itself"),
        ("patches: [{patch: '[]'}]", "a JSON patch has a `target`"),
        ("patches: [{patch: 'kind: Pod'}]", "there is no object for the patch"),
        ("patches: [{target: {name: '(a'}, patch: '[]'}]", "is not a regular expression"),
        ("configMapGenerator: [{name: a, literals: [b]}]", "is not NAME=VALUE"),
    ],
)
def test_a_kustomization_that_cannot_be_rendered_is_an_error_with_its_line(text: str, message: str) -> None:
    files = {"k/kustomization.yaml": text, "../etc/passwd": "root", "etc/passwd": "root", "k/web.yaml": WEB}
    text = text if "target: {" not in text else f"resources: [web.yaml]\n{text}"
    with pytest.raises(Invalid, match=message) as caught:
        imported(text, read=files.get)
    assert caught.value.facts["file"] == "k/kustomization.yaml"


def test_the_files_of_a_kustomization_are_limited() -> None:
    with pytest.raises(TooLarge):
        imported(f"resources: [{', '.join(f'{n}.yaml' for n in range(1200))}]", read=lambda path: "")


def test_other_keys_are_reported() -> None:
    found = imported("colour: red\nhelmCharts: [{name: a}]", read=lambda path: None)
    assert [(note.path, note.fate) for note in found.report.notes] == [("colour", "unknown"), ("helmCharts", "dropped")]
