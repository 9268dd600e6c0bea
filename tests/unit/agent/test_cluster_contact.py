"""How long a silence of the control plane counts after it has ended."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from mandor.agent.cluster_contact import SPREAD_SECONDS, ClusterContact
from mandor.agent.journal import Journal, SeenRevision
from mandor.errors import Unavailable
from mandor.lib.clock import ManualClock
from mandor.model.record import ClusterSpec

FOR_EVER = float("inf")


@pytest.mark.req("S0-25")
async def test_after_a_boot_the_silence_counts_until_all_servers_have_the_heartbeat(tmp_path: Path) -> None:
    clock = ManualClock()
    contact = ClusterContact(Journal(tmp_path), clock, "boot-2")
    assert contact.recent_silence == FOR_EVER
    contact.answered(clock.monotonic())
    assert contact.recent_silence == FOR_EVER
    await clock.advance(SPREAD_SECONDS)
    assert contact.recent_silence == 0


@pytest.mark.req("S0-25")
async def test_a_silence_counts_until_all_servers_have_the_next_heartbeat(tmp_path: Path) -> None:
    clock = ManualClock()
    ClusterContact(Journal(tmp_path), clock, "boot-1").answered(clock.monotonic())
    await clock.advance(60)
    contact = ClusterContact(Journal(tmp_path), clock, "boot-1")
    assert (contact.silence, contact.recent_silence) == (60, 0)
    contact.answered(clock.monotonic())
    await clock.advance(1)
    contact.answered(clock.monotonic())
    assert (contact.silence, contact.recent_silence) == (0, 60)
    await clock.advance(SPREAD_SECONDS - 1)
    assert contact.recent_silence == 0


def test_a_list_that_is_older_than_orders_that_were_seen_is_rejected_also_after_a_restart(tmp_path: Path) -> None:
    contact = ClusterContact(Journal(tmp_path), ManualClock(), "boot-1")
    contact.check(ClusterSpec(id="c1", epoch=2))
    contact.check_revision(50)
    contact.saw_revision(105)
    with pytest.raises(Unavailable, match="revision 104, this node has seen 105"):
        contact.check_revision(104)
    contact.keep_revision()
    later = ClusterContact(Journal(tmp_path), ManualClock(), "boot-1")
    later.check(ClusterSpec(id="c1", epoch=2))
    with pytest.raises(Unavailable):
        later.check_revision(104)
    later.check_revision(105)


@pytest.mark.req("S0-15")
def test_the_revision_is_saved_on_a_full_disk_and_an_instance_is_not_forgotten_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contact = ClusterContact(Journal(tmp_path), ManualClock(), "boot-1")
    contact.check(ClusterSpec(id="c1", epoch=2))
    contact.saw_revision(7)
    contact.keep_revision()
    contact.saw_revision(105)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr("mandor.agent.journal.replace_file", full)
        contact.keep_revision()
    assert Journal(tmp_path).seen == SeenRevision("c1", 2, 105)
    contact.saw_revision(106)
    with monkeypatch.context() as disk:
        disk.setattr("mandor.agent.journal.os.pwrite", full)
        with pytest.raises(OSError, match="No space left"):
            contact.keep_revision()
    contact.keep_revision()
    assert Journal(tmp_path).seen == SeenRevision("c1", 2, 106)


def test_a_damaged_copy_of_the_seen_revision_leaves_the_other_one(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.keep_seen(SeenRevision("c1", 2, 105))
    whole = (tmp_path / "seen.json").read_bytes()
    (tmp_path / "seen.json").write_bytes(b"x" + whole[1:])
    assert journal.seen == SeenRevision("c1", 2, 105)


def test_a_new_epoch_starts_with_new_revisions(tmp_path: Path) -> None:
    contact = ClusterContact(Journal(tmp_path), ManualClock(), "boot-1")
    contact.check(ClusterSpec(id="c1", epoch=2))
    contact.check_revision(105)
    contact.keep_revision()
    contact.check(ClusterSpec(id="c1", epoch=3))
    contact.check_revision(7)


@pytest.mark.req("S0-28")
def test_a_membership_that_a_full_disk_lost_is_saved_after_the_next_answer(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    contact = ClusterContact(journal, ManualClock(), "boot-1")
    draft = tmp_path / "cluster.json.new"
    draft.symlink_to("/dev/full")
    contact.check(ClusterSpec(id="c1", epoch=2))
    assert contact.membership is not None
    assert journal.membership is None
    draft.unlink()
    contact.check(ClusterSpec(id="c1", epoch=2))
    assert journal.membership == contact.membership
