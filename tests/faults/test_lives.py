"""Lifetimes of fake units and real processes are recorded, independent of agents."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from mandor.engines.base import Launch, Unit
from mandor.engines.fake import FakeEngine
from tests.e2e.cluster import eventually
from tests.faults.lives import Roll, keep_diary, read_diary

LAUNCH = Launch(name="web-0/main", command=("run",))


async def test_a_diary_has_every_fake_unit_also_those_that_were_removed(tmp_path: Path) -> None:
    keep_diary(tmp_path)
    ended, running = Unit("u1", "main", 1), Unit("u2", "main", 1)
    async with FakeEngine(directory=tmp_path) as engine:
        for unit in (ended, running):
            await engine.start(unit, LAUNCH)
        await engine.stop(ended, grace_seconds=0)
        await engine.remove(ended)
        await engine.start(ended, LAUNCH)  # a second time: the checker's business
    lives = read_diary("n1", tmp_path)
    assert [(life.uid, life.name, life.ended is None) for life in lives] == [
        ("u1", "web-0", False),
        ("u2", "web-0", True),
        ("u1", "web-0", True),
    ]
    assert lives[0].ended is not None
    assert lives[0].begun <= lives[0].ended <= lives[2].begun


def test_a_process_is_on_the_roll_from_its_start_to_its_end(tmp_path: Path) -> None:
    roll = Roll(tmp_path / "roll")
    told = {"MANDOR_NODE": "n1", "MANDOR_INSTANCE": "web-0", "MANDOR_UNIT": "u1.main.2"}
    commands = [
        subprocess.Popen(["sh", "-c", roll.command], env={**os.environ, **told, "MANDOR_UNIT": unit})
        for unit in ("u1.main.2", "u2.main.1")
    ]
    try:
        eventually("both have called", lambda: len((tmp_path / "roll").read_text().splitlines()) == 2)
        roll.look()
        commands[0].kill()
        commands[0].wait()
    finally:
        lives = roll.lives()
        for command in commands:
            command.kill()
            command.wait()
    assert {(life.node, life.uid, life.attempt, life.ended is None) for life in lives} == {
        ("n1", "u1", 2, False),
        ("n1", "u2", 1, True),
    }
