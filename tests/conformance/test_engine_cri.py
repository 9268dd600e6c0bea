"""CriEngine keeps the promises of an engine, with a real containerd."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mandor.engines.base import Engine, Launch
from mandor.engines.cri import CriEngine, wire
from mandor.engines.cri.images import whole
from mandor.errors import EngineDown
from mandor.model.image import ImageFile
from mandor.testing.engine import EngineSuite
from mandor.testing.engine_hooks import Line
from tests.components.containerd import Containerd
from tests.components.image import NAME, image_files


class SlowCalls:
    """Holds one of an engine's calls up, as a line that is slow would: its bytes cannot be told apart there."""

    orders = (wire.RUN_SANDBOX, wire.CREATE, wire.START)

    def __init__(self, engine: CriEngine) -> None:
        self.engine: Engine = engine
        self._call = engine._api.call
        self._skip: int | None = None
        self._free, self._cut = asyncio.Event(), asyncio.Event()
        self._late: asyncio.Task[Any] | None = None
        engine._api.call = self._hear  # type: ignore[method-assign]

    def hold(self, skip: int) -> None:
        self._skip, self._late = skip, None
        self._free, self._cut = asyncio.Event(), asyncio.Event()

    @property
    def holds(self) -> bool:
        return self._late is not None

    def cut(self) -> None:
        self._cut.set()

    async def release(self) -> None:
        assert self._late is not None
        self._free.set()
        await asyncio.gather(self._late, return_exceptions=True)

    async def _hear(self, method: wire.Method, *, seconds: float | None = None, **fields: Any) -> Any:
        if self._skip is None or method not in self.orders:
            return await self._call(method, seconds=seconds, **fields)
        self._skip -= 1
        if self._skip >= 0:
            return await self._call(method, seconds=seconds, **fields)
        self._skip = None
        self._late = asyncio.create_task(self._send(method, seconds, fields))
        cut = asyncio.create_task(self._cut.wait())
        try:
            await asyncio.wait({self._late, cut}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            cut.cancel()
        raise EngineDown("nobody hears of it any more")

    async def _send(self, method: wire.Method, seconds: float | None, fields: dict[str, Any]) -> Any:
        await self._free.wait()
        return await self._call(method, seconds=seconds, **fields)


@pytest.mark.req("S2-27")
class TestCriEngine(EngineSuite):
    image = NAME
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
            "pull",
            "sandbox",
            "security",
            "signal",
            "stats",
            "tmpfs",
            "user",
        ]
    )

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
        engine._images.pulled.add(name)
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

    @contextmanager
    def line(self, directory: Path) -> Iterator[Line]:
        yield SlowCalls(CriEngine(directory, socket=self.containerd.socket))

    def make_impatient(self, directory: Path) -> Engine:
        return CriEngine(directory, socket=self.containerd.socket, answer_seconds=0.5)

    def dies(self, signal: str, **parts: Any) -> Launch:
        """The first process of a container cannot kill itself."""
        return self.shell(f"sh -c 'kill -{signal.removeprefix('SIG')} $$'; exit $?", **parts)

    def shows_size(self) -> Sequence[str]:
        """CRI says it a moment after the beginning."""
        return ("sh", "-c", 'until [ "$(stty size 2>/dev/null)" ]; do sleep 0.05; done; stty size')
