"""`mandor backup` and `mandor restore`, from a memory store by way of a file to SQLite."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from mandor.model.meta import Key
from mandor.model.record import Cluster
from mandor.store.open import open_store
from tests.unit.cli.conftest import LiveApi, Mandor, Told
from tests.unit.cli.test_looking import node, workload


@pytest.fixture
def saved(api: LiveApi, mandor: Mandor) -> Told:
    api.put(node("n1"), node("n2"), workload("name: web\nimage: x"))
    return mandor("backup", "saved")


@pytest.mark.req("S2-20", "S2-22")
def test_what_was_saved_can_be_restored_elsewhere(saved: Told, mandor: Mandor, tmp_path: Path) -> None:
    assert saved.code == 0, saved.err
    assert saved.out == ""
    assert "objects in saved" in saved.err
    told = mandor("restore", "saved", "--store", f"sqlite:{tmp_path}/new.db")
    assert told.code == 0, told.err
    assert "its epoch is 2 now" in told.err

    async def look() -> None:
        async with await open_store(f"sqlite:{tmp_path}/new.db") as store:
            names = [item.meta.name for item in (await store.list("node")).items]
            assert names == ["n1", "n2"]
            cluster = await store.get(Key("cluster", "", "cluster"))
            assert isinstance(cluster, Cluster)
            assert (cluster.spec.id, cluster.spec.epoch) == ("c1", 2)

    asyncio.run(look())


@pytest.mark.req("S2-22")
def test_a_backup_that_is_restored_again_gets_a_later_epoch(saved: Told, mandor: Mandor, tmp_path: Path) -> None:
    """Agents reject lists with lower revisions than they have seen in the same epoch."""
    data = tmp_path / "data"
    assert "its epoch is 2 now" in mandor("restore", "saved", "--data", str(data)).err
    for each in data.glob("state.db*"):
        each.rename(tmp_path / each.name)
    told = mandor("restore", "saved", "--data", str(data))
    assert told.code == 0, told.err
    assert "its epoch is 3 now" in told.err


def test_only_its_owner_reads_a_backup(saved: Told, tmp_path: Path) -> None:
    assert stat.S_IMODE((tmp_path / "saved").stat().st_mode) == 0o600


def test_a_backup_is_not_written_over_unless_asked(saved: Told, mandor: Mandor, tmp_path: Path) -> None:
    told = mandor("backup", "saved")
    assert (told.code, told.err) == (
        1,
        "error: saved exists already\nhint: use --force to overwrite it\ncode: invalid\n",
    )
    assert mandor("backup", "saved", "--force").code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_a_backup_goes_to_stdout_for_a_pipe(saved: Told, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    from mandor.cli.main import run

    assert run(["backup", "-"]) == 0
    assert capsysbinary.readouterr().out.startswith(b"\x1f\x8b")


def test_a_store_that_is_not_empty_is_not_restored_into(saved: Told, mandor: Mandor, tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path}/new.db"
    assert mandor("restore", "saved", "--store", store).code == 0
    told = mandor("restore", "saved", "--store", store)
    assert told.code == 1
    assert "error: the store is not empty" in told.err


@pytest.mark.parametrize("spoil", ["cut", "flip", "text"])
def test_a_damaged_backup_is_refused_and_nothing_is_stored(
    saved: Told, mandor: Mandor, tmp_path: Path, spoil: str
) -> None:
    data = bytearray((tmp_path / "saved").read_bytes())
    if spoil == "flip":
        data[len(data) // 2] ^= 0xFF
    spoiled = {"cut": data[:-20], "flip": data, "text": b"hello"}[spoil]
    (tmp_path / "spoiled").write_bytes(bytes(spoiled))
    store = f"sqlite:{tmp_path}/new.db"
    told = mandor("restore", "spoiled", "--store", store)
    assert told.code == 1
    assert told.err.startswith("error: ")
    assert mandor("restore", "saved", "--store", store).code == 0, "the store is as empty as before"


def test_a_backup_that_cannot_be_written_leaves_nothing(api: LiveApi, mandor: Mandor, tmp_path: Path) -> None:
    told = mandor("backup", "nowhere/saved")
    assert told.code == 1
    assert "cannot write nowhere/saved" in told.err
    assert mandor("backup", "there", "--server", "http://127.0.0.1:9").code == 1
    assert list(tmp_path.iterdir()) == []
