"""`mandor dev`, `server` and `agent` as people start them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.components.ports import free_port
from tests.e2e.cluster import eventually

MANDOR = Path(sys.executable).with_name("mandor")
SLEEPER = "name: sleeper\ncommand: [sleep, '1000']\nstop: {grace: 1s}\n"


def mandor(folder: Path, *words: str, given: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MANDOR_")}
    return subprocess.run(
        [MANDOR, *words],
        cwd=folder,
        input=given,
        capture_output=True,
        text=True,
        env=clean | env,
        timeout=120,
        check=False,
    )


@contextmanager
def dev(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A dev cluster in the folder, ready, and what it says."""
    command = [str(MANDOR), "dev", "--listen", f"127.0.0.1:{free_port()}", *options]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        said: list[str] = []

        def read() -> None:
            assert process.stderr is not None
            said.extend(iter(process.stderr.readline, ""))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            eventually("it greets", lambda: process.poll() is not None or any("Ctrl-C" in line for line in said))
            assert process.poll() is None, said
            yield process, said
        finally:
            process.terminate()
            process.wait(60)
            reader.join(10)


@pytest.mark.req("S0-22", "S2-3")
def test_a_dev_cluster_runs_work_that_outlives_it_until_it_is_stopped(tmp_path: Path) -> None:
    with dev(tmp_path, "--nodes", "2") as (process, said):
        assert said[0].startswith("mandor is at http://127.0.0.1:")
        assert "/ui/" in said[0]
        assert "apply -f" in said[1]

        def ready() -> bool:
            return mandor(tmp_path, "get", "nodes").stdout.count("Ready") == 2

        eventually("both nodes are ready", ready)
        applied = mandor(tmp_path, "apply", "-f", "-", "--wait", given=SLEEPER)
        assert applied.returncode == 0, applied.stderr

        second = mandor(tmp_path, "dev", "--listen", f"127.0.0.1:{free_port()}")
        assert second.returncode == 1
        assert "error: another `mandor dev` is running in" in second.stderr
        assert mandor(tmp_path, "dev", "--stop").returncode == 1

        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        eventually("it says goodbye", lambda: "instances keep running" in said[-1])

    gone = mandor(tmp_path, "get", "nodes")
    assert gone.returncode == 1
    assert "connection refused" in gone.stderr
    assert mandor(tmp_path, "dev", "--stop").stderr == "ended 1 unit\n"
    assert mandor(tmp_path, "dev", "--stop").stderr == "ended 0 units\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["dev", "--listen", "0.0.0.0:8080"], "listens on loopback only"),
        (["dev", "--nodes", "0"], "choose 1 to"),
        (["server", "--ca-cert", "x"], "must be set together"),
        (["server", "--roles", "api,schduler"], "did you mean `scheduler`?"),
        (["server", "--tls-cert", "x"], "must be set together"),
        (["server", "--lost-after", "5s"], "shorter than suspect_after"),
        (["server", "--lost-after", "soon"], "is not a duration"),
        (["server", "--store", "mysql:x"], "mysql"),
        (["server", "--config", "nowhere.toml"], "cannot read the settings file nowhere.toml"),
        (["agent", "--config", "wrong.toml"], "did you mean `join_token_file`?"),
        (["agent", "--config", "odd.toml"], "unknown section [agnet]"),
        (["agent", "--config", "broken.toml"], "is not TOML"),
        (["restore", "nowhere", "--store", "memory:"], "the file nowhere does not exist"),
        (["restore", "broken.toml", "--store", "sqlite:new.db"], "cannot be decompressed|no backup of mandor"),
    ],
)
def test_settings_that_cannot_work_are_reported_and_nothing_starts(tmp_path: Path, words: list[str], says: str) -> None:
    (tmp_path / "wrong.toml").write_text('[agent]\njoin_token_fle = "x"\n')
    (tmp_path / "odd.toml").write_text("[agnet]\n")
    (tmp_path / "broken.toml").write_text("[agent\n")
    told = mandor(tmp_path, *words)
    assert told.returncode == 1, told.stderr
    assert any(part in told.stderr for part in says.split("|")), told.stderr
    assert told.stderr.startswith("error: ")
    assert "Traceback" not in told.stderr


def test_an_address_that_is_none_is_wrong_usage(tmp_path: Path) -> None:
    told = mandor(tmp_path, "dev", "--listen", "here")
    assert told.returncode == 2
    assert "'here' is not an address" in told.stderr


def test_the_environment_gives_settings_and_options_win(tmp_path: Path) -> None:
    told = mandor(tmp_path, "server", MANDOR_LISTEN="nowhere")
    assert "'nowhere' is not an address" in told.stderr
    told = mandor(tmp_path, "server", "--listen", "elsewhere", MANDOR_LISTEN="nowhere")
    assert "'elsewhere' is not an address" in told.stderr
    assert "log_level" in mandor(tmp_path, "agent", MANDOR_LOG_LEVEL="loud").stderr
