"""Attacks with host paths: links that lead out of what the agent and the namespace allow, with a real agent."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from mandor.model.instance import Instance
from mandor.model.meta import Key, Meta
from mandor.model.phase import Phase
from mandor.model.record import Namespace, NamespaceSpec
from mandor.store.base import Put
from tests.integration.agent.conftest import harness
from tests.integration.agent.harness import AgentHarness

__all__ = ["harness"]

SECRET = "tell-no-other-tenant"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that the agent allows, with one of this namespace, one of another and links between them."""
    shared = (tmp_path / "shared").resolve()
    for name in ("mine", "other"):
        (shared / name / "data").mkdir(parents=True)
        (shared / name / "data" / "file").write_text(name)
        (shared / name / "data").chmod(0o777)
    outside = tmp_path.resolve() / "outside"
    (outside / "data").mkdir(parents=True)
    (outside / "data" / "file").write_text(SECRET)
    (shared / "mine" / "out").symlink_to(outside)
    (shared / "mine" / "neighbour").symlink_to(shared / "other")
    (shared / "mine" / "relative").symlink_to("../../outside/data")
    (shared / "mine" / "home").symlink_to("data")
    return shared


async def run(harness: AgentHarness, shared: Path, path: str, phase: Phase) -> Instance:
    """Order a task that mounts a host path, on an agent that allows `shared`, in a namespace that allows `mine`."""
    rules = NamespaceSpec(level="baseline", engines=("process",), host_paths=(str(shared / "mine"),))
    found = await harness.store.get(Key("namespace", "", "default"))
    namespace = Namespace(meta=Meta(name="default"), spec=rules) if found is None else found.changed(spec=rules)
    await harness.store.commit(Put(namespace))
    task = {"command": ["/bin/sh", "-c", "cat /mnt/file; sleep 3600"], "mounts": [{"volume": "v", "path": "/mnt"}]}
    await harness.order("", tasks={"main": task}, volumes={"v": {"type": "host", "path": path}})
    async with harness.agent(dataclasses.replace(harness.settings(), host_paths=[str(shared)])):
        found = await harness.until(phase)
        await harness.end()
        return found


@pytest.mark.parametrize(
    ("below", "words"),
    [
        ("out/data", "is not allowed on this node"),
        ("relative", "is not allowed on this node"),
        ("neighbour/data", "which namespace default does not allow"),
    ],
)
async def test_a_link_does_not_lead_a_host_path_to_another_tenant_or_the_node(
    harness: AgentHarness, shared: Path, below: str, words: str
) -> None:
    failed = await run(harness, shared, f"{shared}/mine/{below}", Phase.FAILED)
    assert words in failed.status.message
    logs = (harness.folder / "n1" / "process" / "units").glob("*/log")
    assert [log for log in logs if log.read_bytes()] == []


@pytest.mark.parametrize("below", ["data", "home"])
async def test_a_host_path_that_leads_to_an_allowed_folder_is_mounted(
    harness: AgentHarness, shared: Path, below: str
) -> None:
    await run(harness, shared, f"{shared}/mine/{below}", Phase.RUNNING)
