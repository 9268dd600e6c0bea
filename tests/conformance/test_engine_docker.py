"""DockerEngine keeps the promises of an engine, with a real dockerd."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mandor.engines.base import Engine, Launch
from mandor.engines.docker import DockerEngine
from mandor.testing.engine import EngineSuite
from tests.components.docker import RunningDocker
from tests.components.image import NAME


class TestDockerEngine(EngineSuite):
    image = NAME

    @pytest.fixture(autouse=True)
    def _docker(self, docker: RunningDocker) -> None:
        self.docker = docker

    def make_engine(self, directory: Path) -> Engine:
        return DockerEngine(directory, socket=self.docker.socket)

    def traces(self, uids: Sequence[str]) -> Sequence[str]:
        listed = self.docker.cli("ps", "--all", "--no-trunc", "--format", "{{.Names}} {{.Labels}}").splitlines()
        return [*super().traces(uids), *(line for line in listed if any(uid in line for uid in uids))]

    @contextmanager
    def foreigner(self) -> Iterator[Callable[[], bool]]:
        other = self.docker.cli("run", "--detach", NAME, "sleep", "3600")
        try:
            yield lambda: self.docker.cli("inspect", "--format", "{{.State.Running}}", other) == "true"
        finally:
            self.docker.cli("rm", "--force", other)

    def dies(self, signal: str, **parts: Any) -> Launch:
        return super().dies(signal, options={"init": True}, **parts)

    def shows_size(self) -> Sequence[str]:
        """Docker before API 1.42 says it a moment after the beginning."""
        return ("sh", "-c", 'until [ "$(stty size 2>/dev/null)" ]; do sleep 0.05; done; stty size')
