"""FakeEngine keeps the promises of an engine, so that it may stand for one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mandor.engines.base import Engine, Launch
from mandor.engines.fake import FakeEngine, MemoryState
from mandor.testing.engine import EngineSuite


class FakeSuite(EngineSuite):
    """The suite's launches in the words of `options.fake`."""

    limits = frozenset({"cpu", "memory", "processes"})
    extras = frozenset(
        [
            "events",
            "exec",
            "hosts",
            "links",
            "logs",
            "mounts",
            "ports",
            "resolver",
            "security",
            "seed",
            "signal",
            "stats",
            "tmpfs",
            "user",
        ]
    )

    def fake(self, parts: dict[str, Any], **options: Any) -> Launch:
        return self.launch(**{"command": ("anything",), "options": options} | parts)

    def sleeps(self, **parts: Any) -> Launch:
        return self.fake(parts, stop_code=0, stdout=["begun"])

    def obeys(self, signal: str, code: int, **parts: Any) -> Launch:
        return self.fake({"stop_signal": signal} | parts, stop_code=code, stdout=["begun"])

    def shows_on_signal(self, signal: str, path: str, **parts: Any) -> Launch:
        return self.fake(parts, on_signal=f"${{file:{path}}}", stop_code=0, stdout=["begun"])

    def ignores(self, **parts: Any) -> Launch:
        return self.fake(parts, ignore_stop=True, stdout=["begun"])

    def exits(self, code: int, **parts: Any) -> Launch:
        return self.fake(parts, after=0, exit_code=code)

    def dies(self, signal: str, **parts: Any) -> Launch:
        return self.fake(parts, after=0, signal=signal)

    def cannot_start(self, **parts: Any) -> Launch:
        return self.fake(parts, fail_start=True)

    def prints(self, stdout: Sequence[str], stderr: Sequence[str] = (), **parts: Any) -> Launch:
        return self.fake(parts, after=0, stdout=list(stdout), stderr=list(stderr))

    def ticks(self, **parts: Any) -> Launch:
        return self.fake(parts, every="20ms", stop_code=0)

    def shows_variable(self, name: str, **parts: Any) -> Launch:
        return self.prints([f"${{env:{name}}}"], **parts)

    def shows_arguments(self, arguments: Sequence[str], **parts: Any) -> Launch:
        lines = [f"${{arg:{number}}}" for number in range(len(arguments))]
        return self.prints(lines, args=tuple(arguments), **parts)

    def shows_file(self, path: str, **parts: Any) -> Launch:
        return self.prints([f"${{file:{path}}}"], **parts)

    def writes_file(self, path: str, text: str, **parts: Any) -> Launch:
        return self.fake(parts, after=0, writes={path: f"{text}\n"})

    def fills(self, path: str, size: int, **parts: Any) -> Launch:
        return self.fake(parts, after=0, writes={f"{path}/filled": "x" * size})

    def shows_mode(self, path: str, **parts: Any) -> Launch:
        return self.prints([f"${{mode:{path}}}"], **parts)

    def shows_folder(self, **parts: Any) -> Launch:
        return self.prints(["${folder}"], **parts)

    def shows_user(self, **parts: Any) -> Launch:
        return self.prints(["${user}"], **parts)

    def eats_memory(self, **parts: Any) -> Launch:
        return self.fake(parts, after="50ms", oom=True)

    def forks(self, count: int, **parts: Any) -> Launch:
        return self.fake(parts, after="50ms", exit_code=2)

    def burns_cpu(self, **parts: Any) -> Launch:
        return self.fake(parts, cpu=0.2, stop_code=0, stdout=["begun"])

    def exits_later(self, seconds: float, code: int, **parts: Any) -> Launch:
        return self.fake(parts, after=seconds, exit_code=code)

    def says(self, text: str) -> Sequence[str]:
        return ("echo", text)

    def complains(self, text: str) -> Sequence[str]:
        return ("complain", text)

    def ends_with(self, code: int) -> Sequence[str]:
        return ("exit", str(code))

    def shows_size(self) -> Sequence[str]:
        return ("size",)

    def tells_file(self, path: str) -> Sequence[str]:
        return ("file", path)

    def tells_variable(self, name: str) -> Sequence[str]:
        return ("env", name)


class TestFakeEngineInMemory(FakeSuite):
    @pytest.fixture(autouse=True)
    def world(self) -> None:
        self._state = MemoryState()

    def make_engine(self, directory: Path) -> Engine:
        return FakeEngine(state=self._state)


class TestFakeEngineInAFile(FakeSuite):
    def make_engine(self, directory: Path) -> Engine:
        return FakeEngine(directory=directory)
