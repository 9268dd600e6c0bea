"""Engines in the status of a node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from mandor.agent.fingerprint import capabilities, capacity, node_status
from mandor.engines.base import Engine, Launch, Observed, Unit
from mandor.errors import EngineDown, NotFound
from mandor.model.meta import Meta
from mandor.model.node import UNKNOWN, Capabilities, Node, NodeStatus, PortRange
from mandor.model.resources import Resources
from mandor.model.rule import parse_rule
from mandor.placement.framework.snapshot import node_facts


class Answering(Engine):
    name = "answering"

    def __init__(self, answer: Capabilities | Exception) -> None:
        self._answer = answer

    async def probe(self) -> Capabilities:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    async def list(self) -> Sequence[Observed]:
        return ()

    async def start(self, unit: Unit, launch: Launch) -> None: ...
    async def stop(self, unit: Unit, *, grace_seconds: float) -> None: ...
    async def remove(self, unit: Unit) -> None: ...


def status(before: NodeStatus, **engines: Capabilities) -> NodeStatus:
    return node_status(
        before,
        address="",
        has=Resources(),
        engines=engines,
        images={},
        ports=PortRange(),
        pressure=(),
        usage=None,
        facts={},
        log_sinks={},
    )


async def test_an_engine_that_is_not_installed_is_left_out_and_one_that_is_down_is_shown() -> None:
    found = await capabilities(
        {
            "docker": Answering(NotFound("there is no docker on this machine")),
            "podman": Answering(EngineDown("podman does not run")),
            "process": Answering(Capabilities(version="1.0")),
        }
    )
    assert found == {
        "podman": Capabilities(up=False, message="podman does not run"),
        "process": Capabilities(version="1.0"),
    }


async def test_an_engine_that_was_uninstalled_is_shown_as_down() -> None:
    engines = {"docker": Answering(NotFound("there is no docker on this machine"))}
    found = await capabilities(engines, known={"docker"})
    assert found == {"docker": Capabilities(up=False, message="there is no docker on this machine")}


@pytest.mark.parametrize(
    ("rule", "holds"),
    [
        ("engine.docker.version version >= 20", True),
        ("engine.docker.version version >= 20.10.30", False),
        ("engine.podman.version exists", False),
        ("engine.docker.up == true", True),
        ("engine.docker.images == true", True),
        ("engine.process.images == true", False),
        ("engine.process.images == false", True),
        ("engine.docker.exec == true", True),
        ("engine.docker.machines == true", False),
        ("engine.docker.limits.memory exists", True),
    ],
)
@pytest.mark.req("S0-2")
def test_the_version_of_an_engine_and_what_it_can_do_are_facts_for_rules(rule: str, holds: bool) -> None:
    docker = Capabilities(
        version="20.10.24+dfsg1", images=True, extras=frozenset({"exec"}), limits=frozenset({"memory"})
    )
    facts = node_facts(Node(meta=Meta(name="n1"), status=status(UNKNOWN, docker=docker, process=Capabilities())))
    found = parse_rule(rule)
    assert found.test(facts.get(found.fact)) is holds


def test_an_engine_that_is_down_keeps_its_last_capabilities() -> None:
    before = status(UNKNOWN, docker=Capabilities(version="26.1", images=True))
    now = status(before, docker=Capabilities(up=False, message="it does not answer"))
    assert now.engines["docker"] == Capabilities(version="26.1", images=True, up=False, message="it does not answer")
    facts = node_facts(Node(meta=Meta(name="n1"), status=now))
    assert (facts["engine.docker.version"], facts["engine.docker.up"]) == ("26.1", "false")


def test_huge_pages_are_devices_and_no_memory(tmp_path: Path) -> None:
    for name, count in (("hugepages-2048kB", "512\n"), ("hugepages-1048576kB", "0\n"), ("hugepages-junkkB", "1\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "nr_hugepages").write_text(count)
    plain, huge = capacity(tmp_path, tmp_path / "none"), capacity(tmp_path, tmp_path)
    assert plain.devices == {}
    assert huge.devices == {"hugepages-2mi": 512}
    assert plain.memory_bytes - huge.memory_bytes == 1024**3
