"""PodmanEngine keeps the promises of an engine, with a real podman: root's, and a user's own."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mandor.engines.base import Engine, Launch, Unit
from mandor.engines.podman import PodmanEngine
from mandor.model.image import ImageFile
from mandor.testing.engine import EngineSuite
from mandor.testing.engine_hooks import Line
from tests.components.image import NAME, image_files
from tests.components.podman import USER_ID, Podman, open_up
from tests.components.slow_line import engine_line


def follows_a_command(trace: str) -> bool:
    """The process that podman keeps for a while after each `exec` (`exit_command_delay`), and ends itself."""
    found = re.match(r"process (\d+): \S*conmon ", trace)
    try:
        return found is not None and b"--exec-process-spec" in Path("/proc", found[1], "cmdline").read_bytes()
    except OSError:
        return True


class PodmanSuite(EngineSuite):
    image = NAME
    seeded_path = ("/share", "text")
    podman: Podman

    def make_engine(self, directory: Path) -> Engine:
        return PodmanEngine(directory, socket=self.podman.socket)

    def traces(self, uids: Sequence[str]) -> Sequence[str]:
        listed = self.podman.cli("ps", "--all", "--no-trunc", "--format", "{{.Names}} {{.Labels}}").splitlines()
        left = (trace for trace in super().traces(uids) if not follows_a_command(trace))
        return [*left, *(line for line in listed if any(uid in line for uid in uids))]

    def image_files(self) -> Sequence[tuple[ImageFile, bytes]]:
        return image_files()

    def fetched_image(self, engine: Engine, name: str) -> bool:
        assert isinstance(engine, PodmanEngine)
        engine._images.pulled.add(name)
        return True

    def forget_image(self, name: str) -> None:
        self.podman.cli("image", "rm", "--force", name)

    @contextmanager
    def foreigner(self) -> Iterator[Callable[[], bool]]:
        other = self.podman.cli("run", "--detach", NAME, "sleep", "3600")
        try:
            yield lambda: self.podman.cli("inspect", "--format", "{{.State.Running}}", other) == "true"
        finally:
            self.podman.cli("rm", "--force", "--time", "0", other)

    @contextmanager
    def occupies(self, unit: Unit) -> Iterator[Callable[[], bool]]:
        name = f"mandor-{unit}"
        self.podman.cli("run", "--detach", "--name", name, NAME, "sleep", "3600")
        try:
            yield lambda: self.podman.cli("inspect", "--format", "{{.State.Running}}", name) == "true"
        finally:
            self.podman.cli("rm", "--force", "--time", "0", name)

    @contextmanager
    def away(self) -> Iterator[None]:
        with self.podman.away():
            self.podman.socket.unlink(missing_ok=True)
            yield

    def hangs(self) -> AbstractContextManager[None]:
        return self.podman.hangs()

    def line(self, directory: Path) -> AbstractContextManager[Line]:
        return engine_line(self.podman.socket, lambda socket: PodmanEngine(directory, socket=socket))

    def make_impatient(self, directory: Path) -> Engine:
        return PodmanEngine(directory, socket=self.podman.socket, answer_seconds=0.5)

    def dies(self, signal: str, **parts: Any) -> Launch:
        """The first process of a container cannot kill itself: a child of it does, and its end is passed on."""
        return self.shell(f"sh -c 'kill -{signal.removeprefix('SIG')} $$; sleep 3600'; exit $?", **parts)

    def ticks(self, **parts: Any) -> Launch:
        """Slowly, because podman tells times in whole seconds."""
        script = "trap 'exit 0' TERM; n=0; while :; do echo tick $n; n=$((n+1)); sleep 0.4; done"
        return self.shell(script, **parts)

    def shows_size(self) -> Sequence[str]:
        """The size comes a moment after the beginning."""
        return ("sh", "-c", 'until [ "$(stty size 2>/dev/null)" ]; do sleep 0.05; done; stty size')


class TestPodmanEngine(PodmanSuite):
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
            "seed",
            "signal",
            "stats",
            "tmpfs",
            "user",
        ]
    )

    @pytest.fixture(autouse=True)
    def _podman(self, podman: Podman) -> None:
        self.podman = podman


class TestRootlessPodmanEngine(PodmanSuite):
    limits = frozenset()
    extras = frozenset(
        [
            "clean",
            "events",
            "exec",
            "hosts",
            "logs",
            "mounts",
            "ports",
            "pull",
            "sandbox",
            "security",
            "seed",
            "signal",
            "tmpfs",
            "user",
        ]
    )

    @pytest.fixture(autouse=True)
    def _podman(self, rootless_podman: Podman) -> None:
        self.podman = rootless_podman

    @pytest.fixture
    def volume(self, rootless_podman: Podman) -> Path:
        """A folder that the user of this podman can write, and reaches while another run of pytest closes its own."""
        folder = Path(tempfile.mkdtemp(prefix="volume-", dir=rootless_podman.folder)).resolve()
        (folder / "seen").write_text("kept\n")
        open_up(folder)
        for path in (folder, folder / "seen"):
            os.chown(path, USER_ID, USER_ID)
        return folder
