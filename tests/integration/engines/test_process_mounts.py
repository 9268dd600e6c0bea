"""Mounts of processes: visible to the task, invisible on the node, and refused ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mandor.engines.base import Mount
from tests.integration.engines.conftest import Bench, clear

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")


def make(path: Path, text: str = "") -> Path:
    path.mkdir(parents=True)
    path.chmod(0o777)
    if text:
        (path / "file").write_text(text)
    return path.resolve()


@root_only
async def test_mounts_of_a_task_are_invisible_on_the_node(bench: Bench, tmp_path: Path) -> None:
    volume = make(tmp_path / "volume", "inside")
    before = Path("/proc/self/mountinfo").read_text()
    unit = await bench.start("cat /mnt/file; echo; sleep 3600", mounts=(Mount(path="/mnt", source=str(volume)),))
    assert await bench.printed(unit) == [b"inside"]
    assert Path("/proc/self/mountinfo").read_text() == before
    assert not (Path("/mnt") / "file").exists()
    await bench.engine.remove(unit)
    assert (volume / "file").read_text() == "inside"


@root_only
async def test_a_mount_can_be_inside_another_mount(bench: Bench, tmp_path: Path) -> None:
    outer, inner = make(tmp_path / "outer", "outer "), make(tmp_path / "inner", "inner")
    mounts = (Mount(path="/mnt", source=str(outer)), Mount(path="/mnt/deep/er", source=str(inner)))
    unit = await bench.start("cat /mnt/file /mnt/deep/er/file", mounts=mounts)
    assert (await bench.ended(unit)).reason == "Completed"
    assert await bench.output(unit) == [b"outer inner"]


@root_only
async def test_a_file_can_be_mounted_alone(bench: Bench, tmp_path: Path) -> None:
    volume = make(tmp_path / "volume", "127.0.0.1 only\n")
    unit = await bench.start("cat /etc/hosts", mounts=(Mount(path="/etc/hosts", source=str(volume / "file")),))
    await bench.ended(unit)
    assert await bench.output(unit) == [b"127.0.0.1 only"]


@root_only
async def test_a_link_that_replaces_a_mount_source_is_not_followed(bench: Bench, tmp_path: Path) -> None:
    """The agent has checked the path; a tenant who can write above it may replace it before the mount."""
    secret = make(tmp_path / "secret", "secret")
    (tmp_path / "way").symlink_to(secret)
    (tmp_path / "above").symlink_to(tmp_path)
    for path in (tmp_path / "way", tmp_path / "above" / "secret"):
        unit = await bench.start("cat /mnt/file", mounts=(Mount(path="/mnt", source=str(path)),))
        ended = await bench.ended(unit)
        assert ended.reason == "StartFailed"
        assert f"cannot mount {path} at /mnt" in ended.message


@root_only
async def test_a_task_that_is_not_root_cannot_become_root_by_its_mounts(bench: Bench, tmp_path: Path) -> None:
    volume = make(tmp_path / "volume")
    script = "grep NoNewPrivs /proc/self/status"
    mounts = (Mount(path="/mnt", source=str(volume)),)
    for user, expected in ((65534, b"NoNewPrivs:\t1"), (None, b"NoNewPrivs:\t0")):
        unit = await bench.start(script, mounts=mounts, user=user, level="privileged")
        await bench.ended(unit)
        assert await bench.output(unit) == [expected]


@root_only
async def test_a_task_of_another_user_can_write_to_its_own_folder(bench: Bench, tmp_path: Path) -> None:
    volume = make(tmp_path / "volume")
    os.chown(volume, 65534, 65534)
    volume.chmod(0o700)
    parts = {"mounts": (Mount(path="/mnt", source=str(volume)),)}
    unit = await bench.start("touch /mnt/mine", user=65534, **parts)
    assert (await bench.ended(unit)).reason == "Completed"
    assert (volume / "mine").stat().st_uid == 65534
    other = await bench.start("touch /mnt/other", user=65533, **parts)
    assert (await bench.ended(other)).reason == "Error"


async def test_removing_a_unit_keeps_the_targets_of_its_links(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "engine", mounts=False)
    volume = make(tmp_path / "volume", "kept")
    mounts = (Mount(path="some/data", source=str(volume), name="data"),)
    script = 'cat some/data/file; cat "$MANDOR_VOLUME_DATA/file"'
    unit = await bench.start(script, mounts=mounts, level="privileged")
    await bench.ended(unit)
    assert await bench.output(unit) == [b"keptkept"]
    await bench.engine.remove(unit)
    assert (volume / "file").read_text() == "kept"
    await clear(bench)


@pytest.mark.parametrize(
    ("mount", "said"),
    [
        (Mount(path="/mnt", source="/"), "a volume at an absolute path needs an agent that can mount"),
        (Mount(path="data", source="/", read_only=True), "a read-only volume needs an agent that can mount"),
        (Mount(path="data", size_bytes=1), "a tmpfs needs an agent that can mount"),
        (Mount(path="../data", source="/"), "must not contain `..`"),
        (Mount(path="data", source="/no/such/folder"), "its source /no/such/folder does not exist on this node"),
    ],
)
async def test_mounts_that_a_link_cannot_replace_are_refused(tmp_path: Path, mount: Mount, said: str) -> None:
    bench = Bench(tmp_path / "engine", mounts=False)
    ended = await bench.ended(await bench.start("true", mounts=(mount,)))
    assert ended.reason == "StartFailed"
    assert said in ended.message
    await clear(bench)


async def test_a_relative_mount_in_a_folder_of_the_node_is_refused(bench: Bench) -> None:
    mounts = (Mount(path="data", source="/"),)
    ended = await bench.ended(await bench.start("true", mounts=mounts, working_dir="/tmp"))
    assert ended.reason == "StartFailed"
    assert "the volume data would be in /tmp" in ended.message
