"""Compose files, key by key: what becomes of each, and that none is lost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mandor.errors import Invalid
from mandor.importers.base import Imported, Options, Source, knows
from mandor.importers.compose import ComposeImporter
from mandor.importers.compose.service import DROPPED
from mandor.importers.registry import convert, detect, import_files
from mandor.lib.yaml12 import dump, load_all
from mandor.model.group import Group

LIMITS = {"nproc": {"soft": 5, "hard": 5}, "nofile": {"soft": 1, "hard": 2}}
ROOT = Path(__file__).resolve().parents[3]


def imported(text: str, files: Mapping[str, str] | None = None, **options: Any) -> Imported:
    around = files or {}
    return convert(ComposeImporter(), [Source("shop/compose.yaml", text)], Options(read=around.get, **options))


def service(text: str, files: Mapping[str, str] | None = None, **options: Any) -> dict[str, Any]:
    """The manifest of the only service, whose keys these are."""
    body = "\n".join(f"    {line}" for line in text.strip().splitlines())
    made = imported(f"services:\n  web:\n    image: nginx\n{body}\n", files, **options).made
    return made[-1].manifest


def told(found: Imported) -> list[tuple[int, str, str]]:
    return [(note.line, note.path, note.fate) for note in found.report.notes]


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("entrypoint: [/run, --a]\ncommand: b 'c d'", "command", ["/run", "--a"]),
        ("entrypoint: [/run, --a]\ncommand: b 'c d'", "args", ["b", "c d"]),
        ("environment: {A: 1, B: yes, C: ''}", "env", {"A": "1", "B": "yes", "C": ""}),
        ("environment: [A=1, B=x=y]", "env", {"A": "1", "B": "x=y"}),
        ("ports: ['8080:80']", "ports", {"port-80": {"port": 80, "host": 8080}}),
        ("ports: [3000]", "ports", {"port-3000": {"port": 3000, "host": "auto"}}),
        ("ports: ['53:53/udp']", "ports", {"port-53-udp": {"port": 53, "host": 53, "protocol": "udp"}}),
        (
            "ports: ['9000-9001:80-81']",
            "ports",
            {"port-80": {"port": 80, "host": 9000}, "port-81": {"port": 81, "host": 9001}},
        ),
        ("ports: [{target: 80, published: 8080, name: http}]", "ports", {"http": {"port": 80, "host": 8080}}),
        ("expose: [3000]", "ports", {"port-3000": {"port": 3000}}),
        ("restart: on-failure:3", "restart", {"policy": "on-failure", "attempts": 3}),
        ("restart: unless-stopped", "restart", {"policy": "always"}),
        ("deploy: {restart_policy: {condition: unless-stopped}}", "restart", {"policy": "always"}),
        ("stop_grace_period: 1m30s\nstop_signal: SIGINT", "stop", {"grace": "1m30s", "signal": "SIGINT"}),
        ("user: '1000'", "security", {"user": 1000}),
        ("user: '1000:1000'", "security", {"user": "1000:1000"}),
        ("scale: 3", "replicas", 3),
        ("deploy: {replicas: 3}", "replicas", 3),
        ("cpus: '0.5'\nmem_limit: 50m", "resources", {"limits": {"cpu": "500m", "memory": "50Mi"}}),
        (
            "deploy: {resources: {limits: {cpus: '2', memory: 1gb, pids: 50}, reservations: {cpus: '.5'}}}",
            "resources",
            {"cpu": "500m", "limits": {"cpu": "2", "memory": "1Gi", "processes": 50}},
        ),
        (
            "deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 2, capabilities: [gpu]}]}}}",
            "resources",
            {"devices": [{"kind": "gpu", "vendor": "nvidia", "count": 2}]},
        ),
        (
            "deploy: {placement: {constraints: [node.labels.disk == ssd, node.hostname != n1]}}",
            "placement",
            {"where": [{"rule": "disk == ssd"}, {"rule": "node != n1"}]},
        ),
        (
            "deploy: {placement: {preferences: [{spread: node.labels.zone}], max_replicas_per_node: 1}}",
            "placement",
            {"spread": [{"over": "zone", "strength": "prefer"}], "apart": [{"workload": "self"}]},
        ),
        (
            "deploy: {update_config: {parallelism: 2, order: start-first, failure_action: rollback, monitor: 20s}}",
            "update",
            {"order": "start-first", "max_surge": 2, "min_healthy": "20s", "auto_rollback": True},
        ),
        (
            "deploy: {restart_policy: {condition: on-failure, max_attempts: 3, delay: 5s, window: 120s}}",
            "restart",
            {"policy": "on-failure", "attempts": 3, "delay": "5s", "interval": "2m"},
        ),
        (
            "healthcheck: {test: curl -f x, interval: 5s}",
            "readiness",
            {"command": ["/bin/sh", "-c", "curl -f x"], "interval": "5s", "timeout": "30s", "failures": 3},
        ),
        ("platform: linux/arm64", "placement", {"where": [{"rule": "arch == arm64"}]}),
        ("tmpfs: /run:size=16m", "mounts", [{"tmpfs": "16Mi", "path": "/run"}]),
        ("working_dir: /srv", "working_dir", "/srv"),
        ("cap_add: [NET_ADMIN]\ncap_drop: [ALL]", "security", {"cap_add": ["NET_ADMIN"], "cap_drop": ["ALL"]}),
        ("privileged: true\nread_only: true", "security", {"read_only_root": True, "privileged": True}),
        ("security_opt: ['no-new-privileges:true']", "security", {"no_new_privileges": True}),
        ("labels: [a=b]", "labels", {"project": "shop", "a": "b"}),
    ],
)
@pytest.mark.req("S0-32")
def test_a_key_of_a_service_has_its_place(text: str, key: str, value: Any) -> None:
    assert service(text)[key] == value


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("init: true", {"init": True}),
        ("ulimits: {nproc: 5, nofile: {soft: 1, hard: 2}}", {"ulimits": LIMITS}),
        (
            "dns: 10.0.0.1\nsysctls: [net.core.somaxconn=9]",
            {"sysctls": {"net.core.somaxconn": "9"}, "dns": ["10.0.0.1"]},
        ),
        ("shm_size: 64m", {"shm_size": "64Mi"}),
        ("network_mode: host", {"network": "host"}),
        ("extra_hosts: ['a=10.0.0.1', 'b:10.0.0.2']", {"extra_hosts": ["a:10.0.0.1", "b:10.0.0.2"]}),
        ("extra_hosts: {a: 10.0.0.1}", {"extra_hosts": ["a:10.0.0.1"]}),
        ("pull_policy: always", {"pull": "always"}),
        ("logging: {driver: json-file, options: {max-size: 10m}}", {"log_size": "10Mi"}),
    ],
)
def test_what_only_containers_have_goes_to_the_engines_that_know_it(text: str, options: dict[str, Any]) -> None:
    made = service(text)
    assert made["options"] == {"docker": options, "podman": options}
    assert made["engine"] == ["docker", "podman"]


def test_volumes_of_every_kind() -> None:
    text = """
services:
  web:
    image: nginx
    volumes:
      - data:/data
      - /srv/x:/x:ro
      - /cache
      - {type: bind, source: /srv/y, target: /y, read_only: true}
      - {type: tmpfs, target: /t, tmpfs: {size: 16m}}
volumes: {data: , unused: {driver: local}}
"""
    found = imported(text)
    assert [each.manifest.get("kind") for each in found.made] == ["volume", None]
    assert found.made[0].manifest == {"kind": "volume", "name": "shop_data", "labels": {"project": "shop"}}
    web = found.made[1].manifest
    assert web["volumes"] == {
        "data": {"volume": "shop_data"},
        "srv-x": {"type": "host", "path": "/srv/x"},
        "cache": {"per_instance": True, "reclaim": "delete", "on_loss": "recreate"},
        "srv-y": {"type": "host", "path": "/srv/y"},
    }
    assert web["mounts"] == [
        {"volume": "data", "path": "/data", "seed": True},
        {"volume": "srv-x", "path": "/x", "read_only": True},
        {"volume": "cache", "path": "/cache", "seed": True},
        {"volume": "srv-y", "path": "/y", "read_only": True},
        {"tmpfs": "16Mi", "path": "/t"},
    ]
    assert found.report.notes == ()


NEVER = {"policy": "never"}
ENDED = {"attempts": 0}


@pytest.mark.req("S0-32")
@pytest.mark.parametrize(
    ("text", "restart", "reschedule"),
    [
        ("", NEVER, ENDED),
        ("restart: 'no'", NEVER, ENDED),
        ("restart: always", {"policy": "always"}, None),
        ("restart: on-failure", {"policy": "on-failure", "attempts": 10_000}, ENDED),
        ("restart: on-failure:3", {"policy": "on-failure", "attempts": 3}, ENDED),
        ("deploy: {restart_policy: {condition: none}}", NEVER, ENDED),
        ("deploy: {restart_policy: {condition: any}}", {"policy": "always"}, None),
        ("deploy: {mode: replicated-job}", None, None),
    ],
)
def test_a_service_stays_ended_as_in_compose(
    text: str, restart: dict[str, Any] | None, reschedule: dict[str, Any] | None
) -> None:
    made = service(text or "tty: false")
    assert (made.get("restart"), made.get("reschedule")) == (restart, reschedule)


@pytest.mark.req("S0-32")
def test_a_service_is_found_under_all_its_names() -> None:
    text = """
services:
  db: {image: a, expose: [1], container_name: shop-db, hostname: db1, networks: {back: {aliases: ALIASES}}}
  web: {image: b, links: ['db:postgres', 'db']}
networks: {back: }
"""
    found = imported(text.replace("ALIASES", "[database, db, 'not a name']"))
    db, web = (each.manifest for each in found.made)
    assert db["services"] == [{"port": {"port-1": 1}, "aliases": ["shop-db", "db1", "database", "postgres"]}]
    assert "services" not in web
    assert [note.text for note in found.report.notes if note.fate == "dropped"] == ["'not a name' is not a host name"]


@pytest.mark.req("S0-32")
@pytest.mark.parametrize(
    ("volume", "mount"),
    [
        ("data:/d", {"seed": True}),
        ("data:/d:ro", {"read_only": True, "seed": True}),
        ("data:/d:nocopy", {}),
        ("{type: volume, source: data, target: /d, volume: {nocopy: true}}", {}),
        ("{type: volume, source: data, target: /d, volume: {subpath: a/b}}", {"subpath": "a/b"}),
    ],
)
def test_a_named_volume_starts_with_the_content_of_the_image(volume: str, mount: dict[str, Any]) -> None:
    made = imported(
        f"services: {{web: {{image: a, volumes: [{volume!r}]}}}}\nvolumes: {{data: }}".replace("'{", "{").replace(
            "}'", "}"
        )
    )
    assert made.made[-1].manifest["mounts"] == [{"volume": "data", "path": "/d", **mount}]


@pytest.mark.req("S0-32")
def test_a_folder_that_cannot_be_copied_is_a_volume_and_its_data_is_kept() -> None:
    text = "services: {db: {image: a, volumes: ['./db:/var/lib/db', './conf:/etc/db:ro']}}"
    found = imported(text, mode=lambda path: 0o040755, folder=lambda path: None)
    assert found.made[0].manifest["kind"] == "volume"
    assert "reclaim" not in found.made[0].manifest
    assert found.made[-1].manifest["mounts"] == [{"volume": "db", "path": "/var/lib/db", "seed": True}]
    assert [note.fate for note in found.report.notes] == ["guessed", "dropped"]


def test_a_program_beside_the_compose_file_stays_a_program() -> None:
    text = """
services:
  web: {image: a, volumes: ['./run.sh:/run.sh', './etc:/etc/a'], configs: [{source: c, target: /c}], secrets: [s]}
configs: {c: {file: ./c.sh}}
secrets: {s: {file: ./s.sh}}
"""
    modes = {"shop/run.sh": 0o100755, "shop/etc/b": 0o100644, "shop/c.sh": 0o100750, "shop/s.sh": 0o100700}
    texts = dict.fromkeys(modes, "#!/bin/sh\n")
    found = imported(text, texts, mode=modes.get, folder=lambda path: ["b"] if path.endswith("etc") else None)
    files = {each["path"]: each.get("mode") for each in found.made[-1].manifest["files"]}
    assert files == {"/run.sh": "0755", "/etc/a/b": None, "/c": "0750", "/run/secrets/s": "0700"}


def test_a_file_beside_the_compose_file_goes_along_and_a_folder_is_reported() -> None:
    text = "services:\n  web:\n    image: a\n    volumes:\n    - ./a.conf:/etc/a.conf:ro\n    - ./src:/code\n"
    found = imported(text, {"shop/a.conf": "x=1\n"})
    assert found.made[0].manifest["files"] == [{"path": "/etc/a.conf", "content": "x=1\n"}]
    assert told(found) == [
        (4, "services.web.volumes", "guessed"),
        (6, "services.web.volumes[1]", "dropped"),
    ]


def test_a_small_folder_of_texts_goes_along_and_an_empty_one_is_a_volume() -> None:
    text = """
services:
  web:
    image: a
    volumes: [./conf:/etc/web, ./data:/data, ./big:/big, ./binary:/binary]
"""
    files = {"shop/conf/a.ini": "a", "shop/conf/d/b.ini": "b", "shop/big/x": "x" * 300_000}
    folders = {"shop/conf": ["a.ini", "d/b.ini"], "shop/data": [], "shop/big": ["x"], "shop/binary": ["nontext"]}
    found = imported(text, files, folder=folders.get)
    volume, web = (each.manifest for each in found.made)
    assert web["files"] == [{"path": "/etc/web/a.ini", "content": "a"}, {"path": "/etc/web/d/b.ini", "content": "b"}]
    assert web["volumes"] == {"data": {"volume": "shop-shop-data"}}
    assert web["mounts"] == [{"volume": "data", "path": "/data"}]
    assert volume == {"kind": "volume", "name": "shop-shop-data", "labels": {"project": "shop"}}
    assert sorted((path, fate) for _, path, fate in told(found)) == [
        ("services.web.volumes", "guessed"),
        ("services.web.volumes", "guessed"),
        ("services.web.volumes[2]", "dropped"),
        ("services.web.volumes[3]", "dropped"),
    ]


def test_configs_and_secrets_become_files() -> None:
    text = """
services:
  web:
    image: a
    configs: [{source: site, target: /etc/site, mode: 0440}]
    secrets: [key, gone]
configs: {site: {content: hello}}
secrets: {key: {file: ./key.txt}, gone: {external: true}}
"""
    found = imported(text, {"shop/key.txt": "s3cret"})
    secret, web = (each.manifest for each in found.made)
    assert secret == {"kind": "secret", "name": "shop_key", "labels": {"project": "shop"}, "value": "s3cret"}
    assert web["files"] == [
        {"path": "/etc/site", "content": "hello", "mode": "0440"},
        {"path": "/run/secrets/key", "secret": "shop_key"},
        {"path": "/run/secrets/gone", "secret": "gone"},
    ]
    assert told(found) == [(8, "secrets.gone", "guessed")]


def test_a_secret_may_come_from_a_variable_of_the_env_file_and_is_made_once() -> None:
    text = """
services:
  a: {image: a, secrets: [{source: key, target: /k, mode: 0400}]}
  b: {image: b, secrets: [key], environment: [KEY]}
secrets: {key: {environment: KEY, name: own}}
"""
    found = imported(text, {"shop/.env": "KEY=s3cret\n"})
    secret, a, b = (each.manifest for each in found.made)
    assert (secret["name"], secret["value"]) == ("own", "s3cret")
    assert a["files"] == [{"path": "/k", "secret": "own", "mode": "0400"}]
    assert b["files"] == [{"path": "/run/secrets/key", "secret": "own"}]
    assert b["env"] == {"KEY": "s3cret"}
    assert "s3cret" not in str(found.report)


def test_a_secret_whose_file_is_not_at_hand_is_reported_and_still_asked_for() -> None:
    found = imported("services:\n  web: {image: a, secrets: [key]}\nsecrets:\n  key: {file: ./key.txt}\n")
    (web,) = found.made
    assert web.manifest["files"] == [{"path": "/run/secrets/key", "secret": "shop_key"}]
    assert told(found) == [(4, "secrets.key", "guessed"), (4, "secrets.key.file", "dropped")]


def test_an_unused_secret_is_no_loss() -> None:
    assert imported("services:\n  web: {image: a}\nsecrets: {key: {file: ./key.txt}}\n").report.notes == ()


def test_build_names_the_image_that_compose_would_build() -> None:
    found = imported("services:\n  web:\n    build: .\n")
    assert found.made[0].manifest["image"] == "shop-web"
    assert told(found) == [(3, "services.web.build", "guessed")]
    assert "mandor image load" in found.report.notes[0].hint


def test_a_port_of_loopback_is_not_opened_for_all() -> None:
    found = imported("services:\n  web:\n    image: a\n    ports: ['127.0.0.1:80:80']\n")
    assert found.made[0].manifest["ports"] == {"port-80": {"port": 80}}
    assert told(found) == [(4, "services.web.ports[0]", "dropped")]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${A}", "1"),
        ("$A", "1"),
        ("$$A", "$A"),
        ("${B:-x}", "x"),
        ("${E:-x}", "x"),
        ("${E-x}", ""),
        ("${A:+y}", "y"),
        ("${B:+y}", ""),
        ("${B:-${A}}", "1"),
        ("${B:-${C:-z}}", "z"),
        ("a$(b)", "a$(b)"),
    ],
)
def test_variables_are_filled_in(text: str, value: str) -> None:
    made = service(f"environment: {{X: '{text}'}}", environment={"A": "1", "E": ""})
    assert made["env"]["X"] == value


def test_env_beside_the_file_is_read_and_the_environment_counts_more() -> None:
    files = {"shop/.env": "A=1\nB=\"two # not a comment\"  # one\nC='$A'\nD=${A}x\nexport E=5\n"}
    made = service("environment: {X: '$A $B $C $D $E'}", files, environment={"A": "9"})
    assert made["env"]["X"] == "9 two # not a comment $A 9x 5"


def test_a_variable_that_is_not_set_is_reported_and_a_required_one_is_an_error() -> None:
    assert told(imported("services:\n  web:\n    image: a:$X\n"))[0] == (3, "services.web.image", "guessed")
    with pytest.raises(Invalid, match="X is required: set it") as caught:
        imported("services:\n  web:\n    image: a:${X:?set it}\n")
    assert (caught.value.facts["file"], caught.value.facts["line"]) == ("shop/compose.yaml", 3)


def test_env_files_count_less_than_environment() -> None:
    made = service("env_file: [a.env]\nenvironment: {B: 3}", {"shop/a.env": "A=1\nB=2\n"})
    assert made["env"] == {"A": "1", "B": "3"}
    with pytest.raises(Invalid, match=r"there is no file shop/a\.env"):
        service("env_file: a.env")
    assert "env" not in service("env_file: [{path: a.env, required: false}]")


def test_extends_include_and_overrides_are_laid_over_each_other() -> None:
    files = {
        "shop/base.yaml": "services:\n  base: {image: old, environment: {A: 1, B: 2}, ports: ['1:1']}\n",
        "shop/more.yaml": "services:\n  cache: {image: redis}\n",
    }
    text = """
include: [more.yaml]
services:
  web:
    extends: {file: base.yaml, service: base}
    image: new
    environment: [B=3]
    ports: ['2:2']
"""
    over = Source("shop/override.yaml", "services:\n  web: {environment: {C: 4}, colour: red}\n")
    found = convert(ComposeImporter(), [Source("shop/compose.yaml", text), over], Options(read=files.get))
    made = {each.manifest["name"]: each.manifest for each in found.made}
    assert made["cache"]["image"] == "redis"
    assert made["web"]["image"] == "new"
    assert made["web"]["env"] == {"A": "1", "B": "3", "C": "4"}
    assert list(made["web"]["ports"]) == ["port-1", "port-2"]
    notes = {(note.file, note.line, note.path) for note in found.report.notes}
    assert ("shop/override.yaml", 2, "services.web.colour") in notes


def test_profiles_choose_services_and_those_left_out_are_reported_without_being_a_loss() -> None:
    text = "services:\n  web: {image: a}\n  debug: {image: b, profiles: [debug]}\n"
    report = imported(text).report
    told = ("services.debug", 3, "skipped", "--with debug")
    assert [(note.path, note.line, note.fate, note.hint) for note in report.notes] == [told]
    assert (report.dropped, report.losses) == (0, ())
    assert [each.manifest["name"] for each in imported(text).made] == ["web"]
    assert [each.manifest["name"] for each in imported(text, profiles=("debug",)).made] == ["web", "debug"]


def test_a_global_service_is_a_daemon_with_data_of_each_nodes_own() -> None:
    text = """
services:
  web:
    image: a
    volumes: ["data:/data"]
    deploy: {mode: global, update_config: {order: start-first, parallelism: 2}, placement: {max_replicas_per_node: 1}}
volumes: {data: }
"""
    (made,) = imported(text).made
    assert made.manifest["type"] == "daemon"
    assert made.manifest["volumes"] == {"data": {"per_instance": True}}
    assert made.manifest["update"] == {"max_unavailable": 2, "auto_rollback": False}


def test_a_dependency_on_completion_becomes_a_batch() -> None:
    text = """
services:
  web: {image: a, depends_on: {migrate: {condition: service_completed_successfully}}}
  migrate: {image: b}
"""
    assert imported(text).made[1].manifest["type"] == "batch"


def test_waiting_for_others_is_kept_or_reported() -> None:
    text = """
services:
  web: {image: a, depends_on: {db: {condition: service_healthy}, cache: {condition: service_started}}, links: [mq]}
  db: {image: b}
  cache: {image: c}
  mq: {image: d}
"""
    found = imported(text)
    if knows(Group, "depends_on"):
        assert found.made[0].manifest["depends_on"] == {"db": "healthy", "cache": "started", "mq": "started"}
    else:
        assert {"services.web.depends_on", "services.web.links"} <= {note.path for note in found.report.notes}


@pytest.mark.parametrize("key", sorted(DROPPED))
def test_a_key_without_a_counterpart_is_reported_with_the_reason(key: str) -> None:
    found = imported(f"services:\n  web:\n    image: a\n    {key}: x\n")
    assert (4, f"services.web.{key}", "dropped") in told(found)


@pytest.mark.req("S0-32")
def test_an_unknown_key_is_reported() -> None:
    assert told(imported("services:\n  web:\n    image: a\n    colour: red\n")) == [
        (4, "services.web.colour", "unknown")
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("services:\n  web: {}\n", "has an `image` or a `build`"),
        ("services:\n  web: {image: a, volumes: ['x:/y']}\n", "is not among the top `volumes`"),
        ("services:\n  web: {image: a, ports: [many]}\n", "is not a port"),
        ("services:\n  web: {image: a, depends_on: [db]}\n", "there is no service 'db'"),
        ("services:\n  web: {image: a, mem_limit: much}\n", "is not a size"),
        ("services:\n  web: {image: a, extends: web}\n", "extends itself"),
        ("services: [web]\n", "expected a mapping"),
    ],
)
def test_what_makes_no_sense_is_an_error_with_its_line(text: str, message: str) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        imported(text)
    assert caught.value.facts["file"] == "shop/compose.yaml"
    assert caught.value.facts["line"]


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        ("services: {web: {image: a}}", True),
        ("include: [a.yaml]", True),
        ("name: web\nimage: a\n", False),
        ("name: web\ngroups: {a: {services: [{name: x}]}}\n", False),
        ("apiVersion: v1\nkind: List\nservices: {}\n", False),
        ("services: [", True),
        ("services:\n  web: {image: [a\n", True),
        ("apiVersion: v1\nkind: X\nservices: [", False),
        ("services:\n", True),
        ("", False),
    ],
)
def test_a_compose_file_is_seen_for_what_it_is(text: str, ours: bool) -> None:
    found = detect(Source("x.yaml", text))
    assert (found is not None and found.name == "compose") is ours


def test_the_example_is_imported_without_a_loss() -> None:
    path = ROOT / "examples" / "compose" / "compose.yaml"
    found = convert(ComposeImporter(), [Source(str(path), path.read_text(encoding="utf-8"))], Options())
    assert [each.manifest["name"] for each in found.made] == ["shop_cache", "web", "cache"]
    assert found.report.dropped == 0


WORDS = """image build ports volumes environment env_file deploy healthcheck depends_on command resources limits
placement constraints update_config networks configs restart scale test interval cpus memory source target type x-any
tmpfs logging options a"""
KEYS = st.sampled_from(WORDS.split())
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-5, 70000)
    | st.sampled_from(
        [
            "80:80",
            "./a:/b",
            "v:/x",
            "1g",
            "5s",
            "always",
            "CMD",
            "node.labels.a == b",
            "$A",
            "${A:-b}",
            "global",
            "",
            "/x",
        ]
    )
)


def holding(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return SCALARS | st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5)


VALUES = holding(holding(holding(SCALARS)))


def outcome(text: str) -> Imported | Invalid:
    try:
        return imported(text)
    except Invalid as error:
        return error


@given(st.dictionaries(KEYS, VALUES, max_size=6), st.dictionaries(KEYS, VALUES, max_size=3))
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.req("S0-32")
def test_any_file_is_imported_or_refused_with_a_line_and_no_key_is_lost(
    keys: dict[str, Any], top: dict[str, Any]
) -> None:
    text = dump({**top, "services": {"web": {"image": "nginx", **keys}}, "volumes": {"v": None}})
    found = outcome(text)
    if isinstance(found, Invalid):
        assert found.facts.get("line")
        return
    document = load_all(text)[0].value
    paths = {note.path for note in found.report.notes}
    for key in document["services"]["web"]:
        if key not in KNOWN and not key.startswith("x-"):
            assert f"services.web.{key}" in paths


KNOWN = {"image", "build", "ports", "volumes", "environment", "env_file", "deploy", "healthcheck", "depends_on"} | {
    "command",
    "networks",
    "configs",
    "restart",
    "scale",
    "cpus",
    "tmpfs",
    "logging",
}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scale: 2\ndeploy: {replicas: 3}", "deploy.replicas"),
        ("gpus: [{count: 1, device_ids: ['0']}]", "device_ids"),
        ("label_file: ./none", "no file"),
        ("volumes_from: [other]", "no service"),
    ],
)
def test_what_shows_two_things_or_names_nothing_is_an_error(text: str, message: str) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        service(text)
    assert caught.value.facts["line"] in {4, 5}


def test_what_deploy_shows_otherwise_is_reported() -> None:
    text = "services: {web: {image: a, mem_limit: 1g, deploy: {resources: {limits: {memory: 2g}}}}}"
    found = imported(text)
    assert found.made[-1].manifest["resources"] == {"limits": {"memory": "2Gi"}}
    assert [note.path for note in found.report.notes] == ["services.web.mem_limit"]


BROKEN = [
    ("services:\n  web:\n    image: [a\n", 3),
    ("services:\n  web: &a\n    image: x\n    deploy: *a\n", 4),
    ("services:\n", 1),
    ("a: b: c\n", 1),
]


@pytest.mark.parametrize(("text", "line"), BROKEN)
def test_a_broken_file_is_refused_with_the_line_where_it_breaks(text: str, line: int) -> None:
    with pytest.raises(Invalid) as caught:
        import_files([Source("compose.yaml", text)], Options())
    assert caught.value.facts["line"] in {line, line + 1}
    assert "no file of a tool" not in caught.value.message
