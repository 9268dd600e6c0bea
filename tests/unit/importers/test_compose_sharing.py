"""Compose services that share something with their node, with each other, or with a file."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.importers.test_compose import imported, service

OPTIONS = [
    ("devices: [/dev/f, {source: /dev/a, target: /dev/b, permissions: r}]", "devices", ["/dev/f", "/dev/a:/dev/b:r"]),
    ("device_cgroup_rules: ['c 1:3 mr']", "device_rules", ["c 1:3 mr"]),
    ("group_add: [video, 20]", "groups", ["video", "20"]),
    ("ipc: host", "ipc", "host"),
    ("pid: host", "pid", "host"),
    ("uts: host", "uts", "host"),
    ("userns_mode: host", "userns", "host"),
    ("cgroup: private", "cgroupns", "private"),
    ("cpuset: 0-1", "cpuset", "0-1"),
    ("cpu_shares: 512", "cpu_shares", 512),
    ("oom_score_adj: -5", "oom_score_adj", -5),
    ("dns_opt: [ndots:2]", "dns_options", ["ndots:2"]),
    ("domainname: example", "domainname", "example"),
    ("security_opt: [seccomp:unconfined]", "security_opt", ["seccomp=unconfined"]),
    ("stdin_open: true", "stdin", True),
    ("tty: true", "stdin", True),
]  # fmt: skip


@pytest.mark.req("S0-32")
@pytest.mark.parametrize(("text", "option", "value"), OPTIONS)
def test_what_a_container_shares_with_its_node_is_an_option_of_its_engine(text: str, option: str, value: Any) -> None:
    assert service(text)["options"]["podman"][option] == value


@pytest.mark.parametrize("text", ["ipc: service:db", "pid: container:x", "devices: [vendor.com/gpu=all]"])
def test_what_it_shares_with_another_container_is_reported(text: str) -> None:
    found = imported(f"services: {{web: {{image: a, {text}}}}}")
    assert [note.fate for note in found.report.notes] == ["dropped"]


@pytest.mark.req("S0-32")
def test_volumes_of_another_service_are_mounted_at_the_same_places() -> None:
    text = (
        "services:\n"
        "  db: {image: a, volumes: ['data:/data', '/srv/x:/x', '/own']}\n"
        "  backup: {image: b, volumes_from: ['db:ro']}\n"
        "volumes: {data: }\n"
    )
    found = imported(text)
    assert found.made[-1].manifest["mounts"] == [
        {"volume": "data", "path": "/data", "seed": True, "read_only": True},
        {"volume": "srv-x", "path": "/x", "read_only": True},
    ]
    assert [note.path for note in found.report.notes if "shared with db" in note.text] == [
        "services.backup.volumes_from"
    ]


def test_labels_are_read_from_a_file() -> None:
    assert service("label_file: ./l", {"shop/l": "a=b\n"})["labels"]["a"] == "b"


def test_of_two_volumes_for_one_place_the_last_one_counts() -> None:
    found = imported("services: {web: {image: a, volumes: ['one:/d', 'two:/d']}}\nvolumes: {one: , two: }")
    assert found.made[-1].manifest["mounts"] == [{"volume": "two", "path": "/d", "seed": True}]
    assert any("/d" in note.text for note in found.report.notes)
