"""Target clusters of spares: their file, and the readiness check of machines."""

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from mandor.baremetal.ansible import AnsiblePipeline
from mandor.baremetal.ready import KubernetesNode
from mandor.baremetal.targets import make_target, read_targets
from mandor.errors import Invalid, Unavailable
from mandor.store.memory import MemoryStore
from tests.components.gitlab import serving


@pytest.mark.req("S4-31")
async def test_a_machine_is_ready_when_its_kubernetes_node_is(tmp_path: Path) -> None:
    answers: dict[str, Any] = {}

    async def node(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != "Bearer a-token":
            return web.json_response({"kind": "Status", "code": 401}, status=401)
        found = answers.get(request.match_info["name"])
        return web.json_response(found or {"kind": "Status", "code": 404}, status=200 if found else 404)

    (tmp_path / "token").write_text("a-token\n")
    async with serving(web.get("/api/v1/nodes/{name}", node)) as url:
        ready = KubernetesNode(url, str(tmp_path / "token"))
        assert await ready.check("spare-1") == "the machine has not joined"
        condition = {"type": "Ready", "status": "False", "message": "cni is not ready"}
        answers["spare-1"] = {"kind": "Node", "status": {"conditions": [{"type": "DiskPressure"}, condition]}}
        assert await ready.check("spare-1") == "the node is not ready: cni is not ready"
        condition["status"] = "True"
        assert await ready.check("spare-1") == ""
        answers["spare-1"] = {"kind": "Node", "status": {}}
        assert "no condition Ready" in await ready.check("spare-1")
        (tmp_path / "token").write_text("wrong")
        with pytest.raises(Unavailable, match="401"):
            await ready.check("spare-1")
        await ready.close()


def test_the_file_of_pipelines_is_read_and_errors_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "pipelines.yaml"
    file.write_text(json.dumps({"prod": {"ansible": {"playbook": "/p"}, "ready": {"url": "https://k:6443"}}}))
    (spec,) = read_targets(str(file)).values()
    target = make_target(spec, MemoryStore())
    assert isinstance(target.pipeline, AnsiblePipeline)
    assert isinstance(target.ready, KubernetesNode)
    for text in (
        "prod: {}",
        "prod: {ansible: {playbok: /p}}",
        "prod: {incus: {url: x, image: y}, attempts: 0}",
        "a: [",
    ):
        file.write_text(text)
        with pytest.raises(Invalid):
            read_targets(str(file))
    assert read_targets("") == {}


def test_the_shipped_pipeline_files_are_valid() -> None:
    root = Path(__file__).parents[3]
    assert read_targets(str(root / "deploy" / "pipelines.yaml")).keys() == {"prod", "lab"}
