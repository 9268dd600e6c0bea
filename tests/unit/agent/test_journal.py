"""The journal: entries are read back, and damaged files are renamed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mandor.agent.journal import ClusterMembership, Journal, LastContact, replace_file
from mandor.agent.order import Entry, Memory, TaskMemory
from mandor.errors import Invalid, Unavailable
from mandor.lib.quantity import Seconds, SecondsOrNever
from mandor.model.instance import InstanceStatus, StopOrder
from mandor.model.lifecycle import Restart
from mandor.model.phase import Phase
from tests.unit.agent.make import UID, make_order

TASKS = {
    "app": {
        "command": ["app", "--port", "8080"],
        "env": {"A": "ü"},
        "resources": {"cpu": "500m", "memory": "256Mi", "limits": {"memory": "512Mi"}},
        "health": {"http": "/ok", "port": 8080},
        "options": {"fake": {"after": "1s"}},
    },
    "ship": {"role": "sidecar", "image": "ship:1"},
}


def full_entry() -> Entry:
    order = make_order(
        TASKS,
        policy="on-failure",
        restart=Restart(attempts=3, delay=Seconds(2.5)),
        stop=StopOrder(reason="drained", grace_seconds=1.5),
        stop_after=SecondsOrNever(60),
        epoch=7,
    )
    memory = Memory(
        engine="fake",
        tasks={
            "app": TaskMemory(attempt=3, due=1.25, pause=20.0, ran_seconds=12.5, restarts=(0.0, 3.5), exit_code=137)
        },
        ending=InstanceStatus(phase=Phase.STOPPED, reason="StopOrdered"),
        held="another epoch",
    )
    return Entry(order=order, memory=memory)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path)


@pytest.mark.req("S0-28")
def test_an_entry_is_read_back_with_all_fields(journal: Journal, tmp_path: Path) -> None:
    journal.write(full_entry())
    assert list(Journal(tmp_path).entries()) == [full_entry()]


def test_writing_again_replaces_and_forgetting_removes(journal: Journal) -> None:
    journal.write(full_entry())
    journal.write(Entry(order=make_order()))
    assert [entry.memory for entry in journal.entries()] == [Memory()]
    journal.forget(UID)
    journal.forget(UID)
    assert list(journal.entries()) == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'{"order": 5}',
        b"\xff\xfe\x00",
        b'{"order":{"instance":{"kind":"node"}}}',
        b"9" * 9000,
    ],
)
def test_a_damaged_file_is_set_aside_and_the_others_are_read(
    journal: Journal, tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    journal.write(full_entry())
    (tmp_path / "orders" / "bad.json").write_bytes(content)
    assert len(list(journal.entries())) == 1
    assert (tmp_path / "orders" / "bad.json.bad").read_bytes() == content
    assert any(record.levelname == "ERROR" and "damaged" in record.message for record in caplog.records)
    assert len(list(journal.entries())) == 1


def test_a_file_under_the_wrong_name_is_not_used(journal: Journal, tmp_path: Path) -> None:
    journal.write(full_entry())
    (tmp_path / "orders" / f"{UID}.json").rename(tmp_path / "orders" / "other.json")
    assert list(journal.entries()) == []


@given(cut=st.integers(0, 600), flip=st.integers(0, 255))
@settings(max_examples=60, deadline=None)
def test_no_damage_is_fatal(tmp_path_factory: pytest.TempPathFactory, cut: int, flip: int) -> None:
    folder = tmp_path_factory.mktemp("journal")
    journal = Journal(folder)
    journal.write(full_entry())
    path = folder / "orders" / f"{UID}.json"
    data = bytearray(path.read_bytes())
    data[cut % len(data)] ^= flip
    path.write_bytes(bytes(data[: len(data) - (cut if flip % 2 else 0)]))
    assert len(list(journal.entries())) <= 1


def test_a_half_written_draft_is_never_read(journal: Journal, tmp_path: Path) -> None:
    journal.write(full_entry())
    (tmp_path / "orders" / f"{UID}.json.new").write_bytes(b'{"half')
    assert list(journal.entries()) == [full_entry()]


@pytest.mark.parametrize("uid", ["", "../escape", "a/b", ".hidden"])
def test_a_uid_that_leaves_the_folder_is_refused(journal: Journal, uid: str) -> None:
    with pytest.raises(Invalid):
        journal.forget(uid)


def test_only_the_owner_reads_the_credential_and_the_orders(journal: Journal, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        journal.keep_credential("mdr_node.n1_secret")
        journal.write(full_entry())
    finally:
        os.umask(before)
    assert journal.credential == "mdr_node.n1_secret"
    for path in (tmp_path / "credential", tmp_path / "orders" / f"{UID}.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_new_agent_belongs_to_no_cluster(journal: Journal) -> None:
    assert (journal.credential, journal.membership, journal.contact) == ("", None, None)


def test_the_cluster_and_the_last_contact_are_remembered(journal: Journal, tmp_path: Path) -> None:
    journal.keep_membership(ClusterMembership("c1", 4))
    journal.touch(LastContact("boot-1", 12.5))
    again = Journal(tmp_path)
    assert (again.membership, again.contact) == (ClusterMembership("c1", 4), LastContact("boot-1", 12.5))


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")
    (tmp_path / "file.new").mkdir()
    with pytest.raises(OSError, match="directory"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"


def test_secrets_sealed_with_the_first_credential_stay_readable(journal: Journal, tmp_path: Path) -> None:
    journal.keep_credential("mdr_node.n1_one")
    assert journal.sealing_key == "mdr_node.n1_one"
    for following in ("mdr_node.n1_two", "mdr_node.n1_three"):
        journal.keep_next_credential(following)
        assert (journal.next_credential, journal.credential == following) == (following, False)
        journal.keep_credential(following)
        assert (journal.credential, journal.next_credential) == (following, "")
    assert Journal(tmp_path).sealing_key == "mdr_node.n1_one"
    assert all(stat.S_IMODE(each.stat().st_mode) == 0o600 for each in tmp_path.iterdir() if each.is_file())


@pytest.mark.parametrize(
    ("file", "keep"),
    [
        ("credential", lambda journal: journal.keep_credential("mdr_node.n1_new")),
        ("credential.next", lambda journal: journal.keep_next_credential("mdr_node.n1_new")),
        ("node.key", lambda journal: journal.node_key(lambda: "key")),
        ("node.pem", lambda journal: journal.keep_identity("key", "certificate")),
        ("ca.pem", lambda journal: journal.keep_authorities("bundle")),
    ],
)
@pytest.mark.req("S0-28")
def test_a_full_disk_is_reported_as_unavailable_and_keeps_the_old_file(
    journal: Journal, tmp_path: Path, file: str, keep: Callable[[Journal], object]
) -> None:
    if file != "node.key":  # An existing key is used, not replaced.
        (tmp_path / file).write_text("old\n")
    (tmp_path / f"{file}.new").symlink_to("/dev/full")
    with pytest.raises(Unavailable, match=f"cannot save {file} in the data directory .*No space left") as caught:
        keep(journal)
    assert caught.value.hint
    assert file == "node.key" or (tmp_path / file).read_text() == "old\n"
    (tmp_path / f"{file}.new").unlink()
    keep(journal)
    assert (tmp_path / file).read_text() != "old\n"
