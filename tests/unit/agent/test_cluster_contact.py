"""How sure an agent is that the control plane knows of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mandor.agent.cluster_contact import TOLD_SECONDS, ClusterContact
from mandor.agent.journal import Journal
from mandor.lib.clock import ManualClock

FOR_EVER = float("inf")


@pytest.mark.req("S0-25")
async def test_after_a_boot_one_answer_is_not_enough_until_all_servers_know_of_it(tmp_path: Path) -> None:
    clock = ManualClock()
    contact = ClusterContact(Journal(tmp_path), clock, "boot-2")
    assert contact.away == FOR_EVER
    contact.heard(clock.monotonic())
    assert contact.away == FOR_EVER
    await clock.advance(TOLD_SECONDS)
    assert contact.away == 0


@pytest.mark.req("S0-25")
async def test_a_silence_counts_until_all_servers_know_that_it_is_over(tmp_path: Path) -> None:
    clock = ManualClock()
    ClusterContact(Journal(tmp_path), clock, "boot-1").heard(clock.monotonic())
    await clock.advance(60)
    contact = ClusterContact(Journal(tmp_path), clock, "boot-1")
    assert (contact.silence, contact.away) == (60, 0)
    contact.heard(clock.monotonic())
    await clock.advance(1)
    contact.heard(clock.monotonic())
    assert (contact.silence, contact.away) == (0, 60)
    await clock.advance(TOLD_SECONDS - 1)
    assert contact.away == 0
