"""A token for one namespace: no answer names objects of another, or tells whether they exist."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from mandor.api.app import OPERATIONS
from mandor.errors import Conflict, Forbidden, MandorError, NotFound
from mandor.model.codec import KINDS
from mandor.model.decision import DecisionRecord, DecisionSpec
from mandor.model.instance import Instance
from mandor.model.log_sink import LogSink, LogSinkSpec
from mandor.model.meta import Key, Meta, Object
from mandor.model.node import DrainStatus, Node, NodePhase, NodeStatus
from mandor.model.quota import Quota, QuotaSpec
from mandor.model.rebalance import PlannedMove, Rebalance, RebalanceSpec, RebalanceStatus
from mandor.model.receiver import Webhook, WebhookSpec
from mandor.model.record import Event, EventSpec, Namespace
from mandor.model.secret import Secret, SecretSpec
from mandor.model.spare import Spare, SpareSpec
from mandor.model.usage import GroupUsage, UsageSummary, UsageSummarySpec
from mandor.model.vm_request import VmRequest, VmRequestSpec
from mandor.store.base import Check, Delete, Put
from mandor.store.remote import RemoteStore
from mandor.testing.store import make_instance, make_workload
from tests.api.conftest import Api

MARK = "zzhidden"
"""Stands in every name of the other tenant."""
MINE, THEIRS = "a", f"{MARK}-space"


def of(namespace: str, value: Any) -> Any:
    return value.changed(meta=msgspec.structs.replace(value.meta, namespace=namespace))


def event(name: str, namespace: str, about: str, message: str) -> Event:
    spec = EventSpec(about=about, reason="Tested", message=message, source="test", node="n1")
    return Event(meta=Meta(name=name, namespace=namespace), spec=spec)


def theirs() -> list[Object]:
    """One object of the other namespace of every kind that a user may read, and cluster objects that mention it."""
    moved = PlannedMove(
        instance=f"{MARK}-0", namespace=THEIRS, uid="u", workload=MARK, source="n1", to="n2", gain=1, state="Waiting"
    )
    status = NodeStatus(
        phase=NodePhase.READY,
        images={f"registry/{MARK}:1": 5},
        drain=DrainStatus(phase="Waiting", since=1.0, waiting=(f"{THEIRS}/{MARK}-0 waits",)),
    )
    return [
        Namespace(meta=Meta(name=THEIRS)),
        of(THEIRS, make_workload(MARK)),
        of(THEIRS, make_instance(f"{MARK}-0", node="n1")),
        Secret(meta=Meta(name=f"{MARK}-secret", namespace=THEIRS), spec=SecretSpec()),
        Quota(meta=Meta(name=f"{MARK}-quota", namespace=THEIRS), spec=QuotaSpec(instances=5)),
        VmRequest(meta=Meta(name=f"{MARK}-task", namespace=THEIRS), spec=VmRequestSpec(cpu=1, memory_mib=1, vm=MARK)),
        Spare(meta=Meta(name=f"{MARK}-spare", namespace=THEIRS), spec=SpareSpec(cpu=1, memory_mib=1, cluster=MARK)),
        event(f"{MARK}-event", THEIRS, f"instance {THEIRS}/{MARK}-0", MARK),
        event("about-cluster", "default", "rebalance now", f"moves {THEIRS}/{MARK}-0"),
        DecisionRecord(
            meta=Meta(name="mine-0", namespace=MINE),
            spec=DecisionSpec(at=1.0, uid="u", workload="mine", profile="default", victims=(f"{MARK}-0",)),
        ),
        Webhook(
            meta=Meta(name="receiver-of-b"),
            spec=WebhookSpec(url=f"https://example.com/{MARK}", secret=f"{MARK}-secret", secret_namespace=THEIRS),
        ),
        LogSink(
            meta=Meta(name="logs-of-b"), spec=LogSinkSpec(url="syslog+udp://example.com:514", namespaces=(THEIRS,))
        ),
        UsageSummary(meta=Meta(name="s1"), spec=UsageSummarySpec({f"{THEIRS}/{MARK}": GroupUsage(1)})),
        Rebalance(meta=Meta(name="now"), spec=RebalanceSpec(), status=RebalanceStatus(moves=(moved,))),
        Node(meta=Meta(name="n1"), status=status),
    ]


def mine() -> list[Object]:
    return [
        Namespace(meta=Meta(name=MINE)),
        of(MINE, make_workload("mine")),
        of(MINE, make_instance("mine-0", node="n1")),
    ]


@pytest.fixture
async def shared(api: Api) -> Api:
    """A cluster of two tenants."""
    for each in [*theirs(), *mine()]:
        await api.store.commit(Put(each))
    async with await api.session(await api.token("node", "node:n1")) as agent:
        used = {f"{THEIRS}/{MARK}-0": {"cpu_milli": 1}, f"{MINE}/mine-0": {"cpu_milli": 1}}
        async with agent.post("/v1/nodes/n1/heartbeat", json={"instances": used}) as answer:
            assert answer.status == 200
    return api


STREAMS = frozenset({"watch", "logs"})


@pytest.mark.parametrize("role", ["viewer", "operator", "admin"])
async def test_no_answer_names_what_belongs_to_another_namespace(shared: Api, role: Any) -> None:
    session = await shared.session(await shared.token(role, f"user:{role}", (MINE,)))
    names = {"node": "n1", "workload": "mine", "instance": "mine-0"}
    walked = 0
    for operation in OPERATIONS:
        if operation.method != "GET" or operation.name in STREAMS:
            continue
        kind = operation.path.split("/")[2].rstrip("s") if operation.path.startswith("/v1/") else ""
        path = re.sub(r"{\w+}", names.get(kind, "now"), operation.path)
        for query in ({}, {"namespace": MINE}, {"namespace": THEIRS}):
            known = {field.name for field in msgspec.structs.fields(operation.query)} if operation.query else set()
            if not set(query) <= known and query:
                continue
            async with session.get(path, params=query) as answer:
                text = await answer.text()
                assert answer.status < 500, (path, text)
                if query.get("namespace") == THEIRS:
                    text = text.replace(THEIRS, "")  # as it was asked for
                assert MARK not in text, (path, query, answer.status, text[:2000])
                walked += answer.status == 200
    assert walked > 30, "most of them answer, so this has seen something"


async def test_a_watch_names_nothing_of_another_namespace(shared: Api) -> None:
    session = await shared.session(await shared.token("viewer", "user:v", (MINE,)))
    async with session.get("/v1/watch", params={"since": "0"}) as answer:
        assert answer.status == 200
        for each in theirs():
            stored = await shared.store.get(each.key)
            assert stored is not None
            await shared.store.commit(Put(stored.changed(meta=msgspec.structs.replace(stored.meta, labels={"x": "y"}))))
        last = await shared.store.get(Key("workload", MINE, "mine"))
        assert last is not None
        await shared.store.commit(Put(last.changed(meta=msgspec.structs.replace(last.meta, labels={"the": "last"}))))
        async for line in answer.content:
            assert MARK.encode() not in line, line
            if b'"the":"last"' in line:
                break


@pytest.mark.parametrize("role", ["viewer", "operator", "admin"])
async def test_an_answer_does_not_reveal_whether_an_object_of_another_namespace_exists(shared: Api, role: Any) -> None:
    """Every operation on one object: the same answer for one that is there and for one that is not."""
    session = await shared.session(await shared.token(role, f"user:{role}", (MINE,)))
    present = {each.kind: each.meta.name for each in theirs()}

    async def ask(operation: Any, name: str, query: dict[str, str]) -> tuple[int, str]:
        path = re.sub(r"{\w+}", name, operation.path)
        body = json.dumps({"meta": {"labels": {"x": "y"}}}) if operation.body is not None else None
        headers = {"content-type": operation.takes[0]} if body is not None else {}
        async with session.request(operation.method, path, params=query, data=body, headers=headers) as answer:
            return answer.status, (await answer.text()).replace(THEIRS, "SPACE").replace(name, "NAME")

    for operation in OPERATIONS:
        if "{" not in operation.path or operation.name in {"join", "watch"}:
            continue
        word = operation.path.split("/")[2] if operation.path.startswith("/v1/") else operation.path.split("/")[1]
        kind = next((each.kind for each in KINDS.values() if word in {each.plural, each.kind}), "task")
        if kind not in present or kind in {"node", "rebalance", "namespace"}:
            continue
        if kind == "webhook" and operation.name != "get_webhook":
            continue
        known = {field.name for field in msgspec.structs.fields(operation.query)} if operation.query else set()
        for version in ("", "1"):
            query = {"namespace": THEIRS, "version": version}
            query = {name: value for name, value in query.items() if name in known and value}
            there = await ask(operation, present[kind], query)
            absent = await ask(operation, f"{MARK}-absent", query)
            assert there == absent, (operation.name, there, absent)


async def test_versions_of_a_commit_are_compared_after_rights(shared: Api) -> None:
    store = RemoteStore(await shared.client(await shared.token("operator", "user:o", (MINE,))))
    there, absent = of(THEIRS, make_workload(MARK)), of(THEIRS, make_workload("absent"))
    told = set()
    for each in (there, absent):
        for version in (0, 1, 3):
            written = each.changed(meta=msgspec.structs.replace(each.meta, version=version))
            for write in (Put(written), Delete(each.key, version), Check(each.key, version)):
                with pytest.raises(MandorError) as caught:
                    await store.commit(write)
                told.add(
                    (
                        type(write),
                        type(caught.value),
                        str(caught.value).replace(THEIRS, "SPACE").replace(each.meta.name, "NAME"),
                    )
                )
    assert {kind for _, kind, _ in told} == {Forbidden}
    assert len(told) <= 3, told


async def test_a_namespace_that_exists_is_checked_as_one_that_does_not(shared: Api) -> None:
    store = RemoteStore(await shared.client(await shared.token("admin", "user:o", (MINE,))))
    for name in (THEIRS, "absent"):
        with pytest.raises(Conflict, match="does not exist"):
            await store.commit(Check(Key("namespace", "", name), 1))


async def test_a_node_cannot_find_out_whether_another_node_has_an_instance(shared: Api) -> None:
    await shared.store.commit(Put(of(THEIRS, make_instance(f"{MARK}-far", node="n2"))))
    client = await shared.client(await shared.token("node", "node:n7"))
    store = RemoteStore(client)
    for name in (f"{MARK}-far", "absent"):
        with pytest.raises(NotFound):
            await client.request("GET", f"/v1/instances/{name}", query={"namespace": THEIRS})
        claimed: Instance = of(THEIRS, make_instance(name, node="n7"))
        claimed = claimed.changed(meta=msgspec.structs.replace(claimed.meta, version=1))
        for write in (Put(claimed), Check(claimed.key, 1)):
            with pytest.raises(Conflict, match="does not exist"):
                await store.commit(write)


@pytest.mark.parametrize(
    ("namespace", "about", "allowed"),
    [
        (MINE, f"instance {MINE}/mine-0", True),
        (MINE, f"instance {MINE}/gone-3", True),
        ("default", "node n1", True),
        (THEIRS, "instance {0}/{1}-far", False),
        ("other", "instance other/gone-0", False),
        ("other", f"instance {MINE}/mine-0", False),
        (THEIRS, "node n1", False),
        ("default", "node n2", False),
        (MINE, f"workload {MINE}/mine", False),
    ],
)
async def test_a_node_records_events_only_where_it_has_instances(
    api: Api, namespace: str, about: str, allowed: bool
) -> None:
    for each in [*mine(), Node(meta=Meta(name="n1")), of(THEIRS, make_instance(f"{MARK}-far", node="n2"))]:
        await api.store.commit(Put(each))
    store = RemoteStore(await api.client(await api.token("node", "node:n1")))
    write = Put(event("e1", namespace, about.format(THEIRS, MARK), "text"))
    if allowed:
        await store.commit(write)
    else:
        with pytest.raises(Forbidden):
            await store.commit(write)


async def test_nodes_and_join_tokens_read_no_tasks(shared: Api) -> None:
    for role, identity in (("node", "node:n3"), ("join", "join:x")):
        session = await shared.session(await shared.token(role, identity))  # type: ignore[arg-type]
        async with session.get("/tasks", params={"namespace": THEIRS}) as answer:
            assert answer.status == 403
