"""Plans over REST: what an apply, a drain, a loss or another configuration would do; nothing is written."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mandor.model.instance import Instance
from mandor.model.meta import Meta, Object
from mandor.model.phase import Phase
from mandor.model.workload import make_release
from mandor.placement import forecast
from mandor.store.base import Put
from tests.api.conftest import Api
from tests.scenarios.make import GI, make_instance, make_node, make_workload

WEB = "name: web\ncommand: [run]\nreplicas: 3\nresources: {cpu: 1}\n"


async def put(api: Api, *values: Object) -> None:
    await api.store.commit(*(Put(value) for value in values))


async def plan(
    api: Api, body: Any = None, *, status: int = 200, token: str = "", query: str = "", yaml: str = ""
) -> dict[str, Any]:
    session = await api.session(token)
    how: dict[str, Any] = (
        {"data": yaml, "headers": {"content-type": "application/yaml"}} if yaml else {"json": body or {}}
    )
    async with session.post(f"/v1/plan{query}", **how) as answer:
        found: dict[str, Any] = await answer.json()
        assert answer.status == status, found
        return found


def files(*texts: str) -> dict[str, Any]:
    return {"files": [{"name": f"{number}.yaml", "text": text} for number, text in enumerate(texts)]}


async def running(api: Api, *places: str, name: str = "web", cpu: str = "1") -> None:
    workload = make_workload(name, replicas=len(places), version=0, cpu=cpu)
    await put(
        api,
        workload,
        make_release(workload, 1),
        *(
            make_instance(
                index,
                Phase.RUNNING if node else Phase.PENDING,
                workload=name,
                release=f"{name}.1",
                node=node,
                version=0,
            )
            for index, node in enumerate(places)
        ),
    )


async def revision(api: Api) -> int:
    return (await api.store.list("cluster")).revision


@pytest.mark.req("S0-25")
async def test_a_plan_reports_where_everything_goes_and_writes_nothing(dev: Api) -> None:
    await put(dev, make_node("n1", cpu=2), make_node("n2", cpu=2))
    before = await revision(dev)
    found = await plan(dev, files(WEB))
    assert found["fits"] is True
    assert [(each["name"], each["action"]) for each in found["results"]] == [("web", "created")]
    assert {each["instance"] for each in found["placements"]} == {"web-0", "web-1", "web-2"}
    assert {each["node"] for each in found["placements"]} == {"n1", "n2"}
    assert found["groups"][0]["placed"] == 3
    assert sum(each["after"]["cpu_milli"] for each in found["nodes"]) == 3000
    assert all(each["before"]["cpu_milli"] == 0 for each in found["nodes"])
    assert await revision(dev) == before
    assert not (await dev.store.list(Instance.kind)).items
    assert found == await plan(dev, yaml=WEB)


async def test_instances_that_do_not_fit_are_reported_with_the_reason(dev: Api) -> None:
    await put(dev, make_node("n1", cpu=2))
    found = await plan(dev, files(WEB))
    assert found["fits"] is False
    assert [(each["instance"], each["message"]) for each in found["pending"]] == [
        ("web-2", "0/1 nodes fit: 1 NodeResourcesFit (short of 1 cpu)")
    ]


async def test_soft_rules_that_would_be_relaxed_are_reported(dev: Api) -> None:
    await put(dev, make_node("n1"))
    soft = "name: web\ncommand: [run]\nplacement: {where: [{rule: zone == a, strength: should}]}\n"
    found = await plan(dev, files(soft))
    assert found["placements"][0]["relaxed"] == ["zone == a"]


async def test_applying_what_is_there_already_would_do_nothing(dev: Api) -> None:
    await put(dev, make_node("n1"))
    session = await dev.session()
    async with session.post("/v1/apply", json=files(WEB)) as answer:
        assert answer.status == 200
    found = await plan(dev, files(WEB))
    assert [each["action"] for each in found["results"]] == ["unchanged"]
    assert "placements" not in found


@pytest.mark.req("S3-38")
async def test_a_drain_is_planned_with_every_move(dev: Api) -> None:
    await put(dev, make_node("n1", cpu=4), make_node("n2", cpu=2))
    await running(dev, "n1", "n1", "n1", "n2")
    found = await plan(dev, query="?drain=n1")
    moves = {each["instance"]: (each["before"], each["node"]) for each in found["placements"]}
    assert list(moves.values()) == [("n1", "n2")]
    assert {each["instance"] for each in found["pending"]} | set(moves) == {"web-0", "web-1", "web-2"}
    assert {each["before"] for each in found["pending"]} == {"n1"}
    assert found["fits"] is False
    reason = found["pending"][0]["message"]
    assert "1 cordoned" in reason


async def test_the_loss_of_a_node_is_planned(dev: Api) -> None:
    await put(dev, make_node("n1", cpu=4), make_node("n2", cpu=4))
    await running(dev, "n1", "n1")
    found = await plan(dev, query="?without=n1")
    assert found["fits"] is True
    assert {each["node"] for each in found["placements"]} == {"n2"}
    assert {each["before"] for each in found["placements"]} == {"n1"}


async def test_the_loss_of_the_only_node_reports_its_instances(dev: Api) -> None:
    await put(dev, make_node("n1", cpu=4))
    await running(dev, "n1")
    found = await plan(dev, query="?without=n1")
    assert found["fits"] is False
    assert [(each["instance"], each["before"]) for each in found["pending"]] == [("web-0", "n1")]
    assert found["pending"][0]["message"] == "lost with n1 and not replaced"


async def test_a_drain_and_an_apply_are_planned_together(dev: Api) -> None:
    await put(dev, make_node("n1", cpu=4), make_node("n2", cpu=4))
    found = await plan(dev, files(WEB), query="?drain=n1")
    assert {each["node"] for each in found["placements"]} == {"n2"}


async def test_instances_that_are_already_pending_are_listed_separately_and_do_not_fail_the_plan(dev: Api) -> None:
    await put(dev, make_node("n1", cpu=4))
    await running(dev, "", name="big", cpu="64")
    found = await plan(dev, files(WEB))
    assert found["fits"] is True
    assert [each["instance"] for each in found["waiting"]] == ["big-0"]
    assert "pending" not in found


PACKED = """
profiles:
- pluginConfig:
  - {name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated}}}
  plugins: {score: {disabled: [{name: '*'}], enabled: [{name: NodeResourcesFit}]}}
"""


@pytest.mark.req("S0-3", "S1-30", "S2-15")
async def test_another_configuration_is_compared_with_the_one_that_holds(dev: Api) -> None:
    await put(dev, make_node("n1", cpu=4, memory=8 * GI), make_node("n2", cpu=4, memory=8 * GI))
    body = files(WEB) | {"profile": {"name": "packed.yaml", "text": PACKED}}
    found = await plan(dev, body)
    assert len({each["node"] for each in found["placements"]}) == 1
    compared = found["compared"]
    assert (compared["now"]["nodes_used"], compared["then"]["nodes_used"]) == (2, 1)
    assert compared["differences"]
    for each in compared["differences"]:
        assert each["now"] != each["then"]


async def test_a_changed_configuration_applies_to_waiting_instances(dev: Api) -> None:
    await put(dev, make_node("n1", cpu=4))
    await running(dev, "", name="big", cpu="64")
    lenient = "profiles:\n- plugins: {filter: {disabled: [{name: NodeResourcesFit}]}}\n"
    found = await plan(dev, {"profile": {"name": "lenient.yaml", "text": lenient}})
    assert [each["instance"] for each in found["placements"]] == ["big-0"]
    assert found["compared"]["now"]["pending"] == 1
    assert found["compared"]["then"]["pending"] == 0
    strict = await plan(dev, {"profile": {"name": "same.yaml", "text": "profiles: [{}]"}})
    assert strict["fits"] is False


async def test_a_broken_configuration_is_refused_with_its_line(dev: Api) -> None:
    broken = "profiles:\n- plugins:\n    filter: {enabled: [{name: NoSuch}]}\n"
    found = await plan(dev, {"profile": {"name": "p.yaml", "text": broken}}, status=400)
    assert (found["file"], found["line"]) == ("p.yaml", 3)
    assert "NoSuch" in found["detail"]


async def test_a_broken_manifest_is_refused_as_an_apply_would(dev: Api) -> None:
    found = await plan(dev, files("name: web\ncommand: [run]\nreplicas: many\n"), status=400)
    assert found["line"] == 3
    found = await plan(dev, files("name: web\nengine: warp\ncommand: [run]\n"), status=400)
    assert "warp" in found["detail"]
    found = await plan(dev, files("name: web\nnamespace: nowhere\ncommand: [run]\n"), status=400)
    assert "nowhere" in found["detail"]


async def test_invalid_requests_for_plans_are_refused(dev: Api) -> None:
    await put(dev, make_node("n1"))
    assert (await plan(dev, query="?drain=n2", status=404))["hint"] == "there is: n1"
    assert (await plan(dev, query="?drain=n1&without=n1", status=400))["code"] == "invalid"
    assert (await plan(dev, status=400))["detail"] == "the request contains nothing to plan"
    assert (await plan(dev, {"file": []}, status=400))["code"] == "invalid"
    many = "name: web\ncommand: [run]\nreplicas: 60000\n---\nname: api\ncommand: [run]\nreplicas: 60000\n"
    assert (await plan(dev, files(many), status=413))["code"] == "too_large"


async def test_a_viewer_may_plan_in_his_namespace_and_sees_nothing_of_others(api: Api) -> None:
    await put(api, make_node("n1", cpu=4), make_node("n2", cpu=4))
    other = make_workload("secret", replicas=1, version=0, cpu="1").changed(meta=Meta(name="secret", namespace="other"))
    await put(
        api,
        other,
        make_release(other, 1),
        make_instance(0, workload="secret", release="secret.1", version=0).changed(
            meta=Meta(name="secret-0", namespace="other")
        ),
    )
    viewer = await api.token("viewer", "user:vera", ("default",))
    found = await plan(api, files(WEB), token=viewer, query="?drain=n1")
    assert found["fits"] is True
    assert found["hidden"] == 1
    assert "secret" not in str(found)
    refused = await plan(api, files("name: web\nnamespace: other\ncommand: [run]\n"), token=viewer, status=403)
    assert refused["code"] == "forbidden"
    node = await api.token("node", "node:n1")
    assert (await plan(api, files(WEB), token=node, status=403))["code"] == "forbidden"


async def test_a_roll_out_that_is_too_long_is_broken_off_and_reports_it(
    dev: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast, "REPLANS_MOST", 20)
    await put(dev, make_node("n1", cpu=8))
    await running(dev, "n1", "n1", "n1", "n1")
    found = await plan(dev, files(WEB.replace("3", "4").replace("[run]", "[other]")))
    assert found["complete"] is False
    assert found["fits"] is False


async def test_ten_thousand_instances_are_planned_while_the_server_answers_others(dev: Api) -> None:
    await put(dev, *(make_node(f"n{index}", cpu=400) for index in range(100)))
    session = await dev.session()
    planning = asyncio.create_task(plan(dev, files(WEB.replace("3", "10000"))))
    answered = 0
    while not planning.done():
        async with session.get("/healthz") as answer:
            assert answer.status == 200
        answered += 1
        await asyncio.sleep(0.01)
    found = await planning
    assert found["groups"][0]["placed"] == 10_000
    assert answered > 3


def kept(count: int, **more: str) -> str:
    fields = {"end": '"2099-01-01T00:00:00Z"', "resources": "{cpu: 1}", "workload": "web", **more}
    return f"kind: reservation\nname: kept\ncount: {count}\n" + "".join(f"{k}: {v}\n" for k, v in fields.items())


async def test_a_plan_reports_what_a_reservation_would_hold_and_what_it_would_keep_from_others(dev: Api) -> None:
    await put(dev, make_node("n1", cpu=2), make_node("n2", cpu=2))
    other = WEB.replace("web", "other")
    found = await plan(dev, files(kept(3), other))
    [told] = found["reservations"]
    assert (told["phase"], told["count"], sum(told["held"].values())) == ("Active", 3, 3)
    assert told["held"].keys() == {"n1", "n2"}
    assert told["each"] == {"cpu_milli": 1000}
    assert told["message"] == "3 of 3 places are held until 2099-01-01T00:00:00Z"
    assert len(found["placements"]) == 1
    assert all("reserved for default/web (kept)" in each["message"] for each in found["pending"])
    found = await plan(dev, files(kept(3), WEB))
    assert found["fits"] is True, "whom it is held for has it"
    assert not (await dev.store.list("reservation")).items


async def test_a_plan_reports_why_a_reservation_cannot_be_held_in_full(dev: Api) -> None:
    await put(dev, make_node("n1", cpu=2), make_node("n2", cpu=2))
    await running(dev, "n1")
    found = await plan(dev, files(kept(4)), query="?without=n2")
    assert found["fits"] is False
    [told] = found["reservations"]
    assert told["held"] == {"n1": 2}
    assert "1 of them are still in use" in told["message"]
    assert "2 more do not fit: no node that may hold it has cpu 1, memory 0 left" in told["message"]
    [told] = (await plan(dev, files(kept(1, pool="gpu"))))["reservations"]
    assert "held" not in told
    assert "no node may hold it" in told["message"]


async def test_a_reservation_that_begins_later_keeps_nothing_from_anybody_yet(dev: Api) -> None:
    await put(dev, make_node("n1", cpu=2))
    later = kept(2, start='"2098-01-01T00:00:00Z"')
    found = await plan(dev, files(later, "name: other\ncommand: [run]\nresources: {cpu: 1}\n"))
    assert found["fits"] is True
    [told] = found["reservations"]
    assert (told["phase"], told["held"]) == ("Waiting", {"n1": 2})
    assert told["message"].startswith("starts at 2098-01-01T00:00:00Z; as things are now, 2 of 2 places")


async def test_two_reservations_of_one_plan_do_not_hold_the_same_room(dev: Api) -> None:
    await put(dev, make_node("n1", cpu=2))
    found = await plan(dev, files(kept(2), kept(1).replace("name: kept", "name: second")))
    assert [each.get("held", {}) for each in found["reservations"]] == [{"n1": 2}, {}]
    assert found["fits"] is False
