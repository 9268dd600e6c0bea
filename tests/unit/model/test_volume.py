"""Volumes and mounts as people write them, and what is wrong with them."""

from __future__ import annotations

from typing import Any

import pytest

from mandor.errors import Invalid
from mandor.model.instance import volume_names
from mandor.model.manifest import load_manifests
from mandor.model.volume import GroupVolume, Volume, path_allowed
from mandor.model.workload import Workload

BASE = "name: web\ncommand: [x]\n"


def mistake(text: str) -> Any:
    with pytest.raises(Invalid) as caught:
        load_manifests(text)
    return caught.value


def loaded(text: str) -> Workload:
    (document,) = load_manifests(text)
    assert isinstance(document.object, Workload)
    return document.object


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("mounts:\n- {volume: data, path: /a}\n", 1, "mounts 'data', which is not in `volumes`"),
        ("volumes:\n  data: {type: host}\n", 4, "`path` is required for `host` volumes, and not allowed for others"),
        ("volumes:\n  data: {path: /srv}\n", 4, "`path` is required for `host` volumes, and not allowed for others"),
        ("volumes:\n  data: {type: host, path: srv/../etc}\n", 4, "must be absolute and not contain `..`"),
        ("volumes:\n  data: {type: tmpfs}\n", 4, "a `tmpfs` requires a `size`"),
        ("volumes:\n  data: {type: nfs}\n", 4, "`nfs` is not one of local, host, tmpfs"),
        ("volumes:\n  data: {volume: x, per_instance: true}\n", 4, "refers to one local volume"),
        ("volumes:\n  data: {type: tmpfs, size: 1Mi, reclaim: delete}\n", 4, "are only for `local` volumes"),
        ("volumes:\n  data: {owner: root}\n", 4, "'root' is not an owner"),
        ("volumes:\n  data: {mode: 0999}\n", 4, "is not a file mode"),
        ("volumes:\n  data: {sise: 1Gi}\n", 4, "unknown key `sise`"),
        ("mounts:\n- {path: /a}\n", 4, "either `volume` or `tmpfs`"),
        ("mounts:\n- {tmpfs: 1Mi, volume: x, path: /a}\n", 4, "either `volume` or `tmpfs`"),
        ("mounts:\n- {tmpfs: 0, path: /a}\n", 4, "the size of a `tmpfs` must be above 0"),
        ("mounts:\n- {tmpfs: 1Mi, path: /}\n", 4, "must name a directory"),
        ("mounts:\n- {tmpfs: 1Mi, path: /a/../b}\n", 4, "not contain `..`"),
        ("mounts:\n- {tmpfs: 1Mi, path: /a}\n- {tmpfs: 2Mi, path: /a/}\n", 1, "two mounts have the path '/a'"),
    ],
)
def test_a_mistake_is_reported_with_its_line(text: str, line: int, said: str) -> None:
    error = mistake(BASE + text)
    assert said in str(error)
    assert error.facts["line"] == line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("where: [{rule: disk == ssd, strength: prefer}]\n", "must have `strength: must`"),
        ("node: N1\n", "is not a node name"),
        ("image: x\n", "unknown key `image`"),
    ],
)
def test_a_volume_of_its_own_is_checked_too(text: str, said: str) -> None:
    assert said in str(mistake("kind: volume\nname: data\n" + text))


def test_a_volume_is_shown_as_it_can_be_applied_again() -> None:
    (document,) = load_manifests("kind: volume\nmeta: {name: data}\nspec: {size: 1Gi}\nstatus: {phase: Bound}\n")
    assert isinstance(document.object, Volume)
    assert int(document.object.spec.size) == 1 << 30


def test_volumes_belong_to_instances_to_groups_or_to_neither() -> None:
    volumes = {
        "own": GroupVolume(per_instance=True),
        "shared": GroupVolume(),
        "named": GroupVolume(volume="shop"),
        "host": GroupVolume(type="host", path="/srv"),
    }
    assert volume_names(volumes, "web", "main", "web-3") == {
        "own": "own-web-3",
        "shared": "shared-web",
        "named": "shop",
    }
    assert volume_names(volumes, "web", "api", "web-api-3")["shared"] == "shared-web-api"


@pytest.mark.parametrize(
    ("mounts", "needs"),
    [
        ("[]", set()),
        ("[{volume: d, path: data}]", {"links"}),
        ("[{volume: d, path: /data}]", {"mounts"}),
        ("[{volume: d, path: data, read_only: true}]", {"links", "mounts"}),
        ("[{tmpfs: 1Mi, path: /tmp}]", {"tmpfs"}),
        ("[{volume: t, path: /tmp}, {volume: d, path: /data}]", {"tmpfs", "mounts"}),
    ],
)
def test_mounts_show_what_an_engine_has_to_be_able_to_do(mounts: str, needs: set[str]) -> None:
    volumes = "volumes: {d: {}, t: {type: tmpfs, size: 1Mi}}\n"
    assert loaded(f"{BASE}{volumes}mounts: {mounts}\n").spec.groups["main"].needs_anywhere == needs


def test_a_changed_volume_is_another_release_and_none_at_all_is_as_before() -> None:
    from mandor.model.workload import template_hash

    def hashed(text: str) -> str:
        return template_hash(loaded(BASE + text).spec.template)

    assert hashed("") == hashed("volumes: {}\nmounts: []\n")
    assert hashed("volumes: {d: {}}\n") != hashed("volumes: {d: {size: 1Gi}}\n")


def test_a_path_is_allowed_with_all_below_and_nothing_beside() -> None:
    assert path_allowed("/srv/data", ["/srv"])
    assert path_allowed("/srv", ["/srv/"])
    assert path_allowed("/anything", ["/"])
    assert not path_allowed("/srvx", ["/srv"])
    assert not path_allowed("/srv", ["", "/srv/data"])


def test_a_scratch_volume_takes_room_of_each_instance_and_ties_it_to_no_node() -> None:
    text = "volumes: {tmp: {type: scratch, size: 2Gi}}\nresources: {disk: 1Gi}\n"
    group = loaded(BASE + text).spec.groups["main"]
    assert group.request.disk_bytes == 3 << 30
    assert not group.apart
