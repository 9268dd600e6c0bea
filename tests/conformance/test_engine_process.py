"""ProcessEngine keeps the promises of an engine: at each level, with and without cgroups, with mounts or links."""

from __future__ import annotations

from pathlib import Path

import pytest

from mandor.engines.base import Engine
from mandor.engines.process import ProcessEngine
from mandor.testing.engine import EngineSuite

LIMITS = frozenset({"cpu", "memory", "processes"})
EXTRAS = frozenset(["confined", "events", "exec", "links", "logs", "mounts", "signal", "stats", "tmpfs", "user"])


class TestProcessEngine(EngineSuite):
    limits = LIMITS
    extras = EXTRAS

    def make_engine(self, directory: Path) -> Engine:
        return ProcessEngine(directory)


class TestProcessEngineRestricted(EngineSuite):
    level = "restricted"
    limits = LIMITS
    extras = EXTRAS

    def make_engine(self, directory: Path) -> Engine:
        return ProcessEngine(directory)


class TestProcessEnginePrivileged(EngineSuite):
    level = "privileged"
    limits = LIMITS
    extras = EXTRAS

    def make_engine(self, directory: Path) -> Engine:
        return ProcessEngine(directory)


class TestProcessEngineWithoutCgroupsAndMounts(EngineSuite):
    """As on a machine that has none, or for a user who may not make any."""

    limits = frozenset()
    extras = frozenset(["events", "exec", "links", "logs", "signal", "stats", "user"])

    @pytest.fixture(autouse=True)
    def folders_can_be_passed(self, tmp_path: Path) -> None:
        """Folders above the volume with the modes of the agent instead of those of pytest: without a view, a link leads
        through them."""
        for folder in (tmp_path, *tmp_path.parents[:3]):
            if "pytest" in str(folder):
                folder.chmod(0o711)

    def make_engine(self, directory: Path) -> Engine:
        return ProcessEngine(directory, limits=False, mounts=False)
