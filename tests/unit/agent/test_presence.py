"""How sure an agent is that the control plane knows of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mandor.agent.journal import Journal
from mandor.agent.presence import TOLD_SECONDS, Presence
from mandor.lib.clock import ManualClock


@pytest.mark.req("S0-25")
async def test_after_a_boot_one_answer_is_not_enough_until_all_servers_know_of_it(tmp_path: Path) -> None:
    clock = ManualClock()
    presence = Presence(Journal(tmp_path), clock, "boot-2")
    assert not presence.heard_since_boot
    presence.heard(clock.monotonic())
    assert not presence.heard_since_boot
    await clock.advance(TOLD_SECONDS)
    assert presence.heard_since_boot
