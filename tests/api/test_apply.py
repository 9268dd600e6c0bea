"""Manifests over HTTP: apply, diff, prune, delete, and what bad ones get."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from mandor.api import writing
from mandor.api.apply import plan_apply
from mandor.api.caller import LOCAL
from mandor.api.writing import Author
from mandor.client.aio import Client
from mandor.errors import Conflict, Forbidden, Invalid, MandorError, TooLarge
from mandor.model.audit import Audit
from mandor.model.dependency_cycle import find_cycles
from mandor.model.manifest import load_manifests
from mandor.model.meta import Key, Meta
from mandor.model.near_cycle import find_deadlocks
from mandor.model.record import Namespace
from mandor.model.workload import Workload
from mandor.store.base import Check, Put, Write
from mandor.testing.store import make_instance, make_node
from tests.api.conftest import Api

YAML = "application/yaml"
WEB = "name: web\nlabels: {app: shop}\ncommand: [sleep, '60']\nreplicas: 3\n"


async def send(client: Client, text: str | bytes, path: str = "/v1/apply", **query: Any) -> dict[str, Any]:
    import msgspec

    data = text.encode() if isinstance(text, str) else text
    answer = await client.request("POST", path, query=query, body=data, content_type=YAML)
    found: dict[str, Any] = msgspec.json.decode(answer)
    return found


def actions(answer: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["action"] for each in answer["results"]}


async def stored(api: Api, name: str, namespace: str = "default") -> Workload | None:
    found = await api.store.get(Key("workload", namespace, name))
    assert found is None or isinstance(found, Workload)
    return found


@pytest.mark.req("S2-11", "S0-32")
async def test_applying_creates_changes_and_then_leaves_alone(dev: Api) -> None:
    client = await dev.client()
    first = await send(client, WEB)
    assert actions(first) == {"web": "created"}
    again = await send(client, WEB)
    assert actions(again) == {"web": "unchanged"}
    made = await stored(dev, "web")
    assert made is not None
    assert made.meta.version == first["revision"]
    changed = await send(client, WEB.replace("'60'", "'90'").replace("3", "4"))
    assert actions(changed) == {"web": "changed"}
    assert changed["results"][0]["changes"] == [
        {"path": "spec.groups.main.replicas", "before": 3, "after": 4},
        {"path": "spec.groups.main.tasks.main.command", "before": ["sleep", "60"], "after": ["sleep", "90"]},
    ]


async def test_several_files_are_applied_together(dev: Api) -> None:
    client = await dev.client()
    files = [{"name": "a.yaml", "text": WEB}, {"name": "b.yaml", "text": "name: api\ncommand: [sleep]"}]
    answer = await client.call("POST", "/v1/apply", dict, body={"files": files})
    assert actions(answer) == {"web": "created", "api": "created"}
    found = [await stored(dev, name) for name in ("web", "api")]
    assert all(each is not None and each.meta.version == answer["revision"] for each in found)


async def test_a_json_manifest_is_a_manifest(dev: Api) -> None:
    client = await dev.client()
    body = {"name": "web", "command": ["sleep", "1"]}
    assert actions(await client.call("POST", "/v1/apply", dict, body=body)) == {"web": "created"}


@pytest.mark.req("S2-11")
async def test_an_apply_without_replicas_keeps_the_count(dev: Api) -> None:
    client = await dev.client()
    await send(client, WEB)
    await client.call("PATCH", "/v1/workloads/web", dict, body={"spec": {"groups": {"main": {"replicas": 7}}}})
    answer = await send(client, WEB.replace("replicas: 3\n", "priority: 1\n"))
    assert [each["path"] for each in answer["results"][0]["changes"]] == ["spec.priority"]
    found = await stored(dev, "web")
    assert found is not None
    assert found.spec.groups["main"].replicas == 7


async def test_an_apply_forgets_no_restart(dev: Api) -> None:
    client = await dev.client()
    await send(client, WEB)
    await client.call("PATCH", "/v1/workloads/web", dict, body={"spec": {"restarted": 2}})
    assert actions(await send(client, WEB)) == {"web": "unchanged"}
    found = await stored(dev, "web")
    assert found is not None
    assert found.spec.restarted == 2


async def test_a_dry_run_reports_and_does_nothing(dev: Api) -> None:
    client = await dev.client()
    before = (await dev.store.list(None)).revision
    assert actions(await send(client, WEB, dry_run=True)) == {"web": "created"}
    assert (await dev.store.list(None)).revision == before
    await send(client, WEB)
    diff = await send(client, WEB.replace("3", "5"), dry_run=True)
    assert diff["results"][0]["changes"] == [{"path": "spec.groups.main.replicas", "before": 3, "after": 5}]
    found = await stored(dev, "web")
    assert found is not None
    assert found.spec.groups["main"].replicas == 3


async def test_prune_deletes_only_what_has_the_labels_and_is_not_named(dev: Api) -> None:
    client = await dev.client()
    await send(
        client,
        "kind: namespace\nname: team\nlevel: privileged\n---\n" + WEB.replace("web", "far") + "namespace: team\n",
    )
    for name, app in (("old", "shop"), ("other", "blog")):
        await send(client, f"name: {name}\nlabels: {{app: {app}}}\ncommand: [sleep]")
    plan = await send(client, WEB, prune=True, labels="app=shop", dry_run=True)
    assert actions(plan) == {"web": "created", "old": "deleted"}
    assert await stored(dev, "old") is not None
    assert actions(await send(client, WEB, prune=True, labels="app=shop")) == {"web": "created", "old": "deleted"}
    assert await stored(dev, "old") is None
    assert await stored(dev, "other") is not None
    assert await stored(dev, "far", "team") is not None
    with pytest.raises(Invalid):
        await send(client, WEB, prune=True)


async def test_delete_removes_what_the_file_names(dev: Api) -> None:
    client = await dev.client()
    await send(client, WEB)
    await send(client, "name: other\ncommand: [sleep]")
    assert actions(await send(client, WEB, "/v1/delete", dry_run=True)) == {"web": "deleted"}
    assert await stored(dev, "web") is not None
    assert actions(await send(client, WEB, "/v1/delete")) == {"web": "deleted"}
    assert await stored(dev, "web") is None
    assert await stored(dev, "other") is not None
    assert actions(await send(client, WEB, "/v1/delete")) == {"web": "unchanged"}


async def test_a_file_with_a_namespace_and_what_lives_in_it_can_be_applied_and_deleted(dev: Api) -> None:
    client = await dev.client()
    text = WEB + "namespace: team\n---\nkind: namespace\nname: team\nengines: [process]\npriority_most: 5\n"
    with pytest.raises(MandorError) as caught:
        await send(client, text.replace("replicas: 3", "engine: docker"))
    assert caught.value.code == "forbidden"
    assert caught.value.facts["line"] == 4
    assert actions(await send(client, text)) == {"web": "created", "team": "created"}
    await dev.store.commit(Put(make_instance("web-0", namespace="team")))
    with pytest.raises(Conflict):
        await send(client, text, "/v1/delete")
    assert await stored(dev, "web", "team") is None


async def test_more_objects_than_one_commit_holds_are_applied(dev: Api) -> None:
    client = await dev.client()
    text = "\n---\n".join(f"name: w{number:03}\ncommand: [sleep]" for number in range(250))
    answer = await send(client, text)
    assert set(actions(answer).values()) == {"created"}
    assert len((await dev.store.list("workload")).items) == 250
    assert set(actions(await send(client, text)).values()) == {"unchanged"}


async def test_ninety_nine_objects_are_one_commit(dev: Api) -> None:
    client = await dev.client()
    text = "\n---\n".join(f"name: w{number:03}\ncommand: [sleep]" for number in range(99))
    answer = await send(client, text)
    assert {each.meta.version for each in (await dev.store.list("workload")).items} == {answer["revision"]}
    (record,) = (await dev.store.list("audit")).items
    assert isinstance(record, Audit)
    assert "99 objects" in record.spec.about


# What bad input gets: a clear error with code, hint and line, and nothing stored.

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "\n".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.req("S2-12")
@pytest.mark.parametrize(
    ("text", "code", "line", "word"),
    [
        (WEB + "---\nname: api\ncomand: [sleep]\n", "invalid", 7, "command"),
        (WEB + "resources: {memory: 5 parsec}\n", "invalid", 5, "256Mi"),
        (WEB.replace("3", "-3"), "invalid", 4, ""),
        (f"name: {'x' * 300}\ncommand: [sleep]\n", "invalid", 1, "63"),
        (WEB + "---\n" + WEB, "invalid", 6, ""),
        (WEB + "engine: proces\n", "invalid", 5, "process"),
        (WEB + "engine: warp-drive\n", "invalid", 5, "process"),
        (WEB + BOMB, None, None, ""),
        (b"\x00\x01\x02\xff\xfe\xfd" * 50, None, None, ""),
        (b"\x7fELF\x02\x01\x01" + bytes(range(256)), None, None, ""),
        ("name: web\n  command: [", "invalid", None, ""),
        ("[" * 10_000, None, None, ""),
        ("", "invalid", None, ""),
        ("just text", "invalid", 1, ""),
        ("kind: pod\nname: x", "invalid", 1, ""),
        (WEB + "name: twice\n", "invalid", 5, ""),
        (WEB + "namespace: nowhere\n", "invalid", 5, ""),
    ],
)
async def test_a_bad_manifest_is_refused_in_words_and_stores_nothing(
    dev: Api, text: str | bytes, code: str | None, line: int | None, word: str
) -> None:
    client = await dev.client()
    before = (await dev.store.list(None)).revision
    with pytest.raises(MandorError) as caught:
        await send(client, text)
    error = caught.value
    assert error.code in ({code} if code else {"invalid", "too_large"})
    assert error.message
    if line is not None:
        assert error.facts["line"] == line
    assert word in f"{error.message} {error.hint}"
    assert (await dev.store.list(None)).revision == before


async def test_the_file_of_a_mistake_is_named(dev: Api) -> None:
    client = await dev.client()
    files = [{"name": "a.yaml", "text": WEB}, {"name": "b.yaml", "text": "name: api\n\ncomand: [sleep]"}]
    with pytest.raises(Invalid) as caught:
        await client.call("POST", "/v1/apply", dict, body={"files": files})
    assert (caught.value.facts["file"], caught.value.facts["line"]) == ("b.yaml", 3)
    assert await stored(dev, "web") is None


async def test_a_manifest_of_ten_mebibytes_is_too_large(dev: Api) -> None:
    client = await dev.client()
    with pytest.raises(TooLarge):
        await send(client, WEB + "# " + "x" * (10 * 1024 * 1024))
    with pytest.raises(TooLarge):
        await send(client, WEB + "# " + "x" * (2 * 1024 * 1024))
    assert await stored(dev, "web") is None


async def test_a_body_without_a_length_is_bounded_too(dev: Api) -> None:
    session = await dev.session()

    async def endless() -> Any:
        for _ in range(20):
            yield b"#" * 1024 * 1024

    async with session.post("/v1/apply", data=endless(), headers={"content-type": YAML}) as answer:
        assert answer.status == 413


async def test_a_cycle_of_near_rules_with_what_is_stored_is_refused(dev: Api) -> None:
    client = await dev.client()
    await send(client, "name: db\ncommand: [sleep]\nplacement: {near: [{workload: web}]}")
    with pytest.raises(Invalid, match="web waits for db, db waits for web") as caught:
        await send(client, "name: web\ncommand: [sleep]\nplacement: {near: [{workload: db}]}")
    assert caught.value.hint == "set `strength: should` on one of these rules"
    assert await stored(dev, "web") is None
    await send(client, "name: web\ncommand: [sleep]\nplacement: {near: [{workload: db, strength: should}]}")


@pytest.mark.req("S0-16")
async def test_checks_over_all_documents_run_once_regardless_of_their_number(
    dev: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[str] = Counter()

    def counted(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            asked[name] += 1
            return plain(*given)

        return call

    monkeypatch.setattr("mandor.api.pending_objects.find_cycles", counted("circles", find_cycles))
    monkeypatch.setattr("mandor.api.pending_objects.find_deadlocks", counted("deadlocks", find_deadlocks))
    monkeypatch.setattr(dev.store, "list", counted("lists", dev.store.list))
    seen = []
    for many in (10, 50):
        asked.clear()
        text = "---\n".join(
            f"name: w{number}\ncommand: [run]\ndepends_on: {{db: started}}\n"
            "placement: {near: [{workload: db, strength: must}]}\n"
            for number in range(many)
        )
        assert len((await plan_apply(dev.parts, Author(LOCAL), load_manifests(text))).checked) == many
        seen.append(dict(asked))
    assert seen[0] == seen[1]
    assert (seen[0]["circles"], seen[0]["deadlocks"]) == (1, 1)


OBJECTS = "kind: namespace\nname: team\nlevel: privileged\n---\n" + "---\n".join(
    f"name: w{number}\nnamespace: team\ncommand: [sleep]\n" for number in range(4)
)


async def test_an_apply_checks_and_admits_every_object_exactly_once(dev: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()

    def counted(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            calls[name] += 1
            return plain(*given, **named)

        return call

    for name in ("completed", "check_write", "check_grants", "check_outward", "admit", "known_engines"):
        monkeypatch.setattr(writing, name, counted(name, getattr(writing, name)))
    answer = await send(await dev.client(), OBJECTS)
    assert len(answer["results"]) == 5
    once = dict.fromkeys(("completed", "check_write", "check_grants", "check_outward", "admit"), 5)
    assert calls == once | {"known_engines": 1}


async def test_a_namespace_that_is_restricted_while_an_apply_is_planned_refuses_the_apply(
    dev: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await dev.client()
    await send(client, OBJECTS.partition("---")[0])

    async def commit_late(*given: Any, **named: Any) -> int:
        monkeypatch.undo()
        await send(client, "kind: namespace\nname: team\nlevel: privileged\nengines: [docker]\n")
        return await writing.commit_checked(*given, **named)

    monkeypatch.setattr("mandor.api.apply.commit_checked", commit_late)
    with pytest.raises(Forbidden, match="the namespace team"):
        await send(client, "name: web\nnamespace: team\ncommand: [sleep]\nengine: process\n")
    assert await stored(dev, "web", "team") is None


async def test_later_commits_of_an_apply_check_the_namespace_that_an_earlier_one_created(
    dev: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits: list[tuple[Write, ...]] = []
    plain = dev.store.commit

    async def commit(*writes: Write) -> int:
        commits.append(writes)
        return await plain(*writes)

    monkeypatch.setattr(dev.store, "commit", commit)
    workloads = "---\n".join(f"name: w{number}\nnamespace: team\ncommand: [sleep]\n" for number in range(120))
    await send(await dev.client(), f"{OBJECTS.partition('---')[0]}---\n{workloads}")
    first, second = commits
    team = await dev.store.get(Key("namespace", "", "team"))
    assert team is not None
    assert not any(isinstance(each, Check) for each in first)
    assert [each for each in second if isinstance(each, Check)] == [Check(team.key, team.meta.version)]


async def test_deleting_without_rights_answers_the_same_for_existing_and_missing_objects(api: Api) -> None:
    await api.store.commit(Put(Namespace(meta=Meta(name="team"))))
    admin = await api.client(await api.token("admin", "user:ani"))
    await send(admin, "name: web\nnamespace: team\ncommand: [sleep]\nimage: web@sha256:" + "0" * 64)
    token = await api.token("operator", "user:budi", namespaces=("other",))
    errors = []
    for name in ("web", "missing"):
        with pytest.raises(Forbidden) as caught:
            await send(await api.client(token), f"name: {name}\nnamespace: team\ncommand: [sleep]\n", "/v1/delete")
        errors.append(caught.value.message.replace(name, "NAME"))
    assert errors[0] == errors[1]


async def test_a_fact_that_no_node_has_is_a_warning(dev: Api) -> None:
    text = "name: web\nimage: a\nplacement: {where: ['zoen == a', 'disk exists', 'gpu not exists']}\n"
    client = await dev.client()
    assert not (await send(client, text))["results"][0].get("warnings"), "there are no nodes yet"
    await dev.store.commit(Put(make_node("n1", zone="a", disk="ssd")), Put(make_node("n2", zone="b")))
    found = (await send(client, text + "env: {A: b}\n"))["results"][0]["warnings"]
    assert found == ["no node has the fact `zoen` of the rule `zoen == a`; did you mean `zone`?"]
    pool = """\
kind: node-pool
name: burst
autoscale: {provisioner: fake, max: 1, kinds: {small: {cpu: 1, memory: 1Gi, labels: {zoen: a}}}}
---
"""
    both = (await send(client, pool + text))["results"]
    assert not any(each.get("warnings") for each in both), "machines of the pool will have it"
