"""Subpaths of volumes: directories beside the data that no task can redirect."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from mandor.agent.launch import make_launch
from mandor.agent.volume_folder import VolumeFolders, VolumeRecord
from mandor.agent.volume_subpath import SUBPATHS_MOST, make_subpaths
from mandor.model.codec import from_plain
from mandor.model.group import GroupTemplate
from mandor.model.meta import Key
from tests.unit.agent.make import NOTHING_SEEN, make_order


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "volume" / "data"
    folder.mkdir(parents=True)
    folder.chmod(0o750)
    return folder


@pytest.mark.req("S2-37")
def test_a_subpath_is_a_directory_of_its_own_like_the_volume(data: Path) -> None:
    made = make_subpaths(data, {"mysql", "web/files"})
    assert set(made) == {"mysql", "web/files"}
    assert all(not path.is_relative_to(data) and path.stat().st_mode == data.stat().st_mode for path in made.values())
    (made["mysql"] / "kept").touch()
    assert make_subpaths(data, {"mysql"}) == made
    assert (made["mysql"] / "kept").exists()


def test_a_volume_without_subpaths_gets_no_directory(data: Path) -> None:
    assert make_subpaths(data, ()) == {}
    assert [each.name for each in data.parent.iterdir()] == ["data"]


def test_a_directory_that_a_task_made_becomes_the_subpath(data: Path) -> None:
    (data / "web" / "files").mkdir(parents=True)
    (data / "web" / "files" / "kept").touch()
    made = make_subpaths(data, {"web/files"})
    assert (made["web/files"] / "kept").exists()
    assert list((data / "web" / "files").iterdir()) == [], "the place of the mount stays"


@pytest.mark.parametrize("link", ["evil", "evil/inner"])
def test_a_symbolic_link_of_a_task_is_not_followed(data: Path, tmp_path: Path, link: str) -> None:
    outside = tmp_path / "outside"
    (outside / "inner").mkdir(parents=True)
    (outside / "inner" / "secret").touch()
    (data / "evil").symlink_to(outside)
    made = make_subpaths(data, {link})
    assert made[link].resolve().is_relative_to(data.parent)
    assert not made[link].is_symlink()
    assert os.listdir(made[link]) == []
    assert os.listdir(outside) == ["inner"]
    assert os.listdir(outside / "inner") == ["secret"]


def test_the_number_of_subpaths_is_limited(data: Path) -> None:
    make_subpaths(data, {str(number) for number in range(SUBPATHS_MOST)})
    with pytest.raises(OSError, match="at most 256"):
        make_subpaths(data, {"more"})


def test_a_mount_of_the_whole_volume_shows_its_subpaths() -> None:
    tasks = {
        "whole": {"image": "a", "mounts": [{"volume": "v", "path": "/v", "read_only": True}]},
        "part": {"image": "a", "mounts": [{"volume": "v", "path": "/p", "subpath": "a/${MANDOR_INSTANCE}"}]},
    }
    template = from_plain({"volumes": {"v": {}}, "tasks": tasks}, GroupTemplate)
    order = msgspec.structs.replace(make_order(), template=template)
    sources = {"v": "/n/data", "v/a/web-0": "/n/sub/a%2Fweb-0", "v/a/web-0/deep": "/n/sub/deep"}
    inputs = msgspec.structs.replace(NOTHING_SEEN, sources=sources)
    shown = {
        name: [(each.path, each.source, each.read_only) for each in make_launch(order, name, "fake", inputs).mounts]
        for name in tasks
    }
    assert shown["whole"] == [
        ("/v", "/n/data", True),
        ("/v/a/web-0", "/n/sub/a%2Fweb-0", True),
        ("/v/a/web-0/deep", "/n/sub/deep", True),
    ]
    assert shown["part"] == [("/p", "/n/sub/a%2Fweb-0", False), ("/p/deep", "/n/sub/deep", False)]


def test_only_a_new_volume_is_seeded() -> None:
    task = {"image": "a", "mounts": [{"volume": "v", "path": "/v", "seed": True}]}
    template = from_plain({"volumes": {"v": {}}, "tasks": {"main": task}}, GroupTemplate)
    order = msgspec.structs.replace(make_order(), template=template)
    for new in (frozenset({"v"}), frozenset[str]()):
        inputs = msgspec.structs.replace(NOTHING_SEEN, sources={"v": "/n/data"}, new_volumes=new)
        (mount,) = make_launch(order, "main", "fake", inputs).mounts
        assert mount.seed is bool(new)


@pytest.mark.parametrize(
    ("volume", "mount", "message"),
    [
        ({}, {"subpath": "../a"}, "must be relative"),
        ({}, {"subpath": "/a"}, "must be relative"),
        ({}, {"subpath": "a//b"}, "must be relative"),
        ({}, {"subpath": "ä" * 100}, "too long"),
        ({}, {"subpath": "a", "seed": True}, "either `subpath` or `seed`"),
        ({"type": "host", "path": "/a"}, {"subpath": "a"}, "type host does not support"),
        ({"type": "tmpfs", "size": "1Mi"}, {"seed": True}, "type tmpfs does not support"),
        ({"type": "scratch"}, {"seed": True}, "type scratch does not support"),
    ],
)
def test_an_invalid_subpath_or_seed_is_refused(volume: dict[str, str], mount: dict[str, object], message: str) -> None:
    task = {"image": "a", "mounts": [{"volume": "v", "path": "/v", **mount}]}
    with pytest.raises(ValueError, match=message):
        from_plain({"volumes": {"v": volume}, "tasks": {"main": task}}, GroupTemplate)


def test_a_volume_is_new_until_a_task_has_used_it(tmp_path: Path) -> None:
    folders, key = VolumeFolders(tmp_path / "volumes"), Key("volume", "default", "a")
    folders.make(key, VolumeRecord(uid="u", new=True), owner=None, mode="0755")
    assert folders.record(key) == VolumeRecord(uid="u", new=True)
    folders.mark_used(key)
    assert VolumeFolders(tmp_path / "volumes").record(key) == VolumeRecord(uid="u")
