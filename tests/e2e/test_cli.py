"""The command line against a real cluster: a server, an agent, processes."""

from __future__ import annotations

import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from fcntl import ioctl
from pathlib import Path

import pytest

from tests.components.ports import free_port
from tests.e2e.cluster import Cluster, eventually

MANDOR = Path(sys.executable).with_name("mandor")
EXAMPLES = Path(__file__).parents[2] / "examples"
SLEEPER = "name: sleeper\ncommand: [sh, -c, 'echo up; echo odd >&2; exec sleep 1000']\nstop: {grace: 1s}\n"

Told = subprocess.CompletedProcess[str]
Mandor = Callable[..., Told]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One server and one agent, `n1`, for all tests of this file."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        running.start_server()
        running.start_agent("n1")
        running.wait_nodes("n1")
        yield running


@pytest.fixture(autouse=True)
def nothing_is_left_for_the_next_test(mandor: Mandor) -> Iterator[None]:
    yield
    names = [word.partition("/")[2] for word in mandor("get", "workloads", "-o", "name").stdout.split()]
    if names:
        mandor("delete", "workload", *names, "--wait", "--timeout", "60s")
    mandor("uncordon", "n1")


@pytest.fixture(scope="module")
def mandor(cluster: Cluster) -> Mandor:
    """`mandor("get", "nodes")` against the test's cluster."""

    def call(*words: str, code: int | None = 0, given: str = "") -> Told:
        env = {**os.environ, "MANDOR_SERVER": cluster.urls[0]}
        done = subprocess.run(
            [MANDOR, *words], input=given, capture_output=True, text=True, env=env, timeout=120, check=False
        )
        assert code is None or done.returncode == code, (words, done.stdout, done.stderr)
        return done

    return call


@pytest.fixture
def sleeper(mandor: Mandor) -> str:
    """An instance that runs and has written two lines."""
    mandor("apply", "-f", "-", "--wait", given=SLEEPER)
    eventually("it wrote", lambda: len(mandor("logs", "sleeper-0").stdout.splitlines()) == 2)
    return "sleeper-0"


def test_the_doctor_finds_nothing_and_then_a_server_that_is_away(cluster: Cluster, mandor: Mandor) -> None:
    eventually("the leaders lead", lambda: "no problems, no warnings" in mandor("doctor", code=None).stderr)
    away = f"{cluster.urls[0]},http://127.0.0.1:{free_port()}"
    told = mandor("--server", away, "doctor", "-o", "json", code=1)
    problems = [each for each in json.loads(told.stdout) if each["level"] == "problem"]
    assert [each["says"] for each in problems] == ["cannot serve: connection refused"]


@pytest.mark.req("S0-32", "S2-10", "S2-11")
def test_a_workload_is_applied_seen_scaled_restarted_and_deleted(mandor: Mandor) -> None:
    mandor("apply", "-f", str(EXAMPLES / "hello.yaml"), "--wait")
    assert "2/2" in mandor("get", "workloads").stdout
    names = mandor("get", "instances", "-o", "name").stdout.split()
    assert names == ["instance/hello-0", "instance/hello-1"]
    eventually("it says hello", lambda: "hello from process" in mandor("logs", "hello-0").stdout)

    mandor("scale", "hello", "3", "--wait")
    assert len(mandor("get", "instances", "-o", "name").stdout.split()) == 3

    mandor("scale", "hello", "1", "--wait")
    before = {item["meta"]["uid"] for item in json.loads(mandor("get", "instances", "-o", "json").stdout)["items"]}
    mandor("restart", "hello", "--wait")
    after = {item["meta"]["uid"] for item in json.loads(mandor("get", "instances", "-o", "json").stdout)["items"]}
    assert not before & after

    assert "hello.2" in mandor("describe", "workload", "hello").stdout
    assert "Running" in mandor("describe", "instance", "hello-1").stdout
    assert mandor("events").stdout.count("\n") > 1

    mandor("delete", "workload", "hello", "--wait")
    assert mandor("get", "instances", "-o", "name").stdout == ""


def test_a_schedule_is_shown_and_can_be_run_now(mandor: Mandor) -> None:
    assert "runs next at" in mandor("apply", "-f", str(EXAMPLES / "cron.yaml"), "--wait").stderr
    assert "Scheduled" in mandor("get", "workload", "nightly").stdout
    assert "is starting a run" in mandor("restart", "nightly").stdout

    def run_has_succeeded() -> bool:
        found = json.loads(mandor("get", "workloads", "-o", "json").stdout)["items"]
        return [each["status"]["phase"] for each in found if each["spec"].get("run_of") == "nightly"] == ["Succeeded"]

    eventually("its run has succeeded", run_has_succeeded)
    told = mandor("describe", "workload", "nightly").stdout
    assert "30 1 * * * (Asia/Jakarta)" in told
    assert "runs: 1" in told
    mandor("delete", "workload", "nightly", "--wait")
    eventually("its run goes, too", lambda: mandor("get", "workloads", "-o", "name").stdout == "")


@pytest.mark.parametrize("name", ["batch", "depends-on", "gang", "groups", "namespace", "limits", "probes"])
@pytest.mark.req("S0-32")
def test_an_example_runs(mandor: Mandor, name: str) -> None:
    mandor("apply", "-f", str(EXAMPLES / f"{name}.yaml"), "--wait", "--timeout", "60s")
    mandor("delete", "-f", str(EXAMPLES / f"{name}.yaml"), "--wait", "--timeout", "60s")


@pytest.mark.req("S0-32", "S2-17")
def test_the_indexed_example_runs_each_index_once_with_its_init_and_sidecar(mandor: Mandor) -> None:
    mandor("apply", "-f", str(EXAMPLES / "indexed.yaml"), "--wait", "--timeout", "60s")
    assert "0-5 of 6 done" in mandor("describe", "workload", "render").stdout
    for index in range(6):
        assert f"piece {index} of 6" in mandor("logs", f"render-{index}", "--task", "draw").stdout
        assert f"fetching piece {index}" in mandor("logs", f"render-{index}", "--task", "fetch").stdout
    mandor("delete", "-f", str(EXAMPLES / "indexed.yaml"), "--wait", "--timeout", "60s")


def test_a_cordoned_node_gets_nothing_new_and_the_reason_is_shown(mandor: Mandor) -> None:
    mandor("cordon", "n1")
    mandor("apply", "-f", "-", given=SLEEPER)
    eventually("it says why it waits", lambda: "Unschedulable" in mandor("get", "instances").stdout)
    assert "Pending" in mandor("describe", "instance", "sleeper-0").stdout
    mandor("uncordon", "n1")
    mandor("apply", "-f", "-", "--wait", given=SLEEPER)


# Logs.


def test_logs_show_both_streams_and_can_be_cut(mandor: Mandor, sleeper: str) -> None:
    assert sorted(mandor("logs", sleeper).stdout.split()) == ["odd", "up"]
    assert len(mandor("logs", sleeper, "--tail", "1").stdout.splitlines()) == 1
    assert mandor("logs", "sleeper").stdout == mandor("logs", sleeper).stdout
    lines = [json.loads(line) for line in mandor("logs", sleeper, "-o", "json").stdout.splitlines()]
    assert {(line["stream"], line["text"]) for line in lines} == {("stdout", "up"), ("stderr", "odd")}
    assert mandor("logs", sleeper, "--timestamps").stdout.startswith("20")
    assert mandor("logs", sleeper, "--since", "0s").stdout == ""


def test_logs_of_a_name_that_is_not_there(mandor: Mandor, sleeper: str) -> None:
    told = mandor("logs", "sleper-0", code=1)
    assert "hint: did you mean `sleeper-0`?" in told.stderr
    assert "has no task" in mandor("logs", sleeper, "--task", "nobody", code=1).stderr


def test_logs_follow_until_interrupted(cluster: Cluster, mandor: Mandor) -> None:
    mandor("apply", "-f", str(EXAMPLES / "hello.yaml"), "--wait")
    env = {**os.environ, "MANDOR_SERVER": cluster.urls[0]}
    command = [str(MANDOR), "logs", "-f", "hello-0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("hello from process")
        assert process.stdout.readline().startswith("hello from process"), "the second comes five seconds later"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read().strip() == ""


# Exec.


def test_exec_gives_back_output_and_exit_status(mandor: Mandor, sleeper: str) -> None:
    told = mandor("exec", sleeper, "--", "sh", "-c", "echo out; echo err >&2; exit 3", code=3)
    assert (told.stdout, told.stderr) == ("out\n", "err\n")
    assert mandor("exec", sleeper, "true").stdout == ""


def test_exec_passes_standard_input_on(mandor: Mandor, sleeper: str) -> None:
    assert mandor("exec", "-i", sleeper, "--", "sort", given="b\na\n").stdout == "a\nb\n"
    assert mandor("exec", sleeper, "--", "sort", given="ignored\n").stdout == ""


def test_exec_carries_a_megabyte(mandor: Mandor, sleeper: str) -> None:
    text = "0123456789abcdef" * 65536
    assert mandor("exec", "-i", sleeper, "--", "cat", given=text).stdout == text


def test_exec_of_what_cannot_be_run_is_reported(mandor: Mandor, sleeper: str) -> None:
    told = mandor("exec", sleeper, "--", "no-such-program", code=None)
    assert told.returncode != 0
    assert told.stderr != ""
    assert "there is no instance called nobody-0" in mandor("exec", "nobody-0", "true", code=1).stderr


def test_exec_gives_a_terminal_with_its_size(cluster: Cluster, sleeper: str) -> None:
    fd, terminal = pty.openpty()
    # Not pty.fork(): other threads of this process, gRPC's among them, may hold a lock that the child would wait for.
    command = ["setsid", "--ctty", str(MANDOR), "exec", "-it", sleeper, "--", "sh"]
    env = {**os.environ, "MANDOR_SERVER": cluster.urls[0]}
    program = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=env)
    os.close(terminal)
    seen = b""

    def shows(text: bytes, times: int = 1) -> None:
        nonlocal seen
        deadline = time.monotonic() + 60
        while seen.count(text) < times:
            assert time.monotonic() < deadline, seen
            seen += os.read(fd, 4096)

    ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
    try:
        os.write(fd, b"stty size; tty; echo do''ne\n")  # ahead of the terminal: nothing typed is lost
        shows(b"done")
        assert b"33 101" in seen
        assert b"/dev/pts/" in seen
        ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 44, 99, 0, 0))
        deadline = time.monotonic() + 60
        while b"44 99" not in seen:
            assert time.monotonic() < deadline, seen
            seen = b""
            os.write(fd, b"stty size; echo ne''xt\n")
            shows(b"next")
        os.write(fd, b"cat\n")
        os.write(fd, b"hello\n")
        shows(b"hello", times=2)  # once by the terminal, once by what runs there
        os.write(fd, b"\x03")  # Ctrl-C is for the command there, not for us
        shows(b"^C\r\n")  # the shell goes on; who dies may still take what is typed
        os.write(fd, b"exit 7\n")
        assert program.wait(60) == 7
    finally:
        os.close(fd)
        program.kill()
        program.wait()


# On a terminal.


def test_a_table_on_a_terminal_has_colours(cluster: Cluster, mandor: Mandor) -> None:
    controller, terminal = pty.openpty()
    env = {**os.environ, "MANDOR_SERVER": cluster.urls[0], "TERM": "xterm-256color", "COLUMNS": "100"}
    env.pop("NO_COLOR", None)
    subprocess.run([MANDOR, "get", "nodes"], stdout=terminal, env=env, timeout=60, check=True)
    os.close(terminal)
    shown = os.read(controller, 65536)
    os.close(controller)
    assert b"\x1b[32mReady" in shown


@pytest.mark.req("S0-10", "S0-35")
def test_a_gang_waits_whole_and_shows_why(mandor: Mandor) -> None:
    ring = "name: ring\nreplicas: 3\ngang: {}\nresources: {memory: 500Ti}\ncommand: [sleep, '1000']\n"
    mandor("apply", "-f", "-", given=ring)
    eventually(
        "it says why", lambda: "the gang needs 3: 0 would fit" in mandor("describe", "instance", "ring-2").stdout
    )
    items = json.loads(mandor("get", "instances", "-o", "json").stdout)["items"]
    assert [item["status"]["phase"] for item in items] == ["Pending"] * 3
    mandor("apply", "-f", "-", "--wait", given=ring.replace("500Ti", "1Mi"))
    assert "3/3" in mandor("get", "workloads").stdout


@pytest.mark.req("S0-18")
def test_the_table_of_the_scheduler_is_what_the_store_shows(mandor: Mandor) -> None:
    mandor("apply", "-f", str(EXAMPLES / "hello.yaml"), "--wait")
    told = mandor("debug", "table")
    assert "1 nodes, 2 instances" in told.stderr
    assert "no differences" in told.stderr
    assert json.loads(mandor("debug", "table", "-o", "json").stdout)["differences"] == []
