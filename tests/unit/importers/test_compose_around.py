"""What a Compose file finds around it: variables, files of them, folders that services share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from mandor.errors import Invalid
from mandor.importers.base import Imported, Options, Source
from mandor.importers.compose import ComposeImporter
from mandor.importers.registry import convert


def imported(text: str, files: Mapping[str, str] | None = None, **options: Any) -> Imported:
    return convert(ComposeImporter(), [Source("shop/compose.yaml", text)], Options(read=(files or {}).get, **options))


def manifests(found: Imported) -> dict[str, dict[str, Any]]:
    return {each.manifest["name"]: each.manifest for each in found.made}


def told(found: Imported) -> list[str]:
    return [str(note) for note in found.report.notes]


def test_the_projects_name_is_a_variable_and_the_environment_has_the_first_word() -> None:
    text = "name: cellar\nservices: {web: {image: 'a:${COMPOSE_PROJECT_NAME}', environment: [COMPOSE_PROJECT_NAME]}}"
    for options, name in (
        ({}, "cellar"),
        ({"environment": {"COMPOSE_PROJECT_NAME": "attic"}}, "attic"),
        ({"environment": {"COMPOSE_PROJECT_NAME": "attic"}, "project": "roof"}, "roof"),
    ):
        found = imported(text, None, **options)
        web = manifests(found)["web"]
        assert (web["image"], web["labels"]["project"], told(found)) == (f"a:{name}", name, [])
        assert web["env"] == {"COMPOSE_PROJECT_NAME": name}
    in_file = imported("services: {web: {image: a}}", {"shop/.env": "COMPOSE_PROJECT_NAME=attic"})
    assert manifests(in_file)["web"]["labels"] == {"project": "attic"}
    assert manifests(imported("services: {web: {image: a}}"))["web"]["labels"] == {"project": "shop"}


def test_profiles_may_be_named_in_the_file_of_variables() -> None:
    text = "services: {web: {image: a}, debug: {image: b, profiles: [debug]}}"
    assert set(manifests(imported(text, {"shop/.env": "COMPOSE_PROFILES=other, debug"}))) == {"web", "debug"}
    assert set(manifests(imported(text, {"shop/.env": "A=b"}))) == {"web"}


def test_a_dollar_sign_in_a_file_of_variables_that_stands_for_nothing_is_reported_with_its_line() -> None:
    files = {"shop/web.env": "A=1\nPASSWORD=a$b\nQUOTED='a$b'\nKNOWN=${A}2\n"}
    found = imported("services: {web: {image: a, env_file: web.env}}", files)
    assert manifests(found)["web"]["env"] == {"A": "1", "PASSWORD": "a", "QUOTED": "a$b", "KNOWN": "12"}
    assert told(found) == [
        "shop/web.env:2: b: guessed: the variable b is not set, and is empty"
        " (write $$b for a dollar sign, or put the value in single quotes)"
    ]


def test_a_raw_file_of_variables_is_taken_as_it_stands() -> None:
    files = {"shop/web.env": '# c\nA="1" # two\n  B=$C\nD\n\nE=x=y\n'}
    found = imported("services: {web: {image: a, env_file: [{path: web.env, format: raw}]}}", files)
    assert manifests(found)["web"]["env"] == {"A": '"1" # two', "B": "$C", "E": "x=y"}
    assert told(found) == []


def test_a_folder_that_several_services_name_is_one_volume() -> None:
    text = """
services:
  web: {image: a, volumes: ["./public/:/srv:ro", "./own:/own"]}
  worker: {image: a, volumes: [{type: bind, source: ./public, target: /out}]}
volumes: {own: }
"""
    made = manifests(imported(text, folder=lambda path: []))
    shared = made["web"]["volumes"]["public"]["volume"]
    assert made["web"]["mounts"][0] == {"volume": "public", "path": "/srv", "read_only": True}
    assert made["worker"]["mounts"] == [{"volume": "public", "path": "/out"}]
    assert made["worker"]["volumes"] == {"public": {"volume": shared}}
    assert made[shared]["kind"] == "volume"
    assert made["web"]["volumes"]["own"]["volume"] not in {shared, "shop_own"}


def test_what_is_empty_because_a_variable_is_not_set_reports_it() -> None:
    for text, line, message in (
        ("image: a\n    volumes:\n      - ${DATA}:/data", 4, "':/data' has nothing on one side of its colon"),
        ("image: ${IMAGE}", 3, "it is empty; is a variable not set?"),
    ):
        with pytest.raises(Invalid, match=message) as caught:
            imported(f"services:\n  web:\n    {text}\n")
        assert caught.value.facts["line"] == line
    assert "options" not in manifests(imported("services: {web: {image: a, hostname: '${HOST:-}'}}"))["web"]


def test_a_dependency_on_completion_is_no_traffic() -> None:
    text = """
services:
  web: {image: a, depends_on: {setup: {condition: service_completed_successfully}, db: {condition: service_healthy}}}
  setup: {image: b}
  db: {image: c}
"""
    assert [note.path for note in imported(text).report.notes] == ["services.db"]


def test_a_volume_that_is_kept_elsewhere_has_to_be_there() -> None:
    text = "services: {web: {image: a, volumes: ['data:/data']}}\nvolumes:\n"
    text += "  data: {external: true, name: old}\n  idle: {external: true}\n"
    assert told(imported(text)) == [
        "shop/compose.yaml:3: volumes.data: guessed: a volume old must exist (`kind: volume`, applied before)"
    ]


def test_a_mistake_that_a_variable_made_names_the_variable() -> None:
    with pytest.raises(Invalid, match="'' is not a size") as caught:
        imported("services:\n  web:\n    image: a\n    mem_limit: ${MEMORY}\n")
    assert (
        caught.value.hint
        == "the variable MEMORY is not set, and is empty; set it, or write a default: ${NAME:-default}"
    )


def test_a_range_of_ports_that_is_none_is_reported_with_its_line() -> None:
    with pytest.raises(Invalid, match="'80-x' is not a port") as caught:
        imported("services:\n  web:\n    image: a\n    ports:\n    - target: 80\n      published: 80-x\n")
    assert caught.value.facts["line"] == 6


def test_options_of_a_tmpfs_that_mean_nothing_here_are_reported() -> None:
    found = imported("services: {web: {image: a, tmpfs: ['/tmp:mode=1777,size=64m,noexec']}}")
    assert manifests(found)["web"]["mounts"] == [{"tmpfs": "64Mi", "path": "/tmp"}]
    assert [note.text for note in found.report.notes] == [
        "mode=1777, noexec of /tmp is ignored: a tmpfs belongs to its task"
    ]


def test_a_share_of_time_may_be_reported_in_durations() -> None:
    web = manifests(imported("services: {web: {image: a, cpu_quota: 25ms, cpu_period: 50ms}}"))["web"]
    assert web["resources"]["limits"] == {"cpu": "500m"}


def test_an_image_is_not_freed_of_its_own_program_in_silence() -> None:
    for nothing in ("[]", "''"):
        found = imported(f"services:\n  web:\n    image: a\n    entrypoint: {nothing}\n    command: b\n")
        assert manifests(found)["web"]["args"] == ["b"]
        assert [(note.line, note.path, note.fate) for note in found.report.notes] == [
            (4, "services.web.entrypoint", "dropped")
        ]
    assert told(imported("services: {web: {image: a, entrypoint: null, command: ~}}")) == []


def test_a_label_without_a_value_is_empty() -> None:
    web = manifests(imported("services: {web: {image: a, labels: {b: null, c: ~, d: 'null'}}}"))["web"]
    assert web["labels"] == {"project": "shop", "b": "", "c": "", "d": "null"}


def test_a_duration_beyond_all_bounds_is_reported_with_its_line() -> None:
    with pytest.raises(Invalid, match="out of range") as caught:
        imported("services:\n  web:\n    image: a\n    healthcheck:\n      test: b\n      interval: " + "9" * 30)
    assert caught.value.facts["line"] == 6
