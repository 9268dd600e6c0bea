"""The playbook of deploy/ansible, run by the real Ansible on this machine, whose folders it sees as its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.components.enclosure import Enclosure
from tests.components.ports import free_port
from tests.docs.text import ROOT
from tests.e2e.cluster import eventually

PYTHON, PACKAGES = "/mnt", "/media"
"""Folders of the enclosure with the interpreter and the packages of the tests; every user can read them."""
SYSTEMCTL = """\
#!{python}
\"\"\"Stands for systemd, which does not run inside: starts what the unit says, as the user that it says.\"\"\"
import configparser, os, pathlib, pwd, shlex, signal, subprocess, sys, time
words = [each for each in sys.argv[1:] if not each.startswith("-")]
verb, name = words[0], (words[1:] or [""])[0].removesuffix(".service")
with open("{folder}/systemctl.log", "a") as log:
    print(verb, name, file=log)
unit, pid = pathlib.Path("/etc/systemd/system", name + ".service"), pathlib.Path("/run", name + ".pid")
enabled = pathlib.Path("/run", name + ".enabled")
def alive():
    try:
        return pathlib.Path("/proc", pid.read_text(), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
def stop():
    while alive():
        os.kill(int(pid.read_text()), signal.SIGKILL)
        time.sleep(0.05)
def start():
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read_string(unit.read_text())
    service = parser["Service"]
    user = pwd.getpwnam(service["User"])
    state = pathlib.Path("/var/lib", service["StateDirectory"])
    state.mkdir(parents=True, exist_ok=True)
    os.chown(state, user.pw_uid, user.pw_gid)
    log = open("{folder}/server.log", "ab")
    started = subprocess.Popen(
        shlex.split(service["ExecStart"]), user=user.pw_uid, group=user.pw_gid, extra_groups=[], cwd="/",
        umask=int(service["UMask"], 8), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        env={{"PATH": "/usr/bin:/bin", "PYTHONPATH": "{packages}", "LD_LIBRARY_PATH": "{library}"}},
    )
    pid.write_text(str(started.pid))
if verb == "show":
    print("LoadState=loaded" if unit.exists() else "LoadState=not-found")
    print("ActiveState=active" if alive() else "ActiveState=inactive")
elif verb == "is-enabled":
    print("enabled" if enabled.exists() else "disabled")
    sys.exit(0 if enabled.exists() else 1)
elif verb == "enable":
    enabled.touch()
elif verb in ("start", "restart"):
    stop() if verb == "restart" else None
    alive() or start()
elif verb != "daemon-reload":
    sys.exit(f"{{verb}} is not known")
"""
ASK = """\
import sys, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())
except OSError:
    pass
"""
SETTINGS = """\
[server]
listen = "127.0.0.1:{port}"
secrets_key = "/etc/mandor/secrets.key"
"""


@pytest.fixture
def inside(tmp_path: Path) -> Iterator[Enclosure]:
    """A machine that has just been installed: nothing of Mandor is on it."""
    enclosure = Enclosure(tmp_path)
    try:
        enclosure.run(["mount", "--bind", sys.base_prefix, PYTHON])
        enclosure.run(["mount", "--bind", sysconfig.get_path("purelib"), PACKAGES])
        for folder in ("/opt", "/usr/local", "/var/lib"):
            enclosure.run(["mount", "-t", "tmpfs", "-o", "mode=755", "none", folder])
        enclosure.run(["mkdir", "/usr/local/bin"])
        yield enclosure
    finally:
        log = tmp_path / "server.log"
        print(log.read_text()[-3000:] if log.exists() else "the server was not started")
        enclosure.kill()
        enclosure.close()


def built(folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*pip, str(ROOT)], check=True, capture_output=True, timeout=300)
    (wheel,) = folder.glob("mandor-*.whl")
    return wheel


def play(inside: Enclosure, folder: Path, wheel: Path) -> dict[str, int]:
    """Run the playbook as it stands; return its summary, such as the number of changes."""
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    (tools / "systemctl").write_text(
        SYSTEMCTL.format(python=sys.executable, folder=folder, packages=PACKAGES, library=f"{PYTHON}/lib")
    )
    (tools / "systemctl").chmod(0o755)
    values = {
        "mandor_package": str(wheel),
        "mandor_files": str(folder / "files"),
        "ansible_become": False,  # the test is root already, and there need be no sudo
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
    }
    command: list[str | Path] = [
        Path(sys.executable).with_name("ansible-playbook"),
        "-i",
        "seed-2,",
        "-e",
        json.dumps(values),
    ]
    environ = {
        "PATH": f"{tools}:{PYTHON}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",  # dependencies come from the packages of the tests
        "ANSIBLE_NOCOLOR": "1",
        "HOME": str(folder),
    }
    done = subprocess.run(
        inside.command([*command, ROOT / "deploy" / "ansible" / "server.yaml"]),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environ,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", done.stdout.splitlines()[-2])}


@pytest.mark.req("S4-44")
def test_the_playbook_makes_a_bare_machine_a_server_and_changes_nothing_the_second_time(
    inside: Enclosure, tmp_path: Path
) -> None:
    wheel, port, files = built(tmp_path), free_port(), tmp_path / "files"
    files.mkdir()
    (files / "mandor.toml").write_text(SETTINGS.format(port=port))
    (files / "secrets.key").write_text("ab" * 32)
    log = tmp_path / "server.log"

    def answers() -> bool:
        return "ready" in inside.run(
            [
                sys.executable,
                "-c",
                f"import urllib.request as u\ntry: print(u.urlopen('http://127.0.0.1:{port}/readyz')"
                ".read().decode())\nexcept OSError: pass",
            ]
        )

    first = play(inside, tmp_path, wheel)
    assert first["changed"] >= 6
    assert (first["failed"], first["unreachable"]) == (0, 0)
    eventually("the server answers", answers, patience=120)
    assert inside.run(["stat", "-c", "%U:%G %a", "/etc/mandor", "/etc/mandor/secrets.key"]).splitlines() == [
        "root:mandor 750",
        "root:mandor 640",
    ]
    assert inside.run(["/usr/local/bin/mandor", "version", "--client"], environ={"PYTHONPATH": PACKAGES})
    assert "enable mandor-server" in (tmp_path / "systemctl.log").read_text()

    again = play(inside, tmp_path, wheel)
    assert again["changed"] == 0
    (files / "mandor.toml").write_text(SETTINGS.format(port=port) + 'log_style = "json"\n')
    changed = play(inside, tmp_path, wheel)
    assert changed["changed"] == 2, "the settings, and the restart of the server"
    eventually("the server answers with the new settings", lambda: answers() and '"level"' in log.read_text())
