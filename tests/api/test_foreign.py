"""Files of other tools: they are converted and applied, with a report of dropped keys."""

from __future__ import annotations

from typing import Any

import pytest

from mandor.api.conversion import FOREIGN_MOST
from mandor.model.node import Capabilities
from mandor.model.workload import Workload
from mandor.store.base import Put
from tests.api.conftest import Api
from tests.scenarios.make import make_node

COMPOSE = "services:\n  web:\n    image: nginx\n    deploy: {replicas: 2}\n    unheard_of: 1\n"
KUBERNETES = """\
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: web, image: nginx}]
"""
NOMAD = """\
job "web" {
  group "web" {
    task "web" {
      driver = "docker"
      config { image = "nginx" }
    }
  }
}
"""
YAML = {"content-type": "application/yaml"}
TEXTS = {"compose": COMPOSE, "kubernetes": KUBERNETES, "nomad": NOMAD}


async def post(api: Api, path: str, text: str, **query: str) -> tuple[int, Any]:
    session = await api.session()
    async with session.post(path, data=text.encode(), params=query, headers=YAML) as answer:
        return answer.status, await answer.json()


async def workloads(api: Api) -> list[str]:
    return [each.meta.name for each in (await api.store.list(Workload.kind)).items]


@pytest.mark.req("S0-32")
@pytest.mark.parametrize("format_name", TEXTS)
@pytest.mark.parametrize("said", [True, False], ids=["said", "seen"])
async def test_it_is_applied_and_the_answer_carries_the_report(dev: Api, format_name: str, said: bool) -> None:
    query = {"format": format_name} if said else {}
    status, found = await post(dev, "/v1/apply", TEXTS[format_name], **query)
    assert status == 200, found
    assert [(each["name"], each["action"]) for each in found["results"]] == [("web", "created")]
    assert found["imported"]["mapped"] > 0
    assert await workloads(dev) == ["web"]


@pytest.mark.req("S0-32")
async def test_a_plan_reports_where_it_would_go_and_which_key_is_lost(dev: Api) -> None:
    docker = Capabilities(images=True, extras=frozenset({"ports"}))
    await dev.store.commit(Put(make_node("n1", cpu=4, engines={"docker": docker})))
    status, found = await post(dev, "/v1/plan", COMPOSE, format="compose")
    assert status == 200, found
    assert {each["node"] for each in found["placements"]} == {"n1"}
    assert [(each["line"], each["path"], each["fate"]) for each in found["imported"]["notes"]] == [
        (5, "services.web.unheard_of", "unknown")
    ]
    assert await workloads(dev) == []


async def test_strict_refuses_what_would_lose_a_key_and_names_its_line(dev: Api) -> None:
    status, found = await post(dev, "/v1/apply", COMPOSE, strict="true")
    assert status == 400, found
    assert found["line"] == 5
    assert await workloads(dev) == []


async def test_a_manifest_has_no_report_and_its_mistakes_are_its_own(dev: Api) -> None:
    status, found = await post(dev, "/v1/apply", "name: web\nimage: nginx\n")
    assert status == 200
    assert "imported" not in found
    status, found = await post(dev, "/v1/apply", "name: web\nimage: nginx\nreplica: 2\n")
    assert "unknown key `replica`" in found["detail"]
    assert found["line"] == 3


async def test_format_manifest_accepts_manifests_only(dev: Api) -> None:
    status, found = await post(dev, "/v1/apply", KUBERNETES, format="manifest")
    assert status >= 400
    assert "Kubernetes" in found["detail"]


async def test_an_unknown_format_is_refused_with_a_similar_one(dev: Api) -> None:
    status, found = await post(dev, "/v1/apply", COMPOSE, format="compos")
    assert status >= 400
    assert "compose" in found["hint"]


async def test_a_mistake_has_the_line_of_the_foreign_file_also_when_the_cluster_finds_it(dev: Api) -> None:
    text = "services:\n  web:\n    image: nginx\n  db:\n    image: [nginx]\n"
    status, found = await post(dev, "/v1/apply", text, format="compose")
    assert status >= 400
    assert found["line"] in {4, 5}
    away = KUBERNETES.replace("name: web}", "name: web, namespace: nowhere}", 1)
    status, found = await post(dev, "/v1/apply", "\n\n" + away, format="kubernetes")
    assert status >= 400
    assert "nowhere" in found["detail"]
    assert found["line"] in {3, 5}


async def test_the_servers_own_files_and_variables_are_not_the_callers(
    dev: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("MANDOR_TEST_WORD", "hidden")
    (tmp_path / "secret.env").write_text("WORD=hidden\n")
    text = (
        "services:\n  web:\n    image: nginx\n    environment: {WORD: '${MANDOR_TEST_WORD:-none}'}\n"
        f"    env_file: [{{path: {tmp_path / 'secret.env'}, required: false}}]\n"
    )
    status, found = await post(dev, "/v1/apply", text, format="compose")
    assert status == 200, found
    (stored,) = (await dev.store.list(Workload.kind)).items
    assert "hidden" not in str(stored)


async def test_a_foreign_file_that_is_too_long_is_refused(dev: Api) -> None:
    text = COMPOSE + "#" * FOREIGN_MOST
    status, found = await post(dev, "/v1/apply", text, format="compose")
    assert status == 413
    assert found["code"] == "too_large"
