"""Simulations over REST: the answer of `mandor simulate`, within bounds, and called off with its caller."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mandor.cli.main import cli
from mandor.model.meta import Key
from mandor.model.node import Capabilities
from mandor.model.volume import HOST_PATHS, Volume, VolumeStatus
from mandor.roots.simulation import Simulations
from mandor.store.base import Put
from tests.api.conftest import Api, StartApi
from tests.scenarios.make import make_node, make_workload

WEB = "name: web\ncommand: [run]\nreplicas: 3\nresources: {cpu: 1}\n"
OWN = "name: own\nnodes: [{name: n1}]\nworkloads:\n- {name: web, command: [run]}\nend: 2m\n"


@pytest.fixture
async def api(start_api: StartApi) -> Api:
    return await start_api(simulate=Simulations(), tokens_required=False)


async def ask(api: Api, text: str, query: str = "?seeds=1&minutes=1", *, status: int = 200) -> dict[str, Any]:
    session = await api.session()
    async with session.post(f"/v1/simulate{query}", data=text, headers={"content-type": "application/yaml"}) as answer:
        body = await answer.text()
        assert answer.status == status, body
        assert body.count("\n") <= 1
        found: dict[str, Any] = json.loads(body)
        return found


@pytest.mark.req("S2-10")
async def test_a_change_to_the_cluster_as_it_is_gets_the_answer_of_the_command(api: Api, tmp_path: Path) -> None:
    await api.store.commit(Put(make_node("n1", cpu=4)), Put(make_workload("old", replicas=2, version=0, cpu="1")))
    found = await ask(api, WEB)
    (tmp_path / "scenario.yaml").write_text(found["scenario"])
    words = ["simulate", str(tmp_path / "scenario.yaml"), "--seeds", "1", "--workers", "1", "-o", "json"]
    assert json.loads((await asyncio.to_thread(CliRunner().invoke, cli, words)).stdout) == found["report"]
    last = found["report"]["strategies"][0]["typical"]["phases"][-1]
    assert sorted(last["nodes"]["n1"]["instances"])[:2] == ["old-0", "old-1"]
    assert len(last["nodes"]["n1"]["instances"]) == 4
    assert "web" in found["page"]
    assert [each.meta.name for each in (await api.store.list("workload")).items] == ["old"]


SHOP = """\
kind: namespace
name: shop
level: baseline
---
kind: quota
name: few
namespace: shop
cpu: 3
---
kind: volume
name: photos
namespace: shop
---
name: old
namespace: shop
image: x
replicas: 2
resources: {cpu: 1}
---
name: keeper
namespace: shop
image: x
volumes: {data: {volume: photos}}
"""
MORE = "name: new\nnamespace: shop\nimage: x\nreplicas: 3\nresources: {cpu: 1}\n"


async def test_quotas_namespaces_and_volumes_of_the_cluster_hold_in_the_simulation(api: Api) -> None:
    engines = {"docker": Capabilities(images=True)}
    node = make_node("n1", cpu=8, facts={HOST_PATHS: "/srv", "os": "linux"}, engines=engines)
    await api.store.commit(Put(node), Put(make_node("n2", cpu=64, engines=engines)))
    session = await api.session()
    async with session.post("/v1/apply", data=SHOP, headers={"content-type": "application/yaml"}) as answer:
        assert answer.status == 200, await answer.text()
    volume = await api.store.get(Key(Volume.kind, "shop", "photos"))
    assert isinstance(volume, Volume)
    await api.store.commit(Put(volume.changed(status=VolumeStatus(phase="Bound", node="n1"))))
    found = await ask(api, MORE, "?seeds=1&minutes=2&namespace=shop")
    assert "report" in found, found
    last = found["report"]["strategies"][0]["typical"]["phases"][-1]
    assert len(last["pending"]) == 2, "the quota allows three CPUs, two of them are in use"
    assert "keeper-0" in last["nodes"]["n1"]["instances"], "its data is there, although n2 has more room"


async def test_an_error_in_a_scenario_has_its_line_and_no_file_of_the_server_is_read(api: Api) -> None:
    wrong = (await ask(api, OWN.replace("end: 2m", "end: 2m\nseedz: 3")))["error"]
    assert "scenario.yaml:6" in wrong["detail"], wrong
    refused = await ask(api, OWN.replace("{name: web, command: [run]}", "{file: /etc/passwd}"), status=400)
    assert (refused["code"], refused["line"]) == ("invalid", 4)


async def test_one_runs_at_a_time_and_its_process_ends_with_its_caller(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[asyncio.subprocess.Process] = []
    plain = asyncio.create_subprocess_exec

    async def wait_for_ever(*_: object, **how: Any) -> asyncio.subprocess.Process:
        begun.append(await plain("sleep", "1000", **how))
        return begun[0]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", wait_for_ever)
    caller = asyncio.create_task(ask(api, OWN))
    async with asyncio.timeout(30):
        while not begun:
            await asyncio.sleep(0.01)
    assert (await ask(api, OWN))["error"]["code"] == "too_many"
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    async with asyncio.timeout(30):
        await begun[0].wait()
