"""Pipelines as they really are: a playbook run by ansible, GitLab's API as documented, Kubernetes' nodes."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from mandor.baremetal.ansible import AnsiblePipeline
from mandor.baremetal.gitlab import GitlabPipeline
from mandor.baremetal.pipeline import Run, VmOrder
from mandor.baremetal.ready import KubernetesNode
from mandor.baremetal.targets import make_target, read_targets
from mandor.errors import Invalid, Unavailable
from mandor.store.memory import MemoryStore

ORDER = VmOrder(name="spare-1", cluster="prod", node="bm-1", address="10.0.0.1", cpu=4, memory_mib=8192)
PLAYBOOK = """\
- hosts: all
  connection: local
  gather_facts: false
  vars: {{ansible_python_interpreter: "{{{{ ansible_playbook_python }}}}"}}
  tasks:
  - name: A virtual machine, as far as this test can tell
    ansible.builtin.copy:
      dest: "{folder}/{{{{ mandor_vm.name }}}}"
      content: "{{{{ mandor_vm.node }}}} {{{{ mandor_vm.cpu }}}} {{{{ mandor_vm.memory_mib }}}}"
    when: mandor_action == 'create'
  - name: None of it is left
    ansible.builtin.file: {{path: "{folder}/{{{{ mandor_vm.name }}}}", state: absent}}
    when: mandor_action == 'delete'
"""


def remembering(known: str = "") -> tuple[Run, list[str]]:
    kept: list[str] = []

    async def keep(run: str) -> None:
        kept.append(run)

    return Run(known, keep), kept


@pytest.mark.req("S4-30")
async def test_a_real_playbook_makes_it_where_it_was_placed_and_takes_it_away(tmp_path: Path) -> None:
    (tmp_path / "vm.yaml").write_text(PLAYBOOK.format(folder=tmp_path))
    pipeline = AnsiblePipeline(str(tmp_path / "vm.yaml"), command=command())
    await pipeline.create(ORDER, remembering()[0])
    assert (tmp_path / "spare-1").read_text() == "bm-1 4 8192"
    await pipeline.delete(ORDER, remembering()[0])
    await pipeline.delete(ORDER, remembering()[0])
    assert not (tmp_path / "spare-1").exists()


async def test_a_playbook_that_fails_says_why_and_may_be_tried_again(tmp_path: Path) -> None:
    text = (
        "- hosts: all\n  connection: local\n  gather_facts: false\n  tasks:\n  - ansible.builtin.fail: {msg: no room}\n"
    )
    (tmp_path / "vm.yaml").write_text(text)
    with pytest.raises(Unavailable, match="no room"):
        await AnsiblePipeline(str(tmp_path / "vm.yaml"), command=command()).create(ORDER, remembering()[0])


async def test_without_a_playbook_or_without_ansible_it_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="there is no playbook"):
        await AnsiblePipeline("/nowhere.yaml").create(ORDER, remembering()[0])
    (tmp_path / "vm.yaml").write_text("[]")
    with pytest.raises(Unavailable, match="cannot be started"):
        await AnsiblePipeline(str(tmp_path / "vm.yaml"), command="/no/such/ansible").create(ORDER, remembering()[0])


async def test_breaking_it_off_ends_the_playbook_and_all_it_started(tmp_path: Path) -> None:
    sleeping = tmp_path / "play"
    sleeping.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nsleep 600\n")
    sleeping.chmod(0o755)
    (tmp_path / "vm.yaml").write_text("[]")
    task = asyncio.ensure_future(
        AnsiblePipeline(str(tmp_path / "vm.yaml"), command=str(sleeping)).create(ORDER, remembering()[0])
    )
    async with asyncio.timeout(60):
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
            await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.wait({task})
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def command() -> str:
    import sys

    return str(Path(sys.executable).with_name("ansible-playbook"))


# GitLab.


class Gitlab:
    """As its documentation says: form fields in, 201 with an id; the status by the private token."""

    def __init__(self) -> None:
        self.runs: list[dict[str, str]] = []
        self.states = ["created", "running", "success"]
        self.asked = 0

    async def trigger(self, request: web.Request) -> web.Response:
        form = dict(await request.post())
        if form.get("token") != "trigger-token":
            return web.json_response({"message": "404 Not Found"}, status=404)
        if form.get("ref") != "main":
            return web.json_response({"message": {"base": ["Reference not found"]}}, status=400)
        self.runs.append({key: str(value) for key, value in form.items()})
        number = len(self.runs)
        return web.json_response({"id": number, "status": "created", "web_url": f"/p/{number}"}, status=201)

    async def status(self, request: web.Request) -> web.Response:
        if request.headers.get("PRIVATE-TOKEN") != "read-token":
            return web.json_response({"message": "401 Unauthorized"}, status=401)
        self.asked += 1
        state = self.states[min(self.asked, len(self.states)) - 1]
        return web.json_response({"id": int(request.match_info["id"]), "status": state, "web_url": "/p/1"})


@asynccontextmanager
async def serving(*routes: web.RouteDef) -> AsyncIterator[str]:
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def gitlab(tmp_path: Path, **fields: Any) -> AsyncIterator[tuple[Gitlab, GitlabPipeline]]:
    (tmp_path / "trigger").write_text("trigger-token\n")
    (tmp_path / "token").write_text("read-token\n")
    fake = Gitlab()
    base = "/api/v4/projects/{project}"
    routes = (
        web.post(f"{base}/trigger/pipeline", fake.trigger),
        web.get(f"{base}/pipelines/{{id}}", fake.status),
    )
    async with serving(*routes) as url:
        files = {"trigger_token_file": str(tmp_path / "trigger"), "token_file": str(tmp_path / "token")}
        settings: dict[str, Any] = {"url": url, "project": "infra/vms", "ref": "main", "poll": 0.01} | files | fields
        pipeline = GitlabPipeline(**settings)
        try:
            yield fake, pipeline
        finally:
            await pipeline.close()


@pytest.mark.req("S4-30")
async def test_gitlab_is_triggered_once_with_the_order_and_followed_to_its_end(tmp_path: Path) -> None:
    async with gitlab(tmp_path) as (fake, pipeline):
        run, kept = remembering()
        await pipeline.create(ORDER, run)
    assert kept == ["create 1", ""]
    (form,) = fake.runs
    assert form["variables[MANDOR_ACTION]"] == "create"
    assert form["variables[MANDOR_VM]"] == "spare-1"
    assert form["variables[MANDOR_NODE]"] == "bm-1"
    assert form["variables[MANDOR_MEMORY_MIB]"] == "8192"


async def test_after_a_restart_a_run_is_followed_and_not_begun_again(tmp_path: Path) -> None:
    async with gitlab(tmp_path) as (fake, pipeline):
        await pipeline.create(ORDER, remembering("create 7")[0])
        assert not fake.runs
        fake.asked = 0
        await pipeline.delete(ORDER, remembering("create 7")[0])
        assert fake.runs[0]["variables[MANDOR_ACTION]"] == "delete"


async def test_a_pipeline_of_gitlab_that_fails_may_be_tried_again_and_a_wrong_token_not(tmp_path: Path) -> None:
    async with gitlab(tmp_path) as (fake, pipeline):
        fake.states = ["running", "failed"]
        with pytest.raises(Unavailable, match="failed"):
            await pipeline.create(ORDER, remembering()[0])
        (tmp_path / "trigger").write_text("wrong")
        with pytest.raises(Invalid, match="404"):
            await pipeline.create(ORDER, remembering()[0])
    with pytest.raises(Invalid, match="no address of GitLab"):
        GitlabPipeline("http://gitlab.example.org", "p", "main", "a", "b")


# Kubernetes.


@pytest.mark.req("S4-31")
async def test_a_machine_is_ready_when_its_node_of_kubernetes_says_so(tmp_path: Path) -> None:
    answers: dict[str, Any] = {}

    async def node(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != "Bearer a-token":
            return web.json_response({"kind": "Status", "code": 401}, status=401)
        found = answers.get(request.match_info["name"])
        return web.json_response(found or {"kind": "Status", "code": 404}, status=200 if found else 404)

    (tmp_path / "token").write_text("a-token\n")
    async with serving(web.get("/api/v1/nodes/{name}", node)) as url:
        ready = KubernetesNode(url, str(tmp_path / "token"))
        assert await ready.check("spare-1") == "it has not joined"
        condition = {"type": "Ready", "status": "False", "message": "cni is not ready"}
        answers["spare-1"] = {"kind": "Node", "status": {"conditions": [{"type": "DiskPressure"}, condition]}}
        assert await ready.check("spare-1") == "its node is not ready: cni is not ready"
        condition["status"] = "True"
        assert await ready.check("spare-1") == ""
        answers["spare-1"] = {"kind": "Node", "status": {}}
        assert "says nothing" in await ready.check("spare-1")
        (tmp_path / "token").write_text("wrong")
        with pytest.raises(Unavailable, match="401"):
            await ready.check("spare-1")
        await ready.close()


def test_the_file_of_pipelines_is_read_and_mistakes_are_told(tmp_path: Path) -> None:
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


def test_the_files_that_are_shipped_are_understood() -> None:
    root = Path(__file__).parents[3]
    assert read_targets(str(root / "deploy" / "pipelines.yaml")).keys() == {"prod", "lab"}
