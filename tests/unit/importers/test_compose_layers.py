"""Compose files laid over each other: what a later one takes away, replaces or adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from mandor.errors import Invalid
from mandor.importers.base import Imported, Options, Source
from mandor.importers.compose import ComposeImporter
from mandor.importers.registry import convert, detect

BASE = """
x-logging: &logging
  driver: json-file
  options: {max-size: 10m}
services:
  web:
    image: shop/web:1.10
    ports: ["80:80", "443:443"]
    environment:
      LOG_LEVEL: info
      SENTRY_DSN: https://sentry.example
    volumes: [static:/static]
    depends_on: [db, cache]
    logging: *logging
    deploy:
      replicas: 3
      resources: {limits: {memory: 512M}}
  db:
    image: postgres:16
    volumes: [data:/var/lib/postgresql/data]
  cache:
    image: redis:7
volumes:
  data:
  static:
"""


def laid(*texts: str, files: Mapping[str, str] | None = None) -> Imported:
    sources = [Source(f"shop/{number}.yaml", text) for number, text in enumerate(texts)]
    return convert(ComposeImporter(), sources, Options(read=(files or {}).get))


def workloads(found: Imported) -> dict[str, dict[str, Any]]:
    return {each.manifest["name"]: each.manifest for each in found.made if "kind" not in each.manifest}


def test_reset_takes_away_what_earlier_files_show() -> None:
    over = """
services:
  web:
    ports: !reset []
    environment:
      SENTRY_DSN: !reset null
      LOG_LEVEL: debug
    depends_on:
      cache: !reset {}
    deploy:
      replicas: !reset
  cache: !reset null
volumes:
  static: !override {name: static-of-the-shop}
"""
    found = laid(BASE, over)
    made = workloads(found)
    web = made["web"]
    assert set(made) == {"web", "db"}
    assert "ports" not in web
    assert "replicas" not in web
    assert web["env"] == {"LOG_LEVEL": "debug"}
    assert list(web["depends_on"]) == ["db"]
    assert web["resources"]["limits"] == {"memory": "512Mi"}
    assert not [note for note in found.report.notes if "reset" in note.text]


def test_override_replaces_where_others_are_added_to() -> None:
    added = workloads(laid(BASE, "services: {web: {ports: ['8443:443'], environment: {A: 1}}}"))["web"]
    replaced = workloads(
        laid(BASE, "services: {web: {ports: !override ['8443:443'], environment: !override {A: 1.10}}}")
    )["web"]
    assert {each["host"] for each in added["ports"].values()} == {80, 443, 8443}
    assert added["env"].keys() == {"LOG_LEVEL", "SENTRY_DSN", "A"}
    assert replaced["ports"] == {"port-443": {"port": 443, "host": 8443}}
    assert replaced["env"] == {"A": "1.10"}


def test_a_value_that_overrides_is_read_as_without_its_tag() -> None:
    web = workloads(laid(BASE, "services:\n  web:\n    image: !override nginx:${V:-2}\n    command: !override '8'\n"))
    assert web["web"]["image"] == "nginx:2"
    assert web["web"]["args"] == ["8"]


def test_the_first_file_may_have_tags_that_take_away_nothing() -> None:
    found = laid("services: {web: {image: nginx, ports: !reset [], expose: !override [80], labels: [!reset a, b=1]}}")
    web = workloads(found)["web"]
    assert web["ports"] == {"port-80": {"port": 80}}
    assert web["labels"]["b"] == "1"
    assert "a" not in web["labels"]


def test_what_is_reset_can_be_reported_anew_later() -> None:
    later = "services: {web: {ports: ['90:90']}}"
    for files in (
        (BASE, "services: {web: {ports: !reset []}}", later),
        (BASE, later.replace("ports:", "ports: !override")),
    ):
        assert workloads(laid(*files))["web"]["ports"] == {"port-90": {"port": 90, "host": 90}}
    documents = f"services: {{web: {{ports: !reset []}}}}\n---\n{later}\n"
    assert workloads(laid(BASE, documents))["web"]["ports"] == {"port-90": {"port": 90, "host": 90}}


def test_tags_count_for_what_is_included_and_extended() -> None:
    files = {"shop/base.yaml": BASE, "shop/common.yaml": "services: {app: {image: a, cap_add: [NET_ADMIN], tty: true}}"}
    included = "include: [base.yaml]\nservices: {web: {ports: !reset [], environment: !override {A: b}}}\n"
    web = workloads(laid(included, files=files))["web"]
    assert web["env"] == {"A": "b"}
    assert "ports" not in web
    assert web["image"] == "shop/web:1.10"
    extended = "services: {app: {extends: {file: common.yaml, service: app}, cap_add: !reset [], tty: !reset false}}"
    found = laid(extended, files=files)
    assert "security" not in workloads(found)["app"]
    assert found.report.notes == ()


def test_a_reset_value_is_not_looked_at() -> None:
    over = "services: {web: {environment: {SENTRY_DSN: !reset '${NOT_SET:?is needed}'}, ports: !reset nonsense}}"
    assert workloads(laid(BASE, over))["web"]["env"] == {"LOG_LEVEL": "info"}


def test_other_tags_are_an_error_with_their_line() -> None:
    with pytest.raises(Invalid, match="the tag !merge is not allowed") as caught:
        laid(BASE, "services:\n  web:\n    ports: !merge []\n")
    assert (caught.value.facts["file"], caught.value.facts["line"]) == ("shop/1.yaml", 3)


def test_a_file_of_tags_is_seen_to_be_composes() -> None:
    found = detect(Source("compose.override.yaml", "services:\n  web: !override {image: nginx}\n"))
    assert found is not None
    assert found.name == "compose"


def test_an_override_is_laid_over_its_file_whichever_comes_first() -> None:
    base = Source("shop/compose.yaml", "services: {web: {image: nginx, environment: {A: 1}}}")
    over = Source("shop/compose.override.yaml", "services: {web: {image: caddy, build: .}}")
    for files in ([base, over], [over, base]):
        (made,) = convert(ComposeImporter(), files, Options()).made
        assert made.manifest["image"] == "caddy"


def test_options_of_another_log_driver_are_not_kept() -> None:
    over = "services: {web: {logging: {driver: local, options: {max-file: 2}}}}"
    assert workloads(laid(BASE, over))["web"]["options"]["docker"] == {"log_files": 2}
    alike = "services: {web: {logging: {options: {max-file: 2}}}}"
    assert workloads(laid(BASE, alike))["web"]["options"]["docker"] == {"log_files": 2, "log_size": "10Mi"}


def test_a_mapping_that_is_left_empty_takes_nothing_away() -> None:
    web = workloads(laid(BASE, "services:\n  web:\n    environment:\n    ports:\n"))["web"]
    assert web["env"].keys() == {"LOG_LEVEL", "SENTRY_DSN"}
    assert len(web["ports"]) == 2


def test_addresses_of_hosts_are_added_in_any_form() -> None:
    base = "services: {web: {image: a, extra_hosts: ['a:10.0.0.1', 'six=[::1]']}}"
    over = "services: {web: {extra_hosts: {a: [10.0.0.1, 10.0.0.2], b: host-gateway}}}"
    options = workloads(laid(base, over))["web"]["options"]["docker"]
    assert options["extra_hosts"] == ["a:10.0.0.1", "six:::1", "a:10.0.0.1", "a:10.0.0.2", "b:host-gateway"]
    with pytest.raises(Invalid, match="'nothing' is not NAME:ADDRESS"):
        laid("services: {web: {image: a, extra_hosts: [nothing]}}")
