"""Volumes of a node: created once, kept across restarts, deleted only with their object."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mandor.model.instance import Instance, InstanceSpec, InstanceStatus
from mandor.model.meta import Key, Meta
from mandor.model.phase import Phase
from mandor.model.volume import Volume, VolumeSpec, VolumeStatus
from mandor.store.base import Delete, Put
from tests.unit.agent.world import NODE, World, open_world

OWN = {"data": {"size": "1Gi", "per_instance": True}}
KEY = Key("volume", "default", "data-web-0")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path / "agent", host_paths=(str(tmp_path / "allowed"),)) as opened:
        yield opened


def folder(world: World) -> Path:
    return world.settings.data / "volumes" / "default" / "data-web-0" / "data"


async def apply(world: World, volumes: dict[str, Any] | None = None, **task: Any) -> None:
    main = {"command": ["run"], "mounts": [{"volume": "data", "path": "/data"}], **task}
    await world.apply(volumes=volumes or OWN, tasks={"main": main})


async def place(world: World, *, node: str = NODE, spec: VolumeSpec | None = None, **status: Any) -> Volume:
    """Store a volume on a node, as the scheduler does."""
    volume = Volume(
        meta=Meta(name=KEY.name, namespace="default"),
        spec=spec or VolumeSpec(),
        status=VolumeStatus(node=node, workload="web", **status),
    )
    await world.store.commit(Put(volume))
    return await stored(world)


async def stored(world: World) -> Volume:
    found = await world.store.get(KEY)
    assert isinstance(found, Volume)
    return found


async def order(world: World) -> Instance:
    spec = InstanceSpec(workload="web", release="web.1", index=0, node=NODE, volumes=(KEY.name,))
    status = InstanceStatus(phase=Phase.RESERVED, since=world.clock.now())
    await world.store.commit(Put(Instance(meta=Meta(name="web-0", namespace="default"), spec=spec, status=status)))
    return await world.instance()


async def end(world: World) -> None:
    await world.stop_order()
    await world.until_phase(Phase.STOPPED)
    await world.delete()
    await world.pass_time(2)


@pytest.mark.req("S2-38", "S2-39")
async def test_a_volume_is_created_reported_and_mounted(world: World) -> None:
    await apply(world)
    await place(world)
    await order(world)
    await world.until_phase(Phase.RUNNING)
    (unit,) = world.starts
    launch = world.engine.launch(unit)
    (mount,) = launch.mounts
    assert (mount.path, mount.source, mount.name) == ("/data", str(folder(world).resolve()), "data")
    assert launch.env["MANDOR_VOLUME_DATA"] == "/data"
    assert (await stored(world)).status.path == str(folder(world).resolve())
    assert folder(world).stat().st_mode & 0o777 == 0o755


@pytest.mark.req("S2-39")
async def test_the_data_of_a_volume_survives_instances_and_agents(world: World) -> None:
    await apply(world)
    await place(world)
    await order(world)
    await world.until_phase(Phase.RUNNING)
    (folder(world) / "file").write_text("kept")
    await end(world)
    await world.restart_agent()
    await world.pass_time(70)
    await order(world)
    await world.until_phase(Phase.RUNNING)
    assert (folder(world) / "file").read_text() == "kept"


async def test_an_instance_restarts_with_its_volume_during_an_outage(world: World) -> None:
    await apply(world, options={"fake": {"after": "2s", "exit_code": 1, "good_attempt": 2}})
    await place(world)
    await order(world)
    await world.until_phase(Phase.RUNNING)
    world.wire.cut()
    await world.restart_agent()
    await world.pass_time(60)
    assert len(world.starts) == 2
    assert world.engine.launch(world.starts[1]).mounts == world.engine.launch(world.starts[0]).mounts


async def test_deleting_a_volume_deletes_its_data(world: World) -> None:
    await apply(world)
    await place(world)
    await order(world)
    await world.until_phase(Phase.RUNNING)
    await world.store.commit(Delete(KEY, (await stored(world)).meta.version))
    await world.pass_time(65)
    assert folder(world).is_dir(), "an instance still has it"
    await end(world)
    assert not folder(world).exists()
    assert not list((world.settings.data / "volumes" / ".trash").iterdir())


async def test_a_volume_deleted_while_the_agent_was_down_is_removed_later(world: World) -> None:
    await apply(world)
    await place(world)
    await order(world)
    await world.until_phase(Phase.RUNNING)
    await end(world)
    await world.kill_agent()
    await world.store.commit(Delete(KEY, (await stored(world)).meta.version))
    await world.boot_agent()
    await world.pass_time(2)
    assert not folder(world).exists()


async def test_a_store_of_another_epoch_deletes_nothing(world: World) -> None:
    """A restored cluster may lack volumes that were created since: they must not be deleted."""
    await apply(world)
    await place(world)
    await order(world)
    await world.until_phase(Phase.RUNNING)
    await end(world)
    await world.kill_agent()
    await world.store.commit(Delete(KEY, (await stored(world)).meta.version))
    cluster = await world.store.get(Key("cluster", "", "cluster"))
    assert cluster is not None
    await world.store.commit(Put(cluster.changed(spec=msgspec.structs.replace(cluster.spec, epoch=2))))
    await world.boot_agent()
    await world.pass_time(130)
    assert folder(world).is_dir()


@pytest.mark.req("S3-10")
async def test_a_missing_volume_directory_is_not_replaced_by_an_empty_one(world: World) -> None:
    await apply(world)
    await place(world, path="/was/here")
    await order(world)
    await world.pass_time(30)
    status = await world.status()
    assert (status.phase, status.reason) == (Phase.RESERVED, "VolumeMissing")
    assert "the directory of volume data-web-0 is missing: /was/here" in status.message
    assert world.starts == []


async def test_a_volume_with_on_loss_recreate_is_created_again(world: World) -> None:
    await apply(world)
    await place(world, spec=VolumeSpec(on_loss="recreate"), path="/was/here")
    await order(world)
    await world.until_phase(Phase.RUNNING)
    assert (await stored(world)).status.path == str(folder(world).resolve())


async def test_a_later_incarnation_does_not_show_the_data_of_the_earlier(world: World) -> None:
    await apply(world)
    await place(world)
    await order(world)
    await world.until_phase(Phase.RUNNING)
    (folder(world) / "file").write_text("old")
    await world.stop_order()
    await world.until_phase(Phase.STOPPED)
    await world.delete()
    now = await stored(world)
    await world.store.commit(Put(now.changed(status=VolumeStatus(node=NODE, workload="web", incarnation=1))))
    await order(world)
    await world.until_phase(Phase.RUNNING)
    assert list(folder(world).iterdir()) == []


@pytest.mark.parametrize(
    ("node", "said"),
    [("", "on node (none yet)"), ("n2", "on node n2"), (None, "does not exist")],
    ids=["unplaced", "other", "none"],
)
async def test_an_instance_without_its_volume_on_the_node_is_refused(world: World, node: str | None, said: str) -> None:
    await apply(world)
    if node is not None:
        await place(world, node=node)
    await order(world)
    status = await world.until_phase(Phase.FAILED)
    assert status.reason == "Refused"
    assert said in status.message
    assert not folder(world).exists()


@pytest.mark.req("S2-37")
async def test_a_host_path_is_mounted_if_its_resolved_path_is_allowed(world: World, tmp_path: Path) -> None:
    allowed, secret = tmp_path / "allowed", tmp_path / "secret"
    for each in (allowed / "data", secret):
        each.mkdir(parents=True)
    (allowed / "trap").symlink_to(secret)
    (tmp_path / "way").symlink_to(allowed / "data")
    for number, (path, ends) in enumerate(
        [
            (allowed / "data", ""),
            (tmp_path / "way", ""),
            (secret, "is not allowed"),
            (allowed / "trap", "is not allowed"),
            (allowed / "none", "does not exist"),
            (Path(f"{allowed}ish"), "is not allowed"),
        ]
    ):
        name = f"w{number}"
        main = {"command": ["run"], "mounts": [{"volume": "h", "path": "/h"}]}
        await world.apply(name, volumes={"h": {"type": "host", "path": str(path)}}, tasks={"main": main})
        await world.order(name)
        status = await world.until_phase(Phase.FAILED if ends else Phase.RUNNING, f"{name}-0")
        assert ends in status.message
    assert {world.engine.launch(unit).mounts[0].source for unit in world.starts} == {str((allowed / "data").resolve())}


async def test_the_node_reports_its_allowed_host_paths(world: World, tmp_path: Path) -> None:
    await world.pass_time(2)
    assert (await world.node()).status.facts["host.paths"] == str(tmp_path / "allowed")


@pytest.mark.parametrize(
    ("owner", "user", "expected"), [("123:456", 7, (123, 456)), (None, 7, (7, 7)), (None, None, (0, 0))]
)
async def test_a_volume_has_the_configured_owner(
    world: World, owner: str | None, user: int | None, expected: tuple[int, int]
) -> None:
    await apply(world, security={"user": user} if user is not None else {})
    await place(world, spec=VolumeSpec(owner=owner, mode="0700"))
    await order(world)
    await world.until_phase(Phase.RUNNING)
    found = folder(world).stat()
    if os.geteuid() != 0:
        expected = os.geteuid(), os.getegid()  # Only root gives folders away.
    assert ((found.st_uid, found.st_gid), found.st_mode & 0o777) == (expected, 0o700)


async def test_a_tmpfs_has_no_directory_on_the_node(world: World) -> None:
    mounts = [{"tmpfs": "64Mi", "path": "/tmp"}, {"volume": "scratch", "path": "/scratch/deep"}]
    volumes = {"scratch": {"type": "tmpfs", "size": "1Mi"}}
    await world.apply(volumes=volumes, tasks={"main": {"command": ["run"], "mounts": mounts}})
    await world.order()
    await world.until_phase(Phase.RUNNING)
    (unit,) = world.starts
    found = [(each.path, each.source, each.size_bytes) for each in world.engine.launch(unit).mounts]
    assert found == [("/tmp", None, 64 << 20), ("/scratch/deep", None, 1 << 20)]
    assert not list((world.settings.data / "volumes").glob("default/*"))


async def test_a_scratch_volume_is_shared_by_tasks_and_deleted_with_its_instance(world: World) -> None:
    mounts = [{"volume": "tmp", "path": "/tmp"}]
    tasks = {name: {"command": [name], "mounts": mounts} for name in ("a", "b")}
    await world.apply(volumes={"tmp": {"type": "scratch", "mode": "0777"}}, tasks=tasks)
    instance = await order(world)
    await world.until_phase(Phase.RUNNING)
    sources = {mount.source for unit in world.starts for mount in world.engine.launch(unit).mounts}
    made = world.settings.data / "volumes" / ".scratch" / instance.meta.uid / "tmp"
    assert sources == {str(made.resolve())}
    assert made.stat().st_mode & 0o777 == 0o777
    (made / "file").write_text("x")
    await end(world)
    assert not made.parent.exists()
