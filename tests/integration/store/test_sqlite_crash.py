"""Acknowledged commits survive kill -9."""

import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mandor.model.node import Node
from mandor.store.sqlite import SqliteStore

WRITER = Path(__file__).with_name("writer.py")
ROUNDS = 12


def run_and_kill(path: Path, seed: int, seconds: float) -> list[str]:
    """Run a writer for a while, kill it, and return every complete line it printed."""
    process = subprocess.Popen(
        [sys.executable, str(WRITER), str(path), str(seed)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    lines: list[bytes] = []
    assert process.stdout is not None
    assert process.stderr is not None
    stdout = process.stdout

    def read() -> None:
        lines.extend(iter(stdout.readline, b""))

    reader = threading.Thread(target=read)
    reader.start()
    deadline = time.monotonic() + 60
    while len(lines) < 20 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(seconds)
    alive = process.poll() is None
    process.kill()
    process.wait()
    reader.join()
    assert alive, process.stderr.read().decode()
    process.stdout.close()
    process.stderr.close()
    return [line.decode().rstrip("\n") for line in lines if line.endswith(b"\n")]


class Expected:
    """The valid states after a crash: the acknowledged commits, with or without those in flight."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, str] = {}
        self.tried: dict[str, str] = {}
        self.revision = 0
        self.commits = 0

    def learn(self, lines: list[str]) -> None:
        self.tried = {}
        for line in lines:
            word, *rest = line.split()
            if word == "open":
                assert int(rest[0]) >= self.revision, "the revision went back"
                continue
            if word == "done":
                self.commits += 1
                revision, *rest = rest
                self.revision = max(self.revision, int(revision))
            for entry in rest:
                name, state = entry.split("=")
                if word == "done":
                    self.acknowledged[name] = state
                    self.tried.pop(name, None)
                else:
                    self.tried[name] = state

    def check(self, found: dict[str, str]) -> None:
        for name in self.acknowledged.keys() | self.tried.keys() | found.keys():
            allowed = {self.acknowledged.get(name, "gone"), self.tried.get(name, self.acknowledged.get(name, "gone"))}
            assert found.get(name, "gone") in allowed, name
            self.acknowledged[name] = found.get(name, "gone")


@pytest.mark.slow
@pytest.mark.req("S2-3", "S0-18", "S0-26")
async def test_what_was_acknowledged_survives_kill_nine(tmp_path: Path) -> None:
    path, expected, chance = tmp_path / "state.db", Expected(), random.Random(5)
    for seed in range(ROUNDS):
        expected.learn(run_and_kill(path, seed, chance.uniform(0.0, 0.4)))
        async with await SqliteStore.open(path) as store:
            found = {item.meta.name: item.spec.pool for item in (await store.list("node")).items}
            assert store.index.revision >= expected.revision
            assert all(isinstance(item, Node) for item in (await store.list(None)).items)
            expected.check(found)
    assert expected.commits > ROUNDS * 10
