"""CriEngine keeps the promises of an engine, with a real containerd."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mandor.engines.base import Engine, Launch
from mandor.engines.cri import CriEngine
from mandor.engines.cri.images import whole
from mandor.model.image import ImageFile
from mandor.testing.engine import EngineSuite
from tests.components.containerd import Containerd
from tests.components.image import NAME, image_files


@pytest.mark.req("S2-27")
class TestCriEngine(EngineSuite):
    image = NAME

    @pytest.fixture(autouse=True)
    def _containerd(self, containerd: Containerd) -> None:
        self.containerd = containerd

    def make_engine(self, directory: Path) -> Engine:
        return CriEngine(directory, socket=self.containerd.socket, dial=self.containerd.dial)

    def traces(self, uids: Sequence[str]) -> Sequence[str]:
        ids = self.containerd.cli("containers", "list", "--quiet").split()
        told = [self.containerd.cli("containers", "info", each) for each in ids]
        left = [f"container {each}" for each, text in zip(ids, told, strict=True) if any(uid in text for uid in uids)]
        return [*super().traces(uids), *left]

    def image_files(self) -> Sequence[tuple[ImageFile, bytes]]:
        return image_files()

    def fetched_image(self, engine: Engine, name: str) -> bool:
        assert isinstance(engine, CriEngine)
        engine._images.fetched.add(name)
        return True

    def forget_image(self, name: str) -> None:
        self.containerd.cli("images", "rm", "--sync", whole(name))

    @contextmanager
    def foreigner(self) -> Iterator[Callable[[], bool]]:
        other = f"foreign-{uuid.uuid4().hex[:8]}"
        self.containerd.cli("run", "--detach", NAME, other, "sleep", "3600")
        try:
            yield lambda: other in self.containerd.cli("tasks", "list")
        finally:
            self.containerd.cli("tasks", "kill", "--signal", "SIGKILL", other)
            self.containerd.cli("containers", "delete", other)

    def away(self) -> AbstractContextManager[None]:
        return self.containerd.away()

    def hangs(self) -> AbstractContextManager[None]:
        return self.containerd.hangs()

    def make_impatient(self, directory: Path) -> Engine:
        return CriEngine(directory, socket=self.containerd.socket, answer_seconds=0.5)

    def dies(self, signal: str, **parts: Any) -> Launch:
        """The first process of a container cannot kill itself."""
        return self.shell(f"sh -c 'kill -{signal.removeprefix('SIG')} $$'; exit $?", **parts)

    def shows_size(self) -> Sequence[str]:
        """CRI says it a moment after the beginning."""
        return ("sh", "-c", 'until [ "$(stty size 2>/dev/null)" ]; do sleep 0.05; done; stty size')
