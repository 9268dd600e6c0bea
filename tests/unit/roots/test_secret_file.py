"""Secret files are replaced as a whole, and a failed write keeps the old one."""

import errno
import os
from pathlib import Path

import pytest

from mandor.errors import Conflict, Unavailable
from mandor.lib.clock import ManualClock
from mandor.lib.tasks import Background, single_error
from mandor.roots.key_files import KeyFiles
from mandor.roots.secret_file import replacing, write_secret
from mandor.store.memory import MemoryStore


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_write_to_a_full_disk_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.token"
    write_secret(path, "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Unavailable, match=r"a\.token: no space left on device") as raised:
        write_secret(path, "new")
    assert raised.value.hint
    assert path.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_in_the_block_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.token"
    write_secret(path, "old")
    with pytest.raises(Conflict), replacing(path, "new"):
        raise Conflict("another server was first")
    assert path.read_text() == "old\n"
    with replacing(path, "new"):
        assert path.read_text() == "old\n"
    assert path.read_text() == "new\n"
    assert path.stat().st_mode & 0o777 == 0o600


async def test_no_tokens_are_stored_while_their_files_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, clock = MemoryStore(), ManualClock()
    files = KeyFiles(store, clock, tmp_path, admin=True)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        for _ in range(3):
            await files.try_keep()
    assert not (await store.list("token")).items
    await files.try_keep()
    assert len((await store.list("token")).items) == 2
    assert {each.name for each in tmp_path.iterdir()} == {"admin.token", "join.token"}


async def test_the_single_error_of_a_task_is_raised_without_its_group() -> None:
    async def fail(error: Exception) -> None:
        raise error

    async def fail_together(*errors: Exception) -> None:
        with single_error():
            async with Background() as tasks:
                for error in errors:
                    tasks.start(fail(error))
                await tasks.wait()

    with pytest.raises(Unavailable, match="one"):
        await fail_together(Unavailable("one"))
    with pytest.raises(ExceptionGroup):
        await fail_together(Unavailable("one"), Unavailable("two"))
