"""Explanations over REST: of instances that wait, of those that are placed, of workloads; and who may ask."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from mandor.cli.explaining import Lines, write_explanation
from mandor.lib.quantity import Cpu, Size
from mandor.model.decision import DecisionRecord, DecisionSpec
from mandor.model.instance import Instance
from mandor.model.machine import Machine, MachineKind, NodeAutoscale, PoolScaling
from mandor.model.meta import Meta, Object
from mandor.model.phase import Phase
from mandor.model.pool import NodePool, NodePoolSpec, NodePoolStatus
from mandor.model.workload import Workload, make_release
from mandor.roots.inquiry import HttpInquiry
from mandor.scheduler.reload import ConfigSource
from mandor.store.base import Put
from tests.api.conftest import Api, StartApi
from tests.scenarios.make import GI, MI, make_instance, make_node, make_workload


async def put(api: Api, *values: Object) -> None:
    await api.store.commit(*(Put(value) for value in values))


def release_of(workload: Workload) -> Object:
    return make_release(workload, 1)


async def fill(api: Api, *, replicas: int = 2, **fields: Any) -> None:
    """Two nodes, one of them cordoned; the first `web` runs on n1, the others wait."""
    workload = make_workload("web", replicas=replicas, version=0, cpu="1", memory="3Gi", **fields)
    await put(
        api,
        make_node("n1", memory=4 * GI),
        make_node("n2", memory=4 * GI, cordoned=True),
        workload,
        release_of(workload),
        make_instance(0, Phase.RUNNING, version=0),
        *(make_instance(index, Phase.PENDING, version=0) for index in range(1, replicas)),
    )


async def ask(api: Api, path: str, status: int = 200, token: str = "") -> dict[str, Any]:
    session = await api.session(token)
    async with session.get(f"/v1/explain/{path}") as answer:
        found: dict[str, Any] = await answer.json()
        assert answer.status == status, found
        return found


@pytest.mark.req("S0-35")
async def test_a_pending_instance_is_explained_with_refusing_plugins_and_the_smallest_change(dev: Api) -> None:
    await fill(dev)
    found = await ask(dev, "instances/web-1")
    text = "0/2 nodes fit: 1 NodeUnschedulable (1 cordoned), 1 NodeResourcesFit (short of 2Gi memory)"
    assert found["summary"] == text
    assert found["phase"] == "Pending"
    assert {each["plugin"]: (each["nodes"], each["why"]) for each in found["steps"][0]["refusals"]} == {
        "NodeResourcesFit": (1, "short of 2Gi memory"),
        "NodeUnschedulable": (1, "1 cordoned"),
    }
    remedies = [(each["kind"], each["node"]) for each in found["remedies"]]
    assert remedies[0] == ("uncordon", "n2")
    assert ("less", "n1") in remedies
    assert ("end", "n1") in remedies
    assert "nodes" not in found


async def test_the_verdict_on_each_node_is_included_on_request(dev: Api) -> None:
    await fill(dev)
    found = await ask(dev, "instances/web-1?nodes=true")
    assert found["nodes"] == [
        {"node": "n1", "fits": False, "plugin": "NodeResourcesFit", "why": "short of 2Gi memory"},
        {"node": "n2", "fits": False, "plugin": "NodeUnschedulable", "why": "cordoned"},
    ]


async def test_a_gate_is_the_reason_and_the_rules_are_explained_as_well(dev: Api) -> None:
    await fill(dev, gates=("budget",))
    found = await ask(dev, "instances/web-1")
    assert "budget" in found["summary"]


async def test_room_that_is_about_to_be_free_is_the_smallest_change(dev: Api) -> None:
    await fill(dev)
    running = await dev.store.get(make_instance(0).key)
    assert isinstance(running, Instance)
    await put(dev, running.stopping("deleted by user"))
    found = await ask(dev, "instances/web-1")
    assert found["remedies"][0]["kind"] == "wait"
    assert found["remedies"][0]["text"] == "wait until web-0 has stopped"


async def test_a_placed_instance_is_explained_with_the_scores_of_nodes(dev: Api) -> None:
    await fill(dev)
    found = await ask(dev, "instances/web-0")
    assert found["node"] == "n1"
    assert found["summary"] == "placed on n1, the only node that fits"
    assert [each["node"] for each in found["scores"]] == ["n1"]
    assert found["scores"][0]["total"] == sum(part["weight"] * part["score"] for part in found["scores"][0]["parts"])
    assert found["since"] == ["the decision is not stored; the scores are as of now, without this instance"]


async def test_an_explanation_lists_changes_since_the_decision(dev: Api) -> None:
    await fill(dev)
    instance = await dev.store.get(make_instance(0).key)
    assert instance is not None
    spec = DecisionSpec(at=1.0, uid=instance.meta.uid, workload="web", profile="default", node="n1")
    best = ({"node": "n1", "total": 3, "parts": ()}, {"node": "n9", "total": 2, "parts": ()})
    spec = msgspec.convert({**msgspec.to_builtins(spec), "best": best}, DecisionSpec)
    await put(dev, DecisionRecord(meta=Meta(name="web-0", namespace="default"), spec=spec))
    found = await ask(dev, "instances/web-0")
    assert found["decision"]["node"] == "n1"
    assert any(each.startswith("n1 scored 3 points when it was chosen") for each in found["since"])
    assert "n9 was removed" in found["since"]
    assert "n1, n2 were added" in found["since"]


async def test_a_node_that_would_not_take_it_now_is_reported_to(dev: Api) -> None:
    await fill(dev)
    node = await dev.store.get(make_node("n1").key)
    assert node is not None
    await put(dev, node.changed(spec=msgspec.structs.replace(node.spec, cordoned=True)))
    found = await ask(dev, "instances/web-0")
    assert found["summary"] == "placed on n1, but would not be placed there now: NodeUnschedulable (cordoned)"


async def test_a_workload_is_explained_by_one_of_each_kind(dev: Api) -> None:
    await fill(dev, replicas=4)
    found = await ask(dev, "workloads/web")
    assert found["summary"] == "1 placed on 1 node, 3 pending"
    assert found["nodes"] == {"n1": 1}
    assert [each["instance"] for each in found["instances"]] == ["web-1", "web-0"]


async def test_a_workload_without_instances_reports_it(dev: Api) -> None:
    await put(dev, make_workload("idle", replicas=0, version=0))
    found = await ask(dev, "workloads/idle")
    assert found["summary"] == "no instance needs a node: replicas is 0"


async def test_there_is_nothing_to_explain_about_an_instance_that_is_over(dev: Api) -> None:
    await fill(dev)
    await put(dev, make_instance(9, Phase.SUCCEEDED, version=0))
    found = await ask(dev, "instances/web-9", 400)
    assert found["code"] == "invalid"
    assert "succeeded" in found["detail"]
    assert "mandor describe instance web-9" in found["hint"]


async def test_an_unknown_name_is_not_found(dev: Api) -> None:
    assert (await ask(dev, "instances/nobody", 404))["code"] == "not_found"
    assert (await ask(dev, "workloads/nobody", 404))["code"] == "not_found"
    assert (await ask(dev, "nodes/n1", 404))["code"] == "not_found"


async def test_a_profile_that_does_not_exist_is_the_reason(dev: Api) -> None:
    await fill(dev, profile="gpu")
    found = await ask(dev, "instances/web-1")
    assert found["summary"] == "there is no profile gpu; the profiles are baremetal, default"


async def test_a_viewer_may_ask_within_his_namespace_and_others_are_not_named_to_him(api: Api) -> None:
    await fill(api)
    viewer = await api.token("viewer", "user:vera", ("default",))
    assert "summary" in await ask(api, "instances/web-1", token=viewer)
    stranger = await api.token("viewer", "user:sam", ("other",))
    assert (await ask(api, "instances/web-1", 403, token=stranger))["code"] == "forbidden"
    node = await api.token("node", "node:n1")
    assert (await ask(api, "instances/web-1", 403, token=node))["code"] == "forbidden"

    # Somebody of another namespace holds the room: ending him is not proposed by name.
    small = make_workload("small", replicas=1, version=0, memory="1Gi")
    hidden = small.changed(meta=Meta(name="small", namespace="other"))
    await put(
        api,
        hidden,
        make_release(hidden, 1),
        make_instance(0, workload="small", release="small.1", version=0).changed(
            meta=Meta(name="small-0", namespace="other")
        ),
    )
    found = await ask(api, "instances/web-1", token=viewer)
    assert all("small-0" not in each["text"] for each in found["remedies"])


@pytest.mark.req("S1-29", "S1-30")
async def test_the_scheduler_s_own_configuration_and_plugins_are_asked(start_api: StartApi, tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "monday.py").write_text(
        "from mandor.plugin import FilterPlugin\n\n\n"
        "class Monday(FilterPlugin):\n    name = 'Monday'\n\n"
        "    def filter_node(self, state, request, view):\n        return False\n\n"
        "    def why(self, ask, nodes, refused):\n        return 'not on Mondays'\n"
    )
    (tmp_path / "scheduler.yaml").write_text("profiles:\n- plugins: {filter: {enabled: [{name: Monday}]}}\n")
    api = await start_api(config=ConfigSource(tmp_path / "scheduler.yaml", tmp_path / "plugins"), tokens_required=False)
    workload = make_workload("web", replicas=1, version=0)
    await put(api, make_node("n1"), workload, release_of(workload), make_instance(0, Phase.PENDING, version=0))
    found = await ask(api, "instances/web-0")
    assert found["summary"] == "0/1 nodes fit: 1 Monday (not on Mondays)"
    assert found["versions"][0].startswith("Monday@")
    assert found.get("remedies", []) == []


async def test_a_plugin_that_loops_is_broken_off_and_named(start_api: StartApi, tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(
        "from mandor.plugin import FilterPlugin\n\n\n"
        "class Stuck(FilterPlugin):\n    name = 'Stuck'\n\n"
        "    def filter(self, state, request, nodes):\n        while True:\n            pass\n"
    )
    (tmp_path / "scheduler.yaml").write_text("profiles:\n- plugins: {filter: {enabled: [{name: Stuck}]}}\n")
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (tmp_path / "stuck.py").rename(plugins / "stuck.py")
    api = await start_api(config=ConfigSource(tmp_path / "scheduler.yaml", plugins), tokens_required=False)
    workload = make_workload("web", replicas=1, version=0)
    await put(api, make_node("n1"), workload, release_of(workload), make_instance(0, Phase.PENDING, version=0))
    found = await ask(api, "instances/web-0", 503)
    assert "Stuck" in found["detail"]
    assert (await ask(api, "instances/web-0", 503))["code"] == "unavailable"


async def test_concurrent_explanations_are_answered_or_refused_with_a_retry_time(dev: Api) -> None:
    await fill(dev)
    session = await dev.session()

    async def status() -> int:
        async with session.get("/v1/explain/instances/web-1") as answer:
            return answer.status

    codes = await asyncio.gather(*(status() for _ in range(30)))
    assert set(codes) <= {200, 429}
    assert 200 in codes


async def test_odd_sizes_are_shown_as_round_numbers(dev: Api) -> None:
    workload = make_workload("web", replicas=1, version=0, memory="4Gi")
    await put(
        dev,
        make_node("n1", memory=3 * GI + 12345),
        workload,
        release_of(workload),
        make_instance(0, Phase.PENDING, version=0),
    )
    found = await ask(dev, "instances/web-0")
    assert found["summary"] == "0/1 nodes fit: 1 NodeResourcesFit (short of 1Gi memory)"
    assert found["remedies"][0]["text"] == "request 3Gi memory instead of 4Gi (1Gi less)"
    assert 3 * GI + 12345 > 3 * 1024 * MI


EXTENDED = """
profiles: [{}]
extenders:
- {urlPrefix: "%s", filterVerb: filter, nodeCacheCapable: true}
"""


async def test_extenders_are_called_for_explanations_too(start_api: StartApi, tmp_path: Path) -> None:
    asked: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return web.json_response({"nodeNames": [], "failedNodes": {"n1": "not in this weather"}})

    application = web.Application()
    application.router.add_post("/filter", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    (tmp_path / "scheduler.yaml").write_text(EXTENDED % f"http://127.0.0.1:{port}")
    try:
        async with HttpInquiry() as inquire:
            api = await start_api(
                config=ConfigSource(tmp_path / "scheduler.yaml"), inquire=inquire, tokens_required=False
            )
            workload = make_workload("web", replicas=1, version=0)
            await put(api, make_node("n1"), workload, release_of(workload), make_instance(0, Phase.PENDING, version=0))
            found = await ask(api, "instances/web-0")
    finally:
        await runner.cleanup()
    assert asked
    assert found["summary"].startswith("0/1 nodes fit: 1 HTTPExtender")


@pytest.mark.req("S0-2", "S0-35")
async def test_an_explanation_names_the_chosen_form_and_why_earlier_forms_did_not_fit(dev: Api) -> None:
    fields = {"image": "web:1", "alternatives": [{"engine": ["process"], "command": ["run"]}]}
    workload = make_workload("web", replicas=2, version=0, cpu="3", **fields)
    placed = make_instance(0, Phase.RUNNING, version=0)
    await put(
        dev,
        make_node("n1"),
        workload,
        release_of(workload),
        placed.changed(spec=msgspec.structs.replace(placed.spec, variant=1)),
        make_instance(1, Phase.PENDING, version=0),
    )
    found = await ask(dev, "instances/web-0")
    assert found["form"] == "alternative 1 (process)"
    assert [(each["form"], each["fits"]) for each in found["forms"]] == [
        ("the main form", 0),
        ("alternative 1 (process)", 1),
    ]
    assert "EngineFit" in found["forms"][0]["message"]
    assert found["summary"] == "placed on n1, the only node that fits"

    waits = await ask(dev, "instances/web-1")
    assert "the main form: 0/1 nodes fit: 1 EngineFit" in waits["summary"]
    assert "alternative 1 (process): 0/1 nodes fit: 1 NodeResourcesFit" in waits["summary"]
    texts = [each["text"] for each in waits["remedies"]]
    assert "request 1 cpu instead of 3 (2 less) in alternative 1 (process)" in texts
    assert "stop web-0 on n1" in texts
    assert len((await ask(dev, "workloads/web"))["instances"]) == 2


async def test_a_pending_instance_is_explained_with_ordered_machines_and_failing_orders(api: Api) -> None:
    await fill(api)
    kinds = {"small": MachineKind(cpu=Cpu(1000), memory=Size(GI))}
    scaling = PoolScaling(
        machines=tuple(Machine(id=f"burst-{each}", kind="small", at=api.parts.clock.now() - 40) for each in range(4)),
        message="large failed: the certificate is not trusted",
    )
    spec = NodePoolSpec(autoscale=NodeAutoscale(provisioner="fake", kinds=kinds, max=5))
    await put(api, NodePool(meta=Meta(name="burst"), spec=spec, status=NodePoolStatus(scaling=scaling)))
    token = await api.token("operator", "user:ani")
    found = (await ask(api, "instances/web-1", token=token))["machines"]
    assert found[0].startswith("the pool burst ordered burst-0 (small) ")
    assert found[0].endswith(" and 1 more")
    assert found[1] == "the pool burst: large failed: the certificate is not trusted"
    assert "machines" not in await ask(api, "instances/web-0", token=token), "it has a node"
    (waiting, placed) = (await ask(api, "workloads/web", token=token))["instances"]
    assert waiting["machines"] == found
    assert "machines" not in placed
    lines = Lines()
    write_explanation(await ask(api, "instances/web-1", token=token), lines)
    assert "  the pool burst: large failed: the certificate is not trusted" in lines.lines
