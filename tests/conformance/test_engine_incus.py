"""IncusEngine keeps the promises of an engine, with a real incusd."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mandor.engines.base import Engine, Launch
from mandor.engines.incus import IncusEngine
from mandor.model.image import ImageFile
from mandor.testing.engine import EngineSuite
from mandor.testing.engine_hooks import Line
from tests.components.incus import IMAGE, Incus, incus_image_files
from tests.components.slow_line import engine_line


@pytest.mark.req("S0-2", "S0-6")
class TestIncusEngine(EngineSuite):
    image = IMAGE
    limits = frozenset({"cpu", "memory", "processes"})
    extras = frozenset(
        [
            "clean",
            "events",
            "exec",
            "hosts",
            "logs",
            "mapped-users",
            "mounts",
            "ports",
            "pull",
            "signal",
            "stats",
            "user",
        ]
    )

    @pytest.fixture(autouse=True)
    def _incus(self, incus: Incus) -> None:
        self.incus = incus

    def make_engine(self, directory: Path) -> Engine:
        return IncusEngine(directory, url=self.incus.url)

    def traces(self, uids: Sequence[str]) -> Sequence[str]:
        listed = self.incus.cli("list", "--format", "csv", "--columns", "n").splitlines()
        return [*super().traces(uids), *(f"instance {line}" for line in listed if any(uid in line for uid in uids))]

    def image_files(self) -> Sequence[tuple[ImageFile, bytes]]:
        return incus_image_files()

    def forget_image(self, name: str) -> None:
        self.incus.cli("image", "delete", name)

    @contextmanager
    def foreigner(self) -> Iterator[Callable[[], bool]]:
        other = f"foreign-{uuid.uuid4().hex[:8]}"
        self.incus.cli("launch", IMAGE, other)
        try:
            yield lambda: self.incus.cli("list", other, "--format", "csv", "--columns", "s") == "RUNNING"
        finally:
            self.incus.cli("delete", "--force", other)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Killed: told to stop, it waits for every command that still runs."""
        self.incus.kill()
        try:
            yield
        finally:
            self.incus.start()

    def hangs(self) -> AbstractContextManager[None]:
        return self.incus.hangs()

    def line(self, directory: Path) -> AbstractContextManager[Line]:
        daemon = Path(self.incus.url.removeprefix("unix://"))
        return engine_line(daemon, lambda socket: IncusEngine(directory, url=f"unix://{socket}"))

    def make_impatient(self, directory: Path) -> Engine:
        return IncusEngine(directory, url=self.incus.url, answer_seconds=0.5)

    def lacks_image(self, **parts: Any) -> Launch:
        return self.launch(image="no-such-image", command=("sh",), **parts)
