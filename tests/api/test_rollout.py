"""Roll-outs over HTTP: looked at, ordered about, and refused where an order means nothing."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from mandor.client.aio import Client
from mandor.errors import Conflict, Forbidden, Invalid, NotFound
from mandor.model.meta import Key
from mandor.model.rollout import Rollout, RolloutPhase
from mandor.model.workload import Release, Workload, make_release
from mandor.store.base import Put
from tests.api.conftest import Api
from tests.api.test_apply import send, stored

WEB = "name: web\ncommand: [run]\nreplicas: 3\nenv: {V: '1'}\n"
PATH = "/v1/workloads/web/rollout"


async def rolled(api: Api, phase: RolloutPhase, *, proven: tuple[str, ...] = ("web.1",)) -> Client:
    """web.1 ran; web.2 is wanted, and its roll-out is in this phase, as the controllers would tell."""
    client = await api.client()
    for number in (1, 2):
        await send(client, WEB.replace("'1'", f"'{number}'"))
        workload = await _web(api)
        await api.store.commit(Put(make_release(workload, number, f"V is {number}")))
    workload = await _web(api)
    rollout = Rollout(release="web.2", target="web.2", phase=phase, proven=proven)
    status = replace(workload.status, phase="Updating", release="web.2", rollout=rollout)
    await api.store.commit(Put(workload.changed(status=status)))
    return client


async def _web(api: Api) -> Workload:
    found = await stored(api, "web")
    assert isinstance(found, Workload)
    return found


async def order(client: Client, word: str, **more: Any) -> Any:
    return await client.call("POST", PATH, dict, body={"order": word, **more})


async def test_pause_and_resume_can_be_reported_twice_and_an_apply_keeps_them(dev: Api) -> None:
    client = await rolled(dev, "Progressing")
    for _ in range(2):
        await order(client, "pause")
    assert (await _web(dev)).spec.rollout.paused
    await send(client, WEB.replace("'1'", "'3'"))
    assert (await _web(dev)).spec.rollout.paused
    await order(client, "resume")
    assert not (await _web(dev)).spec.rollout.paused


async def test_what_waits_is_promoted_by_its_name_and_another_template_is_not(dev: Api) -> None:
    client = await rolled(dev, "Waiting")
    await order(client, "promote")
    assert (await _web(dev)).spec.rollout.promoted == "web.2"
    await send(client, WEB.replace("'1'", "'3'"))
    assert (await _web(dev)).spec.rollout.promoted == ""
    with pytest.raises(Conflict, match="has not started yet"):
        await order(client, "promote")


@pytest.mark.parametrize(
    ("phase", "word", "told"),
    [
        ("Progressing", "promote", "no rollout of web waits for a promotion: it is Progressing"),
        ("Done", "promote", "it is Done"),
        ("Done", "abort", "no rollout of web is in progress: it is Done"),
        ("RolledBack", "abort", "it is RolledBack"),
    ],
)
async def test_an_order_that_means_nothing_now_is_refused(dev: Api, phase: RolloutPhase, word: str, told: str) -> None:
    client = await rolled(dev, phase)
    with pytest.raises(Conflict, match=told):
        await order(client, word)


async def test_only_what_has_a_healthy_release_behind_it_can_be_given_up(dev: Api) -> None:
    client = await rolled(dev, "Progressing")
    await order(client, "abort")
    assert (await _web(dev)).spec.rollout.aborted == "web.2"


async def test_the_first_release_cannot_be_given_up(dev: Api) -> None:
    client = await rolled(dev, "Progressing", proven=())
    with pytest.raises(Conflict, match="there is none to go back to"):
        await order(client, "abort")
    with pytest.raises(Conflict, match="no earlier release of web was healthy"):
        await order(client, "undo")


async def test_an_undo_takes_the_template_back_and_nothing_else(dev: Api) -> None:
    client = await rolled(dev, "Done", proven=("web.1", "web.2"))
    await client.call("PATCH", "/v1/workloads/web", dict, body={"spec": {"groups": {"main": {"replicas": 7}}}})
    await order(client, "undo")
    group = (await _web(dev)).spec.groups["main"]
    assert (group.tasks["main"].env, group.replicas) == ({"V": "1"}, 7)


async def test_an_undo_to_a_number_finds_it_or_shows_which_there_are(dev: Api) -> None:
    client = await rolled(dev, "Done")
    with pytest.raises(NotFound, match="web has no release 9") as refused:
        await order(client, "undo", to=9)
    assert refused.value.hint == "there are: 1, 2"
    with pytest.raises(Conflict, match=r"web\.2 has the current template of web"):
        await order(client, "undo", to=2)
    with pytest.raises(Invalid, match="`to` is only valid with undo"):
        await order(client, "pause", to=1)
    await order(client, "undo", to=1)
    assert (await _web(dev)).spec.groups["main"].tasks["main"].env == {"V": "1"}


async def test_other_groups_than_there_are_now_cannot_come_back(dev: Api) -> None:
    client = await rolled(dev, "Done")
    grouped = "name: web\ngroups: {a: {tasks: {main: {command: [run]}}}}\n"
    await send(client, grouped)
    workload = await _web(dev)
    await dev.store.commit(Put(make_release(workload, 3)))
    rollout = Rollout(release="web.3", target="web.3", phase="Done", proven=("web.1", "web.3"))
    await dev.store.commit(Put(workload.changed(status=replace(workload.status, rollout=rollout))))
    with pytest.raises(Conflict, match=r"web\.1 has the groups main, and web has a now"):
        await order(client, "undo")


async def test_the_report_reports_the_roll_out_and_the_releases(dev: Api) -> None:
    client = await rolled(dev, "Progressing")
    report = await client.call("GET", PATH, dict)
    assert report["rollout"]["release"] == "web.2"
    assert [(each["name"], each["cause"], each.get("healthy", False)) for each in report["history"]] == [
        ("web.1", "V is 1", True),
        ("web.2", "V is 2", False),
    ]


async def test_only_operators_control_roll_outs_and_batches_have_none(api: Api) -> None:
    admin = await api.client(await api.token("admin", "user:root"))
    await send(admin, "name: sum\ntype: batch\ncommand: [run]\n")
    with pytest.raises(Invalid, match="sum is a batch"):
        await admin.call("POST", "/v1/workloads/sum/rollout", dict, body={"order": "pause"})
    await send(admin, WEB)
    viewer = await api.client(await api.token("viewer", "user:eye"))
    with pytest.raises(Forbidden):
        await order(viewer, "pause")
    assert await api.store.get(Key(Release.kind, "default", "web.1")) is None
