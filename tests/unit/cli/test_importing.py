"""`mandor import`, and `apply`, `plan`, `diff`, `delete` with files of other tools, against a real API."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mandor.model.manifest import load_manifests
from tests.unit.cli.conftest import LiveApi, Mandor

COMPOSE = """name: shop
services:
  web:
    image: nginx:${TAG:-1}
    deploy: {replicas: 2}
    oom_kill_disable: true
"""
TOLD = "note: compose.yaml:6: services.web.oom_kill_disable: dropped: a task over its memory limit is killed\n"


@pytest.fixture
def compose(tmp_path: Path) -> str:
    (tmp_path / "compose.yaml").write_text(COMPOSE)
    return "compose.yaml"


@pytest.mark.req("S0-32")
def test_import_prints_the_manifest_and_reports_what_was_lost(mandor: Mandor, compose: str) -> None:
    told = mandor("import", compose)
    assert told.code == 0
    (document,) = load_manifests(told.out)
    assert document.object.spec.groups["main"].replicas == 2
    assert told.err == TOLD + "6 of 7 keys mapped, 1 left out\n"
    shown = json.loads(mandor("import", compose, "-o", "json", "--var", "TAG=9").out)
    assert shown["items"][0]["image"] == "nginx:9"


@pytest.mark.req("S0-32")
def test_strict_fails_where_a_key_would_be_lost(mandor: Mandor, api: LiveApi, compose: str) -> None:
    for command in (("import", compose), ("apply", "-f", compose), ("plan", "-f", compose), ("diff", "-f", compose)):
        told = mandor(*command, "--strict")
        assert (told.code, told.out) == (1, "")
        assert "error: compose.yaml:6: services.web.oom_kill_disable: dropped" in told.err
    assert api.get("workload", "web") is None


@pytest.mark.req("S0-32")
def test_apply_takes_a_compose_file_as_it_is(mandor: Mandor, api: LiveApi, compose: str) -> None:
    told = mandor("apply", "-f", compose)
    assert (told.code, told.out) == (0, "workload default/web created\n")
    assert TOLD in told.err
    web = api.get("workload", "web")
    assert web.spec.groups["main"].tasks["main"].image == "nginx:1"
    assert web.labels == {"project": "shop"}
    assert mandor("diff", "-f", compose, "--exit-code").code == 0
    assert mandor("delete", "-f", compose).out == "workload default/web deleted\n"


@pytest.mark.req("S0-32")
def test_the_report_has_the_outcome_of_each_key(mandor: Mandor, tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(
        "version: '3'\nservices:\n  web:\n    image: a\n    tty: true\n    colour: red\n"
        "    volumes: ['./gone.bin:/b:ro']\n"
    )
    (tmp_path / "gone.bin").write_bytes(b"\xff\0")
    told = mandor("import", "compose.yaml", "-o", "report")
    assert (told.code, told.err) == (0, "")
    report = json.loads(told.out)
    found = {each["key"]: (each["line"], each["outcome"]) for each in report["keys"]}
    assert found == {
        "version": (1, "not imported"),
        "services": (2, "imported"),
        "services.web": (3, "imported"),
        "services.web.image": (4, "imported"),
        "services.web.tty": (5, "changed"),
        "services.web.colour": (6, "not imported"),
        "services.web.volumes": (7, "imported"),
        "services.web.volumes[0]": (7, "not imported"),
    }
    assert {each["file"] for each in report["keys"]} == {"compose.yaml"}
    assert all(each.get("why") for each in report["keys"] if each["outcome"] != "imported")
    refused = mandor("import", "compose.yaml", "-o", "report", "--strict")
    assert (refused.code, json.loads(refused.out)) == (1, report)


def test_a_rendered_chart_may_have_more_than_a_mebibyte(mandor: Mandor, api: LiveApi, tmp_path: Path) -> None:
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: a, image: b}]}\n"
    chart = f"apiVersion: a.io/v1\nkind: Chart\nmetadata: {{name: x}}\ntext: '{'x' * 1000}'\n---\n" * 1500 + pod
    (tmp_path / "all.yaml").write_text(chart)
    assert mandor("apply", "-f", "all.yaml").out == "workload default/web created\n"


def test_a_folder_with_a_kustomization_is_rendered(mandor: Mandor, api: LiveApi, tmp_path: Path) -> None:
    (tmp_path / "k").mkdir()
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: a, image: b}]}\n"
    (tmp_path / "k" / "pod.yaml").write_text(pod)
    (tmp_path / "k" / "unused.yaml").write_text(pod.replace("web", "unused"))
    (tmp_path / "k" / "kustomization.yaml").write_text(
        "resources: [pod.yaml]\nnamePrefix: my-\nimages: [{name: b, newTag: '2'}]\n"
    )
    assert mandor("apply", "-f", "k").out == "workload default/my-web created\n"
    assert api.get("workload", "my-web").spec.groups["main"].tasks["main"].image == "b:2"


@pytest.mark.req("S0-32")
def test_delete_of_a_compose_file_keeps_its_volumes(mandor: Mandor, api: LiveApi, tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(
        "name: shop\nservices:\n  db: {image: postgres, volumes: ['data:/data']}\nvolumes: {data: }\n"
    )
    mandor("apply", "-f", "compose.yaml")
    told = mandor("delete", "-f", "compose.yaml")
    assert told.out == "workload default/db deleted\nvolume default/shop_data kept\n"
    assert "shop_data: its data is kept; `--volumes` deletes it" in told.err
    assert api.get("volume", "shop_data") is not None
    told = mandor("delete", "-f", "compose.yaml", "--volumes")
    assert told.out == "workload default/db not found\nvolume default/shop_data deleted\n"
    assert api.get("volume", "shop_data") is None


def test_files_of_several_tools_go_together(mandor: Mandor, api: LiveApi, compose: str, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("name: own\nimage: x\n")
    out = mandor("apply", "-f", compose, "-f", "own.yaml").out
    assert out == "workload default/own created\nworkload default/web created\n"


def test_a_mistake_in_a_foreign_file_is_reported_where_it_stands(mandor: Mandor, tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text("services:\n  web:\n    image: a\n    ports: [many]\n")
    told = mandor("apply", "-f", "compose.yaml")
    assert told.code == 1
    assert told.err.startswith("error: compose.yaml:4: `services.web.ports`: 'many' is not a port")


def test_what_would_be_refused_is_reported_where_it_stands_in_the_tools_file(mandor: Mandor, tmp_path: Path) -> None:
    text = "services:\n  a: {image: x, depends_on: [b]}\n  b: {image: x, depends_on: [a]}\n"
    (tmp_path / "compose.yaml").write_text(text)
    printed, applied = mandor("import", "compose.yaml"), mandor("apply", "-f", "compose.yaml")
    assert len(load_manifests(printed.out.partition("---")[0])) == 1, "it is printed all the same"
    for told in (printed, applied):
        assert told.code == 1
        assert "error: compose.yaml:2: `depends_on.b`: `depends_on` has a cycle: a → b → a" in told.err


def test_what_is_no_file_of_another_tool_is_not_imported(mandor: Mandor, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("name: own\nimage: x\n")
    told = mandor("import", "own.yaml")
    assert told.code == 1
    assert "the format of this file is unknown" in told.err
    assert "compose" in told.err
    assert mandor("import", "own.yaml", "--format", "compsoe").code == 1


SECRET = "kind: Secret\napiVersion: v1\nmetadata: {name: db}\nstringData: {password: s3cret}\n"


@pytest.mark.req("S0-32")
def test_values_of_secrets_are_printed_with_a_warning_and_applied_without_being_shown(
    mandor: Mandor, api: LiveApi, tmp_path: Path
) -> None:
    (tmp_path / "db.yaml").write_text(SECRET)
    told = mandor("import", "db.yaml")
    assert (told.code, told.err) == (0, "warning: the output contains the values of a secret: db\n")
    assert load_manifests(told.out)[0].object.spec.values == {"password": "s3cret"}
    applied = mandor("apply", "-f", "db.yaml")
    assert (applied.code, applied.out) == (0, "secret default/db created\n")
    assert (
        "s3cret" not in applied.err + mandor("diff", "-f", "db.yaml").out + mandor("get", "secrets", "-o", "yaml").out
    )
