"""Servers whose data directory is on a full disk report the file, go on, and write it when there is space again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.components.ports import free_port
from tests.e2e.cluster import Program, eventually


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", folder], check=False)
    if made.returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    handle = os.open(filler, os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(handle, b"x" * 4096)
    except OSError:
        return filler
    finally:
        os.close(handle)


@pytest.fixture
def server(disk: Path, tmp_path: Path) -> Iterator[Program]:
    command = [sys.executable, "-m", "mandor.cli.main", "server", "--tls", "--data", str(disk / "server")]
    command += ["--store", f"sqlite:{tmp_path / 'state.db'}", "--listen", f"127.0.0.1:{free_port()}"]
    made = Program("server", command, tmp_path / "log")
    yield made
    made.kill()


def ready(server: Program) -> bool:
    assert server.running, server.text()[-3000:]
    return server.text().count("ready at ") > 0


def tokens(server: Program, disk: Path) -> str:
    url = f"https://{server.command[-1]}"
    words = ["get", "tokens", "-o", "name"]
    environ = {**os.environ, "MANDOR_TOKEN": (disk / "server" / "admin.token").read_text().strip()}
    done = subprocess.run(
        [sys.executable, "-m", "mandor.cli.main", "--server", url, *words],
        capture_output=True,
        text=True,
        env=environ,
        check=True,
    )
    return done.stdout


def test_a_new_server_on_a_full_disk_ends_with_the_file_and_the_reason(server: Program, disk: Path) -> None:
    (disk / "server").mkdir(mode=0o700)
    fill(disk)
    server.start()
    eventually("the server ends", lambda: not server.running)
    assert "secrets.key: no space left on device" in server.text()
    assert "hint: free some space" in server.text()
    assert "Traceback" not in server.text()


def test_a_server_whose_disk_fills_up_starts_again_and_writes_its_files_later(server: Program, disk: Path) -> None:
    server.start()
    eventually("the server is ready", lambda: ready(server))
    before = tokens(server, disk)
    server.end()
    server.log.unlink()
    filler = fill(disk)
    join = disk / "server" / "join.token"
    join.unlink()
    fill(disk)
    server.start()
    eventually("the server is ready with a full disk", lambda: ready(server))
    assert "the certificate of the last start stays in use" in server.text()
    eventually("the failure is logged", lambda: "join.token: no space left on device" in server.text())
    assert tokens(server, disk) == before, "a token that cannot be written is not stored"
    filler.unlink()
    eventually("the token file is written", join.exists)
    eventually("the certificate is issued", lambda: "issued a certificate of this server" in server.text())
    assert "Traceback" not in server.text()
