"""ProcessEngine keeps the promises of an engine: with cgroups and without, with mounts and with links."""

from __future__ import annotations

from pathlib import Path

from mandor.engines.base import Engine
from mandor.engines.process import ProcessEngine
from mandor.testing.engine import EngineSuite


class TestProcessEngine(EngineSuite):
    def make_engine(self, directory: Path) -> Engine:
        return ProcessEngine(directory)


class TestProcessEngineWithoutCgroupsAndMounts(EngineSuite):
    """As on a machine that has none, or for a user who may not make any."""

    def make_engine(self, directory: Path) -> Engine:
        return ProcessEngine(directory, limits=False, mounts=False)
