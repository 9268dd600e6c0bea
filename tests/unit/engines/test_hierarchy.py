"""Detection of cgroup hierarchies, and the values that are written to their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from mandor.engines.base import Launch
from mandor.engines.process.hierarchy import Hierarchies, Hierarchy, read_hierarchies
from mandor.engines.shim import groups

HYBRID = """\
24 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 24 0:26 / /sys/fs/cgroup rw,relatime - tmpfs cgroup rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
34 30 0:30 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
35 30 0:31 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
36 30 0:32 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup rw
"""

LIMITS = Launch(name="x", cpu_milli=250, memory_bytes=64 << 20, processes=10)
EVERYTHING = frozenset({"cpu", "memory", "pids"})


def test_version_1_controllers_on_separate_mounts_are_found() -> None:
    found = read_hierarchies(HYBRID)
    assert [(tree.mount.rpartition("/")[2], tree.version, sorted(tree.controllers)) for tree in found] == [
        ("cpu,cpuacct", 1, ["cpu", "cpuacct"]),
        ("memory", 1, ["memory"]),
        ("pids", 1, ["pids"]),
        ("systemd", 1, []),
        ("unified", 2, []),
    ]


def test_a_hierarchy_that_is_mounted_twice_is_used_once() -> None:
    again = "99 24 0:28 / /elsewhere/memory rw,relatime - cgroup cgroup rw,memory\n"
    assert len(read_hierarchies(HYBRID + again)) == len(read_hierarchies(HYBRID))


def version_2(tmp_path: Path, *, offered: str = "cpuset cpu io memory pids", enabled: str = "cpu memory pids") -> str:
    mount = tmp_path / "cg 2"
    mount.mkdir()
    (mount / "cgroup.controllers").write_text(offered)
    (mount / "cgroup.subtree_control").write_text(enabled)
    return f"30 24 0:26 / {str(mount).replace(' ', chr(92) + '040')} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


def test_a_machine_with_only_version_2_is_detected(tmp_path: Path) -> None:
    (tree,) = read_hierarchies(version_2(tmp_path))
    assert (tree.version, tree.controllers) == (2, EVERYTHING)
    assert Hierarchies([tree], tmp_path).limits == {"cpu", "memory", "processes"}


def test_version_2_limits_only_what_its_parent_has(tmp_path: Path) -> None:
    (tree,) = read_hierarchies(version_2(tmp_path, offered="cpuset memory", enabled="memory"))
    assert Hierarchies([tree], tmp_path).limits == {"memory"}


def test_controllers_that_cannot_be_enabled_are_not_announced(tmp_path: Path) -> None:
    """Inside a container, where the kernel refuses."""
    (tree,) = read_hierarchies(version_2(tmp_path, enabled=""))
    control = Path(tree.mount, "cgroup.subtree_control")
    control.unlink()
    trees = Hierarchies([tree], tmp_path)
    assert (trees.limits, len(trees.trees)) == (frozenset(), 1)


def test_a_machine_without_cgroups_limits_nothing(tmp_path: Path) -> None:
    trees = Hierarchies([Hierarchy(str(tmp_path / "missing"), 1, EVERYTHING)], tmp_path)
    assert (trees.trees, trees.limits, trees.groups("u.main.0", LIMITS), trees.made()) == ([], frozenset(), [], {})


@pytest.mark.parametrize(
    ("version", "launch", "expected"),
    [
        (
            1,
            LIMITS,
            [
                ("cpu.cfs_period_us", "100000"),
                ("cpu.cfs_quota_us", "25000"),
                ("memory.limit_in_bytes", "67108864"),
                ("?memory.memsw.limit_in_bytes", "67108864"),
                ("pids.max", "10"),
            ],
        ),
        (
            2,
            LIMITS,
            [
                ("cpu.max", "25000 100000"),
                ("memory.max", "67108864"),
                ("?memory.swap.max", "0"),
                ("?memory.oom.group", "1"),
                ("pids.max", "10"),
            ],
        ),
        (1, Launch(name="x", cpu_milli=1), [("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "1000")]),
        (2, Launch(name="x", cpu_milli=4500), [("cpu.max", "450000 100000")]),
        (2, Launch(name="x"), []),
    ],
)
def test_limits_become_values_of_cgroup_files(
    tmp_path: Path, version: int, launch: Launch, expected: list[tuple[str, str]]
) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids")
    trees = Hierarchies([Hierarchy(str(tmp_path), version, EVERYTHING)], tmp_path)
    (group,) = trees.groups("u.main.0", launch)
    assert group["writes"] == expected
    assert group["path"].startswith(f"{tmp_path}/mandor/")


def test_engines_with_different_folders_have_different_groups(tmp_path: Path) -> None:
    tree = Hierarchy(str(tmp_path), 1, EVERYTHING)
    assert Hierarchies([tree], tmp_path / "a").paths("u") != Hierarchies([tree], tmp_path / "b").paths("u")


def test_a_version_2_group_is_made_with_its_limits_and_what_is_optional_may_be_missing(tmp_path: Path) -> None:
    """A folder with plain files in place of a cgroup."""
    trees = Hierarchies([Hierarchy(str(tmp_path), 2, EVERYTHING)], tmp_path)
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids")
    trees = Hierarchies([Hierarchy(str(tmp_path), 2, EVERYTHING)], tmp_path)
    (group,) = trees.groups("u.main.0", LIMITS)
    path = Path(group["path"])
    path.mkdir(parents=True)
    for name in ("cpu.max", "memory.max", "pids.max"):
        (path / name).touch()
    groups.make(group)
    assert [(path / name).read_text() for name in ("cpu.max", "memory.max", "pids.max")] == [
        "25000 100000",
        "67108864",
        "10",
    ]
    (path / "memory.max").unlink()
    with pytest.raises(OSError, match=r"cannot set memory.max to 67108864"):
        groups.make(group)


def test_usage_of_a_version_2_group_is_read(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 400000\n")
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    paths = [str(tmp_path / "nothing"), str(tmp_path)]
    assert (groups.cpu_seconds(paths), groups.memory_bytes(paths), groups.oom_kills(paths)) == (2.5, 600_000, 2)
    assert (groups.cpu_seconds(paths[:1]), groups.memory_bytes(paths[:1]), groups.oom_kills(paths[:1])) == (
        None,
        None,
        0,
    )
