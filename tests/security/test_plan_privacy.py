"""Plans show only objects that the caller may read, and a caller's profile reaches no file and no host."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import aiohttp
import msgspec
import pytest

from mandor.api import scheduling
from mandor.api.plan import PlanReport
from mandor.api.plan import report as plan_report
from mandor.api.routes import plan as plan_route
from mandor.api.scheduling import ForecastWorkspace
from mandor.model.codec import from_plain
from mandor.model.meta import Meta, Object
from mandor.model.phase import Phase
from mandor.model.record import Namespace, NamespaceSpec
from mandor.model.reservation import Reservation
from mandor.model.workload import make_release
from mandor.placement.framework.points import HttpCall, HttpReply
from mandor.store.base import Put
from tests.api.conftest import Api, StartApi
from tests.scenarios.make import make_class, make_instance, make_node, make_workload

SECRET = "merger"
"""Part of every name in the namespace that the planner does not see."""
EAST, WEST = "east", "west"
MANIFEST = "name: web\ncommand: [run]\nreplicas: 2\npriority: high\nresources: {cpu: 2}\n"


def moved(value: Any, namespace: str) -> Any:
    return msgspec.structs.replace(value, meta=msgspec.structs.replace(value.meta, namespace=namespace))


def running(name: str, *nodes: str, namespace: str, stop: str = "", **fields: Any) -> list[Object]:
    workload = moved(make_workload(name, replicas=len(nodes), version=0, **fields), namespace)
    made: list[Object] = [workload, make_release(workload, 1)]
    for index, node in enumerate(nodes):
        phase = Phase.RUNNING if node else Phase.PENDING
        one = make_instance(index, phase, workload=name, release=f"{name}.1", node=node, version=0, stop=stop)
        made.append(moved(one, namespace))
    return made


async def put(api: Api, values: Sequence[Object]) -> None:
    await api.store.commit(*(Put(each) for each in values))


@pytest.fixture
async def tenants(api: Api) -> Api:
    """Two namespaces share two full nodes; what runs in the other one is less important."""
    spaces = [Namespace(meta=Meta(name=name), spec=NamespaceSpec(level="privileged")) for name in (EAST, WEST)]
    await put(api, [make_node("n1", cpu=2), make_node("n2", cpu=2), make_class("high", 1000), *spaces])
    await put(api, running(f"{SECRET}-api", "n1", "n2", namespace=WEST, cpu="2"))
    return api


async def viewer(api: Api, *namespaces: str) -> aiohttp.ClientSession:
    return await api.session(await api.token("viewer", "user:eve", namespaces or (EAST,)))


async def answered(session: aiohttp.ClientSession, method: str, path: str, **how: Any) -> tuple[int, str, Any]:
    async with session.request(method, path, **how) as answer:
        return answer.status, await answer.text(), await answer.json()


def planned(text: str, **more: Any) -> dict[str, Any]:
    return {"files": [{"name": "a.yaml", "text": text}], **more}


async def test_a_plan_names_nothing_of_a_namespace_that_its_caller_does_not_see(tenants: Api) -> None:
    session = await viewer(tenants)
    path = f"/v1/plan?namespace={EAST}"
    status, text, found = await answered(session, "POST", path, json=planned(MANIFEST))
    assert status == 200, text
    assert {each["instance"] for each in found["placements"]} == {"web-0", "web-1"}
    assert found["hidden"] > 0
    assert SECRET not in text
    assert "victims" not in found


async def test_an_admin_sees_the_victims_of_every_namespace(tenants: Api) -> None:
    session = await tenants.session(await tenants.token("admin", "user:root"))
    _, _, found = await answered(session, "POST", f"/v1/plan?namespace={EAST}", json=planned(MANIFEST))
    assert {each["instance"] for each in found["victims"]} == {f"{SECRET}-api-0", f"{SECRET}-api-1"}


async def test_a_drain_and_a_loss_name_nothing_of_other_namespaces(tenants: Api) -> None:
    session = await viewer(tenants)
    for query in ("drain=n1", "without=n1", "drain=n1&without=n2"):
        status, text, _ = await answered(session, "POST", f"/v1/plan?namespace={EAST}&{query}", json={})
        assert status == 200, text
        assert SECRET not in text


async def test_a_victim_does_not_show_the_instance_of_another_namespace_that_evicts_it(api: Api) -> None:
    """The other way round: what is planned elsewhere evicts an instance that the caller sees."""
    spaces = [Namespace(meta=Meta(name=name), spec=NamespaceSpec(level="privileged")) for name in (EAST, WEST)]
    await put(api, [make_node("n1", cpu=2), make_node("n2", cpu=2), make_class("high", 1000), *spaces])
    await put(api, running("small", "n1", namespace=EAST, cpu="2"))
    await put(api, running(f"{SECRET}-api", "n2", namespace=WEST, cpu="2", priority="high"))
    session = await viewer(api)
    status, text, found = await answered(session, "POST", f"/v1/plan?namespace={EAST}&drain=n2", json={})
    assert status == 200, text
    assert [each["instance"] for each in found["victims"]] == ["small-0"]
    assert SECRET not in text


async def test_an_explanation_names_nothing_of_other_namespaces(tenants: Api) -> None:
    await put(tenants, running("web", "", namespace=EAST, cpu="2", priority="high"))
    await put(tenants, running("poor", "", namespace=EAST, cpu="2"))
    session = await viewer(tenants)
    for name in ("web", "poor"):
        for path in (f"/v1/explain/instances/{name}-0", f"/v1/explain/workloads/{name}"):
            query = {"namespace": EAST, "nodes": "true"}
            status, text, _ = await answered(session, "GET", path, params=query)
            assert status == 200, text
            assert SECRET not in text, text


async def test_an_explanation_does_not_name_an_instance_of_another_namespace_that_stops(api: Api) -> None:
    spaces = [Namespace(meta=Meta(name=name), spec=NamespaceSpec(level="privileged")) for name in (EAST, WEST)]
    await put(api, [make_node("n1", cpu=2), *spaces])
    await put(api, running(f"{SECRET}-api", "n1", namespace=WEST, cpu="2", stop="deleted"))
    await put(api, running("web", "", namespace=EAST, cpu="2"))
    session = await viewer(api)
    query = {"namespace": EAST, "nodes": "true"}
    status, text, found = await answered(session, "GET", "/v1/explain/instances/web-0", params=query)
    assert status == 200, text
    assert any(each["kind"] == "wait" for each in found["remedies"])
    assert SECRET not in text


async def test_a_reservation_of_another_namespace_is_not_named(api: Api) -> None:
    spaces = [Namespace(meta=Meta(name=name), spec=NamespaceSpec(level="privileged")) for name in (EAST, WEST)]
    plain = {
        "meta": {"name": f"{SECRET}-room", "namespace": WEST},
        "spec": {
            "end": "2099-01-01T00:00:00Z",
            "workload": f"{SECRET}-api",
            "count": 1,
            "resources": {"cpu": "2"},
        },
        "status": {"phase": "Active", "held": {"n1": 1}},
    }
    await put(api, [make_node("n1", cpu=2), *spaces, from_plain(plain, Reservation)])
    await put(api, running("web", "", namespace=EAST, cpu="2"))
    session = await viewer(api)
    query = {"namespace": EAST, "nodes": "true"}
    status, text, _ = await answered(session, "GET", "/v1/explain/instances/web-0", params=query)
    assert status == 200, text
    assert "reserved for work of another namespace" in text
    assert SECRET not in text


async def test_a_rebalance_names_nothing_of_other_namespaces(tenants: Api) -> None:
    session = await viewer(tenants)
    status, text, _ = await answered(session, "GET", "/v1/plan/rebalance", params={"min_gain": "1"})
    assert status == 200, text
    assert SECRET not in text


async def test_the_cluster_as_it_is_cannot_be_simulated_by_a_caller_of_one_namespace(start_api: StartApi) -> None:
    async def simulate(scenario: str, seeds: int) -> tuple[bytes, str]:
        raise AssertionError("it was simulated")

    api = await start_api(tokens_required=True, simulate=simulate)
    await put(api, [make_node("n1")])
    session = await viewer(api)
    headers = {"content-type": "application/yaml"}
    path = f"/v1/simulate?namespace={EAST}"
    async with session.post(path, data="name: web\ncommand: [run]\n", headers=headers) as answer:
        assert answer.status == 403


async def test_the_scheduler_table_is_closed_to_a_caller_of_one_namespace(tenants: Api) -> None:
    token = await tenants.token("admin", "user:east-admin", (EAST,))
    status, _, _ = await answered(await tenants.session(token), "GET", "/v1/debug/table")
    assert status == 403


# A configuration of the scheduler in the request.

EXTENDER = """\
profiles: [{}]
extenders:
- urlPrefix: https://169.254.169.254/latest
  filterVerb: filter
  tlsConfig: {caFile: /etc/passwd, certFile: /etc/shadow, keyFile: /etc/shadow}
"""


async def test_a_configuration_needs_a_role_for_the_whole_cluster(tenants: Api) -> None:
    body = {"profile": {"name": "p.yaml", "text": "profiles: [{}]"}}
    refused = [
        await tenants.token("viewer", "user:eve", (EAST,)),
        await tenants.token("viewer", "user:all"),
        await tenants.token("operator", "user:op", (EAST,)),
        await tenants.token("admin", "user:ad", (EAST,)),
    ]
    for token in refused:
        status, text, _ = await answered(await tenants.session(token), "POST", "/v1/plan", json=body)
        assert status == 403, text
    for role in ("operator", "admin"):
        token = await tenants.token(role, f"user:whole-{role}")
        status, text, _ = await answered(await tenants.session(token), "POST", "/v1/plan", json=body)
        assert status == 200, text


async def test_extenders_and_their_files_are_refused_in_a_request_even_for_an_admin(start_api: StartApi) -> None:
    asked: list[HttpCall] = []

    async def inquire(question: HttpCall) -> HttpReply:
        asked.append(question)
        return HttpReply(problem="no")

    api = await start_api(tokens_required=True, inquire=inquire)
    await put(api, [make_node("n1")])
    session = await api.session(await api.token("admin", "user:root"))
    body = planned("name: web\ncommand: [run]\n", profile={"name": "p.yaml", "text": EXTENDER})
    status, _, found = await answered(session, "POST", "/v1/plan", json=body)
    assert status == 400
    assert "only from the server's own configuration" in found["detail"]
    assert found["path"] == "extenders"
    assert asked == []


async def test_an_unreadable_configuration_of_a_viewer_is_refused_for_its_role(tenants: Api) -> None:
    session = await viewer(tenants)
    body = {"profile": {"name": "p.yaml", "text": "[" * 1000}}
    status, _, _ = await answered(session, "POST", "/v1/plan", json=body)
    assert status == 403


# Fair shares.


async def test_one_viewer_that_plans_without_end_leaves_room_for_others(tenants: Api) -> None:
    """Plans of one viewer never end; another viewer's plan and explanation are answered meanwhile."""
    entered, release = threading.Event(), threading.Event()
    scheduling = tenants.parts.scheduling
    real = scheduling.controls
    assert real is not None

    def held(*args: Any, **kwargs: Any) -> Any:
        workload = args[0]
        if workload is not None and workload.meta.name == "endless":
            entered.set()
            release.wait(120)
        return real(*args, **kwargs)

    object.__setattr__(scheduling, "controls", held)
    await put(tenants, running("web", "", namespace=EAST, cpu="2"))
    greedy = await viewer(tenants)
    endless = planned("name: endless\ncommand: [run]\n")
    path = f"/v1/plan?namespace={EAST}"
    floods = [asyncio.create_task(answered(greedy, "POST", path, json=endless)) for _ in range(8)]
    try:
        async with asyncio.timeout(60):
            while not entered.is_set():
                await asyncio.sleep(0.05)
        other = await tenants.session(await tenants.token("viewer", "user:ann", (EAST,)))
        async with asyncio.timeout(60):
            for _ in range(3):
                status, text, _ = await answered(other, "POST", path, json=planned("name: b\ncommand: [run]\n"))
                assert status == 200, text
                query = {"namespace": EAST}
                status, text, _ = await answered(other, "GET", "/v1/explain/instances/web-0", params=query)
                assert status == 200, text
        assert not any(each.done() and each.result()[0] == 200 for each in floods)
    finally:
        release.set()
        for each in floods:
            each.cancel()
        await asyncio.gather(*floods, return_exceptions=True)


async def test_two_identities_with_endless_plans_do_not_keep_a_third_one_from_planning(
    tenants: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "SECONDS_MOST", 3600.0)
    monkeypatch.setattr(scheduling, "CONTENDED_SECONDS_MOST", 0.2)
    began: list[str] = []
    plain = plan_report

    def endless(workspace: ForecastWorkspace, *given: Any, results: Any, **more: Any) -> PlanReport:
        name = results[0].name
        began.append(name)
        while name.startswith("endless") and not workspace.expired():
            time.sleep(0.01)
        return plain(workspace, *given, results=results, **more)

    monkeypatch.setattr(plan_route, "report", endless)
    path = f"/v1/plan?namespace={EAST}"
    floods = []
    for user in ("one", "two"):
        session = await tenants.session(await tenants.token("viewer", f"user:{user}", (EAST,)))
        text = f"name: endless-{user}\ncommand: [run]\n"
        floods += [asyncio.create_task(answered(session, "POST", path, json=planned(text))) for _ in range(5)]
    try:
        async with asyncio.timeout(60):
            while len({*began}) < 2:
                await asyncio.sleep(0.02)
        third = await tenants.session(await tenants.token("viewer", "user:three", (EAST,)))
        async with asyncio.timeout(60):
            status, text, _ = await answered(third, "POST", path, json=planned("name: mine\ncommand: [run]\n"))
        assert status == 200, text
        assert began.index("mine") <= 4, "identities take turns, whatever the number of their requests"
    finally:
        monkeypatch.setattr(scheduling, "SECONDS_MOST", 0.0)
        await asyncio.gather(*floods, return_exceptions=True)


async def test_one_viewer_that_simulates_without_end_leaves_room_for_others(start_api: StartApi) -> None:
    go = asyncio.Event()
    begun: list[str] = []

    async def simulate(scenario: str, seeds: int) -> tuple[bytes, str]:
        begun.append(scenario)
        if "endless" in scenario:
            await go.wait()
        return b"{}", "page"

    api = await start_api(tokens_required=True, simulate=simulate)
    scenario = "name: {}\nnodes: [{{name: n1, cpu: 1}}]\ntimeline: []\nend: 10s\n"
    headers = {"content-type": "application/yaml"}

    async def run(session: aiohttp.ClientSession, name: str) -> str:
        async with session.post("/v1/simulate", data=scenario.format(name), headers=headers) as answer:
            return await answer.text()

    greedy = await viewer(api)
    floods = [asyncio.create_task(run(greedy, "endless")) for _ in range(4)]
    try:
        async with asyncio.timeout(60):
            while not begun:
                await asyncio.sleep(0.05)
            other = await api.session(await api.token("viewer", "user:ann", (EAST,)))
            assert '"page":"page"' in await run(other, "mine")
        assert len([each for each in begun if "endless" in each]) == 1
    finally:
        go.set()
        for each in floods:
            each.cancel()
        await asyncio.gather(*floods, return_exceptions=True)


RULE = (
    "name: probe\ncommand: [run]\n"
    "placement: {{{kind}: [{{{subject}, namespaces: ['{namespace}'], strength: {how}}}]}}\n"
)


@pytest.mark.parametrize("kind", ["near", "apart"])
@pytest.mark.parametrize("how", ["must", "prefer"])
@pytest.mark.parametrize("namespace", [WEST, "*", "missing"])
async def test_a_placement_rule_cannot_probe_for_workloads_that_its_author_may_not_read(
    tenants: Api, kind: str, how: str, namespace: str
) -> None:
    session = await tenants.session(await tenants.token("operator", "user:eve", (EAST,)))
    headers = {"content-type": "application/yaml"}
    for path in ("/v1/plan", "/v1/apply", "/v1/apply?dry_run=true"):
        answers = set()
        for subject in (f"workload: {SECRET}-api", "workload: missing", "match: {app: missing}"):
            text = RULE.format(kind=kind, subject=subject, namespace=namespace, how=how)
            query = f"{path}{'&' if '?' in path else '?'}namespace={EAST}"
            status, answer, _ = await answered(session, "POST", query, data=text, headers=headers)
            assert status == 403, answer
            answers.add(answer)
        assert len(answers) == 1, answers


async def test_a_placement_rule_that_an_admin_wrote_survives_changes_by_the_tenant(tenants: Api) -> None:
    admin = await tenants.session(await tenants.token("admin", "user:root"))
    tenant = await tenants.session(await tenants.token("operator", "user:eve", (EAST,)))
    headers = {"content-type": "application/yaml"}
    text = RULE.format(kind="apart", subject=f"workload: {SECRET}-api", namespace=WEST, how="must")
    status, answer, _ = await answered(admin, "POST", f"/v1/apply?namespace={EAST}", data=text, headers=headers)
    assert status == 200, answer
    changed = text + "replicas: 3\n"
    status, answer, _ = await answered(tenant, "POST", f"/v1/apply?namespace={EAST}", data=changed, headers=headers)
    assert status == 200, answer
