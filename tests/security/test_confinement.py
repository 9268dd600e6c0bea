"""Confinement of restricted tasks: no root, no capabilities, a seccomp filter, a read-only root."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

from mandor.agent.launch import confined, user_of
from mandor.engines.base import Engine, Launch, Unit, UnitPhase
from mandor.engines.cri import CriEngine
from mandor.engines.docker import DockerEngine
from mandor.engines.incus import IncusEngine
from mandor.engines.podman import PodmanEngine
from mandor.model.allowance import Allowance
from mandor.model.level import Level
from mandor.model.record import FIRST_NAMESPACE_USER, USERS_PER_NAMESPACE, NamespaceSpec
from mandor.model.task import Task
from mandor.model.user_range import mapped_user
from tests.components.containerd import Containerd
from tests.components.docker import RunningDocker
from tests.components.image import NAME
from tests.components.incus import IMAGE, Incus
from tests.components.podman import Podman

USER = FIRST_NAMESPACE_USER + 3 * USERS_PER_NAMESPACE
LOOK = """
cat /proc/self/status
echo ground: $(touch /intruder 2>/dev/null && echo written || echo refused)
echo tmp: $(touch /tmp/scratch 2>/dev/null && echo written || echo refused)
echo sysrq: $(test -w /proc/sysrq-trigger && echo open || echo closed)
echo kcore: $(head -c 1 /proc/kcore 2>/dev/null | wc -c)
echo uid: $(id -u) gid: $(id -g)
"""


async def look_inside(engine: Engine, level: Level, image: str = NAME) -> dict[str, str]:
    task = Task(image=image, command=("sh", "-c", LOOK))
    allowance = Allowance("shop", NamespaceSpec(level=level), USER)
    launch = Launch(
        name="web-0",
        namespace="shop",
        image=image,
        command=task.command,
        user=user_of(allowance, task, engine.name),
        security=confined(level, task.security),
        level=level,
    )
    unit = Unit(uuid.uuid4().hex, "main", 1)
    async with engine, asyncio.timeout(240):
        await engine.start(unit, launch)
        try:
            while True:
                found = next((each for each in await engine.list() if each.unit == unit), None)
                if found is not None and found.phase is UnitPhase.EXITED:
                    break
                await asyncio.sleep(0.1)
            lines = [line.text.decode() async for line in engine.logs(unit)]
            assert found.exit_code == 0, (found, lines)
        finally:
            await engine.remove(unit)
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def check_no_powers(found: dict[str, str], user: int) -> None:
    assert found["Uid"].split() == [str(user)] * 4, found
    assert found["Gid"].split() == [str(user)] * 4
    assert {int(found[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb", "CapInh")} == {0}
    assert found["NoNewPrivs"] == "1"
    assert found["Seccomp"] == "2"
    assert (found["ground"], found["tmp"]) == ("refused", "written")
    assert (found["sysrq"], found["kcore"]) == ("closed", "0")


async def test_a_restricted_task_of_docker_has_no_powers(docker: RunningDocker, tmp_path: Path) -> None:
    found = await look_inside(DockerEngine(tmp_path, socket=docker.socket), "restricted")
    check_no_powers(found, USER)


async def test_a_restricted_task_of_podman_has_no_powers(podman: Podman, tmp_path: Path) -> None:
    found = await look_inside(PodmanEngine(tmp_path, socket=podman.socket), "restricted")
    check_no_powers(found, USER)


async def test_a_restricted_task_of_a_rootless_podman_has_a_user_that_is_mapped(
    rootless_podman: Podman, tmp_path: Path
) -> None:
    found = await look_inside(PodmanEngine(tmp_path, socket=rootless_podman.socket), "restricted")
    check_no_powers(found, mapped_user(USER))


async def test_a_restricted_task_of_containerd_has_no_powers(containerd: Containerd, tmp_path: Path) -> None:
    engine = CriEngine(tmp_path, socket=containerd.socket, dial=containerd.dial)
    check_no_powers(await look_inside(engine, "restricted"), USER)


async def test_a_baseline_task_of_containerd_cannot_reach_the_kernel_of_the_node(
    containerd: Containerd, tmp_path: Path
) -> None:
    """Root inside its container: without masked paths it could restart the node."""
    engine = CriEngine(tmp_path, socket=containerd.socket, dial=containerd.dial)
    found = await look_inside(engine, "baseline")
    assert found["Uid"].split()[0] == "0"
    assert found["Seccomp"] == "2"
    assert (found["sysrq"], found["kcore"]) == ("closed", "0")


async def test_a_restricted_task_of_incus_is_no_root_and_its_container_is_mapped_apart(
    incus: Incus, tmp_path: Path
) -> None:
    found = await look_inside(IncusEngine(tmp_path, url=incus.url), "restricted", IMAGE)
    assert found["Uid"].split() == [str(mapped_user(USER))] * 4, found
    assert int(found["CapEff"], 16) == 0
    assert found["ground"] == "refused"
