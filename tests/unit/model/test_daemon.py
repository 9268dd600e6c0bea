"""What a daemon may ask for, and what is refused with its line."""

from __future__ import annotations

import pytest

from mandor.errors import Invalid
from mandor.model.manifest import load_manifests
from mandor.model.workload import Workload

DAEMON = "name: exporter\ntype: daemon\nimage: x\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("replicas: 3", "a daemon cannot set `replicas`"),
        ("gang: {}", "a daemon cannot be a gang"),
        ("batch: {completions: 3}", "`batch` requires `type: batch`"),
        ("schedule: '* * * * *'", "`schedule` requires `type: batch`"),
        ("placement: {spread: [{over: zone}]}", "a daemon cannot be spread"),
        ("disruption: {max_unavailable: 1}", "a daemon cannot limit disruptions"),
        ("update: {order: start-first}", "a daemon cannot run two instances on one node"),
        ("update: {max_surge: 1}", "a daemon cannot run two instances on one node"),
        ("update: {strategy: blue-green}", "a daemon cannot run two instances on one node"),
        ("volumes: {data: {type: local}}", "would be on one node"),
    ],
)
def test_what_makes_no_sense_for_a_daemon_is_refused(text: str, says: str) -> None:
    with pytest.raises(Invalid) as caught:
        load_manifests(DAEMON + text)
    assert says in str(caught.value)
    if "requires `type: batch`" not in says or "schedule" in text:
        assert caught.value.facts["line"] == 4
        assert caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "",
        "update: {canary: 1, max_unavailable: 50%}",
        "placement: {tolerate: [{}], pool: web, where: [zone == a]}",
        "volumes: {data: {type: local, per_instance: true}}",
        "volumes: {logs: {type: host, path: /var/log}}",
        "disruption: {preempt: never}",
    ],
)
def test_what_makes_sense_is_not(text: str) -> None:
    (document,) = load_manifests(DAEMON + text)
    assert isinstance(document.object, Workload)
    assert document.object.spec.type == "daemon"
