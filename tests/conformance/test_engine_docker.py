"""DockerEngine keeps the promises of an engine, with a real dockerd."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mandor.engines.base import Engine, Launch, Unit
from mandor.engines.docker import DockerEngine
from mandor.model.image import ImageFile
from mandor.testing.engine import EngineSuite
from mandor.testing.engine_hooks import Line
from tests.components.docker import Docker, RunningDocker
from tests.components.image import NAME, image_files
from tests.components.slow_line import engine_line


class TestDockerEngine(EngineSuite):
    image = NAME
    seeded_path = ("/share", "text")
    limits = frozenset({"cpu", "memory", "processes"})
    extras = frozenset(
        [
            "clean",
            "events",
            "exec",
            "hosts",
            "logs",
            "mounts",
            "ports",
            "resolver",
            "overlay",
            "pull",
            "sandbox",
            "security",
            "seed",
            "signal",
            "stats",
            "tmpfs",
            "user",
        ]
    )

    @pytest.fixture(autouse=True)
    def _docker(self, docker: RunningDocker) -> None:
        self.docker = docker

    def make_engine(self, directory: Path) -> Engine:
        return DockerEngine(directory, socket=self.docker.socket)

    def traces(self, uids: Sequence[str]) -> Sequence[str]:
        listed = self.docker.cli("ps", "--all", "--no-trunc", "--format", "{{.Names}} {{.Labels}}").splitlines()
        return [*super().traces(uids), *(line for line in listed if any(uid in line for uid in uids))]

    def image_files(self) -> Sequence[tuple[ImageFile, bytes]]:
        return image_files()

    def fetched_image(self, engine: Engine, name: str) -> bool:
        assert isinstance(engine, DockerEngine)
        engine._images.pulled.add(name)
        return True

    def forget_image(self, name: str) -> None:
        self.docker.cli("image", "rm", "--force", name)

    @contextmanager
    def foreigner(self) -> Iterator[Callable[[], bool]]:
        other = self.docker.cli("run", "--detach", NAME, "sleep", "3600")
        try:
            yield lambda: self.docker.cli("inspect", "--format", "{{.State.Running}}", other) == "true"
        finally:
            self.docker.cli("rm", "--force", other)

    @contextmanager
    def occupies(self, unit: Unit) -> Iterator[Callable[[], bool]]:
        name = f"mandor-{unit}"
        self.docker.cli("run", "--detach", "--name", name, NAME, "sleep", "3600")
        try:
            yield lambda: self.docker.cli("inspect", "--format", "{{.State.Running}}", name) == "true"
        finally:
            self.docker.cli("rm", "--force", name)

    def away(self) -> AbstractContextManager[None] | None:
        return self.docker.away() if isinstance(self.docker, Docker) else None

    def hangs(self) -> AbstractContextManager[None] | None:
        return self.docker.hangs() if isinstance(self.docker, Docker) else None

    def line(self, directory: Path) -> AbstractContextManager[Line]:
        return engine_line(self.docker.socket, lambda socket: DockerEngine(directory, socket=socket))

    def make_impatient(self, directory: Path) -> Engine:
        return DockerEngine(directory, socket=self.docker.socket, answer_seconds=0.5)

    def dies(self, signal: str, **parts: Any) -> Launch:
        return super().dies(signal, options={"init": True}, **parts)

    def shows_size(self) -> Sequence[str]:
        """Docker before API 1.42 says it a moment after the beginning."""
        return ("sh", "-c", 'until [ "$(stty size 2>/dev/null)" ]; do sleep 0.05; done; stty size')
