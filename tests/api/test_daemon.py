"""Daemons over REST: what an apply warns of, what a plan and an explanation say."""

from __future__ import annotations

from typing import Any

import pytest

from mandor.model.instance import Instance, InstanceSpec, InstanceStatus
from mandor.model.meta import Meta
from mandor.model.node import Taint
from mandor.model.phase import Phase
from mandor.model.workload import make_release
from tests.api.conftest import Api
from tests.api.test_explain import ask
from tests.api.test_plan import files, plan, put
from tests.scenarios.make import GI, make_node, make_workload

EXPORTER = "name: exp\ntype: daemon\ncommand: [run]\nresources: {memory: 1Gi}\n"
SWEEP = EXPORTER.replace("type: daemon", "type: batch\nbatch: {per_node: true}")
RULE = "placement: {where: [disk == ssd]}\n"
PICKY = EXPORTER + RULE
EVERYWHERE = pytest.mark.parametrize("text", [EXPORTER, SWEEP], ids=["daemon", "batch"])


async def apply(api: Api, text: str, status: int = 200) -> dict[str, Any]:
    session = await api.session()
    async with session.post("/v1/apply", json=files(text)) as answer:
        found: dict[str, Any] = await answer.json()
        assert answer.status == status, found
        return found


@EVERYWHERE
async def test_an_apply_warns_of_a_daemon_that_matches_no_node(dev: Api, text: str) -> None:
    await put(dev, make_node("n1"), make_node("n2"))
    found = await apply(dev, text + RULE)
    assert found["results"][0]["warnings"] == ["no node matches: 2 not `disk == ssd`"]
    assert not (await apply(dev, text))["results"][0].get("warnings")


@EVERYWHERE
async def test_a_plan_puts_one_on_every_node_that_matches(dev: Api, text: str) -> None:
    small, tainted = make_node("n3", memory=GI // 2), make_node("n4", taints=(Taint("a"),))
    await put(dev, make_node("n1"), make_node("n2", cordoned=True), small, tainted)
    found = await plan(dev, files(text))
    assert {(each["instance"], each["node"]) for each in found["placements"]} == {("exp-n1", "n1"), ("exp-n2", "n2")}
    assert [each["instance"] for each in found["pending"]] == ["exp-n3"]
    assert "short of 512Mi memory" in found["pending"][0]["message"]


async def test_a_plan_of_a_drain_ends_the_daemon_and_begins_it_nowhere_else(dev: Api) -> None:
    workload = make_workload("exp", type="daemon", version=0)
    await put(dev, make_node("n1"), make_node("n2"), workload, make_release(workload, 1))
    for name in ("n1", "n2"):
        spec = InstanceSpec(workload="exp", release="exp.1", index=0, node=name, pin=name)
        status = InstanceStatus(phase=Phase.RUNNING, ready=True)
        await put(dev, Instance(meta=Meta(name=f"exp-{name}", namespace="default"), spec=spec, status=status))
    found = await plan(dev, query="?drain=n1")
    assert [each["instance"] for each in found["ended"]] == ["exp-n1"]
    assert not found.get("placements")
    assert not found.get("pending")


@EVERYWHERE
async def test_an_explanation_reports_which_nodes_do_not_match(dev: Api, text: str) -> None:
    await put(dev, make_node("n1"), make_node("n2", labels={"disk": "ssd"}))
    await apply(dev, text + RULE)
    found = await ask(dev, "workloads/exp")
    assert found["summary"] == "1 of 2 nodes does not match: 1 not `disk == ssd`"


async def test_a_daemon_is_not_scaled_and_a_service_can_become_one(dev: Api) -> None:
    await apply(dev, EXPORTER)
    session = await dev.session()
    async with session.patch("/v1/workloads/exp", json={"spec": {"groups": {"main": {"replicas": 3}}}}) as answer:
        assert answer.status == 400
        assert "a daemon cannot set `replicas`" in (await answer.json())["detail"]
    await apply(dev, "name: exp\ncommand: [run]\nreplicas: 3\n")
    await apply(dev, EXPORTER)
