"""The bubblewrap engine keeps the promises of an engine, and its sandboxes hide what they should."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

import pytest
from mandor_bubblewrap import BubblewrapEngine

from mandor.engine import Engine, NotFound
from mandor.testing import EngineSuite


class TestBubblewrapEngine(EngineSuite):
    limits = frozenset()
    extras = frozenset({"links", "logs", "mounts", "tmpfs"})
    program: ClassVar[str] = os.environ.get("BWRAP", "bwrap")

    def make_engine(self, directory: Path) -> Engine:
        return BubblewrapEngine(directory, program=self.program)

    # What is peculiar to it.

    async def test_a_task_sees_neither_the_nodes_files_nor_its_processes(self, engine: Engine, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_text("do not tell")
        script = f"cat {secret} 2>/dev/null; ls -d /home /root /var 2>/dev/null; ls /proc | grep -c '^[0-9]'"
        (count,) = await self._output(engine, self.shell(script))
        assert int(count) < 8

    async def test_a_task_cannot_change_what_it_sees_of_the_node(self, engine: Engine) -> None:
        assert await self._output(engine, self.shell("touch /usr/x /etc/x 2>/dev/null || echo refused")) == ["refused"]

    async def test_a_task_has_the_network_or_not(self, engine: Engine) -> None:
        script = "grep -c : /proc/net/dev"
        (alone,) = await self._output(engine, self.shell(script, options={"network": "none"}))
        assert alone == "1"

    async def test_what_it_does_not_know_is_reported(self, engine: Engine) -> None:
        unit = await self._start(engine, self.shell("true", options={"netwrok": "none"}))
        ended = await self._ended(engine, unit)
        assert ended.reason == "StartFailed"
        assert "netwrok" in ended.message

    async def test_a_machine_without_bubblewrap_has_no_such_engine(self, tmp_path: Path) -> None:
        with pytest.raises(NotFound):
            await BubblewrapEngine(tmp_path, program="no-such-bwrap").probe()
