"""Changed secrets reach running tasks with `on_change: restart`, in a roll-out; nothing else restarts any task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mandor.api.secret import blanked, opened, sealed
from mandor.api.secret_keys import Keys
from mandor.errors import Invalid
from mandor.lib.sealing import KeyRing, Sealer
from mandor.model.features import gated
from mandor.model.manifest import load_manifests
from mandor.model.meta import Key, Meta
from mandor.model.secret import Secret, SecretSpec, SecretStatus
from mandor.roots.bootstrap import ensure_cluster
from mandor.store.base import Put
from mandor.store.memory import MemoryStore
from tests.e2e.cluster import Cluster, eventually

RING = KeyRing([Sealer(b"1" * 32)])
SECRET = "kind: secret\nname: db\ndata: {{password: {}}}\n"
TEAM = "kind: namespace\nname: team\n---\nkind: secret\nname: db\nnamespace: team\ndata: {{password: {}}}\n"
TASKS = """
name: web
replicas: 3
engine: process
update: {{order: stop-first, max_unavailable: 1, min_healthy: 1s}}
command: [sh, -c, 'echo "$DB" >> {folder}/$MANDOR_INSTANCE; while :; do sleep 0.1; done']
secrets: {{DB: db/password}}
on_change: restart
stop: {{grace: 1s}}
---
name: file
engine: process
command: [sh, -c, 'echo $(cat password) >> {folder}/$MANDOR_INSTANCE; while :; do sleep 0.1; done']
files: [{{path: password, secret: db/password, on_change: restart}}]
update: {{order: stop-first}}
stop: {{grace: 1s}}
---
name: still
engine: process
command: [sh, -c, 'echo "$DB" >> {folder}/$MANDOR_INSTANCE; while :; do sleep 0.1; done']
secrets: {{DB: db/password}}
stop: {{grace: 1s}}
"""


def secret(data: dict[str, str], *, changes: int = 0) -> Secret:
    meta = Meta(name="db", namespace="default")
    return Secret(meta=meta, spec=SecretSpec(data=data), status=SecretStatus(changes=changes))


def stored(data: dict[str, str], before: Secret | None = None, *, changes: int = 0) -> Secret:
    found = sealed(RING, before, secret(data, changes=changes))
    assert isinstance(found, Secret)
    return found


def test_only_a_write_that_changes_a_value_is_counted() -> None:
    first = stored({"a": "1", "b": "2"})
    assert first.status.changes == 0
    same = stored({"b": "2", "a": "1"}, first)
    assert (same.status.changes, same.spec) == (0, first.spec)
    for data in ({"a": "1"}, {"a": "1", "b": "3"}, {"a": "1", "b": "2", "c": ""}):
        assert stored(data, first).status.changes == 1
    again = sealed(RING, first, stored({"a": "2", "b": "2"}, first))  # apply seals before its commit does
    assert isinstance(again, Secret)
    assert again.status.changes == 1


def test_the_count_is_the_servers_and_not_the_callers() -> None:
    first = stored({"a": "1"}, changes=7)
    assert first.status.changes == 0
    assert stored({"a": "1"}, first, changes=7).status.changes == 0
    forged = first.changed(status=SecretStatus(changes=7))
    again = sealed(RING, first, forged)
    assert isinstance(again, Secret)
    assert again.status.changes == 0


def test_readers_see_the_same_content_id_and_no_value_in_it() -> None:
    first = stored({"a": "1"})
    second = stored({"a": "hunter2"}, first)
    assert first.content_id != second.content_id
    assert blanked(second).content_id == opened(RING, second).content_id == second.content_id
    assert "hunter2" not in second.content_id


def test_a_server_among_older_ones_changes_values_without_the_new_field() -> None:
    first = stored({"a": "1"})
    changed = sealed(RING, first, secret({"a": "2"}), counted=False)
    assert gated(changed) == []
    assert gated(stored({"a": "2"}, first)) != []


async def test_a_key_rotation_changes_no_content_id() -> None:
    store = MemoryStore()
    await ensure_cluster(store, master=RING)
    keys = Keys(store, RING)
    await keys.load()
    await store.commit(Put(stored({"a": "1"}, stored({"a": "0"}))))
    key = Key(Secret.kind, "default", "db")
    before = await store.get(key)
    assert (await keys.rotate(1.0)).resealed == 1
    after = await store.get(key)
    assert isinstance(before, Secret)
    assert isinstance(after, Secret)
    assert before.spec != after.spec
    assert before.content_id == after.content_id


@pytest.mark.parametrize(
    ("manifest", "story"),
    [
        ("files: [{path: a, content: b, on_change: none}]", "a change of `content` is always rolled out"),
        ("type: batch\non_change: restart\nsecrets: {A: db}", "a batch cannot restart when a secret changes"),
        ("on_change: reload\nsecrets: {A: db}", "on_change"),
    ],
)
def test_what_cannot_be_done_about_a_change_is_refused(manifest: str, story: str) -> None:
    with pytest.raises(Invalid) as caught:
        load_manifests(f"name: web\ncommand: ['true']\n{manifest}\n")
    assert story in str(caught.value)
    assert "on_change" in str(caught.value) + str(caught.value.hint)


def test_a_changed_value_reaches_tasks_one_after_another_and_nothing_else_restarts_them(tmp_path: Path) -> None:
    folder = tmp_path / "seen"
    folder.mkdir()

    def seen(name: str) -> list[str]:
        return (folder / name).read_text().split() if (folder / name).exists() else []

    with Cluster(tmp_path) as cluster:
        cluster.start_server()
        cluster.start_agent("n1")
        cluster.wait_nodes("n1")
        cluster.apply(SECRET.format("alpha-value"))
        cluster.apply(TEAM.format("one"))
        cluster.apply(TASKS.format(folder=folder))
        names = [f"web-{number}" for number in range(3)]
        eventually("all have begun", lambda: all(seen(each) for each in (*names, "file-0", "still-0")))
        (still,) = cluster.wait_running("still", 1)
        eventually("the roll-out is through", lambda: rollout(cluster) == ("web.1", "Done"))

        # None of these changes a value that a task reads.
        assert cluster.mandor("secrets", "rotate-key").returncode == 0
        cluster.apply(SECRET.format("alpha-value"))
        cluster.apply(TEAM.format("two"))

        cluster.apply(SECRET.format("beta-value"))
        least = 3

        def through() -> bool:
            nonlocal least
            running = [one for one in cluster.instances("web", phase="Running") if "stop" not in one["spec"]]
            least = min(least, len(running))
            return all(seen(each)[-1] == "beta-value" for each in (*names, "file-0"))

        eventually("all see the new value", through)
        eventually("the roll-out is through", lambda: rollout(cluster) == ("web.2", "Done"))
        assert least == 2  # max_unavailable is 1
        for each in (*names, "file-0"):
            assert seen(each) == ["alpha-value", "beta-value"]
        assert seen("still-0") == ["alpha-value"]
        (unchanged,) = cluster.wait_running("still", 1)
        assert unchanged["meta"]["uid"] == still["meta"]["uid"]
        assert {one["spec"]["release"] for one in cluster.wait_running("web", 3)} == {"web.2"}

        (made,) = [one for one in cluster.items("releases") if one["meta"]["name"] == "web.2"]
        assert made["spec"]["cause"] == "restart: secret db changed"
        said = eventually("the event is there", lambda: events(cluster, "SecretChanged"))
        assert {one["spec"]["about"] for one in said} == {"workload default/web", "workload default/file"}
        shown = str(cluster.items("events")) + str(cluster.items("releases")) + str(cluster.items("workloads"))
        assert "secret db changed" in shown
        assert "alpha-value" not in shown
        assert "beta-value" not in shown


def rollout(cluster: Cluster) -> tuple[str, str]:
    (web,) = [one for one in cluster.items("workloads") if one["meta"]["name"] == "web"]
    now = web["status"]["rollout"]
    return now["release"], now.get("phase", "Progressing")


def events(cluster: Cluster, reason: str) -> list[Any]:
    found = [one for one in cluster.items("events") if one["spec"]["reason"] == reason]
    return found if len(found) == 2 else []
