"""Attacks from a process of one tenant on another tenant, the node and the agent, with a real engine that is root."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mandor.engines.base import Mount, Unit
from mandor.engines.process import ProcessEngine
from mandor.engines.process.confinement import Confinement
from mandor.engines.process.memory import find_memory
from mandor.model.task import File
from tests.integration.engines.conftest import Bench, clear, find_pid, supervisor_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="an agent that is root is attacked")

VICTIM, ATTACKER = 2_000_001, 2_010_001
"""Users of two namespaces."""
CONFINED = ("restricted", "baseline")
SECRET = "tell-no-other-tenant"
PYTHON = "/usr/bin/python3"
CALL = f'{PYTHON} -c "import ctypes, os, sys; c = ctypes.CDLL(None); sys.exit(%s)"'
SOCKET = f"mandor-security-test-{os.getpid()}"
"""An abstract one, without its first byte."""
CONNECT = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{SOCKET}')"
LIMITS = '$(find /sys/fs/cgroup -name "*.max" -o -name "*limit_in_bytes")'


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path / "engine")
    yield bench
    await clear(bench)


@dataclass
class Scene:
    """A running task of another tenant, with its pids and folders as facts for an attacker."""

    bench: Bench
    victim: Unit
    volume: Path
    tmp_path: Path

    @property
    def facts(self) -> dict[str, str]:
        return {
            "FOLDER": str(self.bench.folder(self.victim)),
            "DATA": str(self.bench.directory),
            "MEMORY": str(find_memory(self.bench.directory)),
            "VOLUME": str(self.volume),
            "VICTIM": str(find_pid(self.victim, 2)),
            "SUPERVISOR": str(supervisor_of(self.bench, self.victim)),
            "AGENT": str(os.getpid()),
            "OUTSIDE": str(self.tmp_path / "outside"),
            "SECRET": SECRET[::-1],
        }

    async def attack(self, script: str, level: str, **parts: Any) -> tuple[list[str], str]:
        """Run the script of an attacker; return its output and the reason of its end."""
        parts = {"user": ATTACKER, "env": self.facts, "level": level} | parts
        unit = await self.bench.start(f"secret=$(echo $SECRET | rev); {script}", **parts)
        ended = await self.bench.ended(unit)
        return [line.decode(errors="replace") for line in await self.bench.output(unit)], ended.reason


@pytest.fixture
async def scene(bench: Bench, tmp_path: Path) -> Scene:
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / "data").write_text(SECRET)
    (volume / "data").chmod(0o666)
    volume.chmod(0o777)
    outside = tmp_path / "outside"
    outside.mkdir()
    outside.chmod(0o777)
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if "pytest" in str(folder):
            folder.chmod(0o711)  # not pytest's folders protect the node here, but the engine
    victim = await bench.start(
        f"echo {SECRET}; cat key; sleep 3600; : {SECRET}",
        user=VICTIM,
        level="restricted",
        env={"PASSWORD": SECRET},
        files=(File(path="key", content=SECRET), File(path="plain", content=SECRET, mode="0666")),
        secret_files=frozenset({"key"}),
        mounts=(Mount(path="/data", source=str(volume.resolve())),),
    )
    await bench.printed(victim)
    return Scene(bench, victim, volume, tmp_path)


READS = {
    "environments of all processes": "cat /proc/[0-9]*/environ",
    "command lines of all processes": "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $f; done",
    "the victim's environment": "cat /proc/$VICTIM/environ",
    "the agent's environment": "cat /proc/$AGENT/environ /proc/1/environ",
    "the victim's secret file": "cat $FOLDER/work/key",
    "the victim's other file": "cat $FOLDER/work/plain",
    "the victim's log": "cat $FOLDER/log",
    "the victim's launch on the disk": "cat $FOLDER/launch.json",
    "the victim's launch in memory": "cat $MEMORY/*/launch.json /dev/shm/mandor-0/mandor/*/*/* /run/mandor/*/*/*",
    "the victim's volume": "cat $VOLUME/data",
    "the agent's data": "cat $DATA/*/*/* $DATA/*/*/*/*",
    "the victim's root through /proc": "cat /proc/$VICTIM/root/data/data /proc/$VICTIM/cwd/key",
    "the node's root through the first process": "cat /proc/1/root$VOLUME/data /proc/1/cwd$VOLUME/data",
    "the node's root through a parent": "cd /; cat ../../../..$VOLUME/data",
    "the victim's memory": "dd if=/proc/$VICTIM/mem bs=1 count=1 && echo $secret",
    "password hashes": "cat /etc/shadow && echo $secret",
    "password hashes of groups": "cat /etc/gshadow && echo $secret",
    "the disk": "for d in /dev/vda /dev/sda /dev/nvme0n1 /dev/mem /dev/kmsg; do head -c 1 $d && echo $secret; done",
    "devices made by itself": "mknod /tmp/disk b 254 0 && echo $secret; mknod mem c 1 1 && echo $secret",
    "keys of the kernel": CALL % "c.syscall(250, 0, -3, 0) == -1" + " && echo $secret",
}


@pytest.mark.parametrize("level", CONFINED)
@pytest.mark.parametrize("attack", READS)
async def test_a_tenant_cannot_read(scene: Scene, attack: str, level: str) -> None:
    printed, _ = await scene.attack(f"({READS[attack]}) 2>&1; echo; echo tried", level)
    assert printed[-1:] == ["tried"]
    assert not [line for line in printed if SECRET in line]


CHANGES = {
    "kill the victim": "kill -9 $VICTIM",
    "kill the supervisor": "kill -9 $SUPERVISOR",
    "kill everything": "kill -9 -1",
    "kill the agent": "kill -0 $AGENT",
    "trace the victim": CALL % "c.ptrace(16, int(os.environ['VICTIM']), 0, 0) != 0",
    "write to the volume": "echo x > $VOLUME/data",
    "write outside": "echo x > $OUTSIDE/written",
    "write to /usr": "touch /usr/mandor-attack",
    "write to /etc": "touch /etc/mandor-attack",
    "write to the root": "touch /mandor-attack",
    "remount the root": "mount -o remount,rw /",
    "mount": "mount -t tmpfs none /mnt",
    "unmount a mask": "umount /etc/shadow",
    "make a user namespace": "unshare -Ur true",
    "make a mount namespace": "unshare -m true",
    "enter the node's namespaces": "nsenter -t 1 -m -p -- test -e $VOLUME",
    "change the root": "chroot / true",
    "write to the kernel": "echo x > /proc/sys/kernel/hostname",
    "crash the kernel": "echo h > /proc/sysrq-trigger",
    "raise its own limits": f"for f in {LIMITS}; do echo max > $f && exit 0; done; false",
    "leave its groups": "for f in $(find /sys/fs/cgroup -name cgroup.procs); do echo $$ > $f && exit 0; done; false",
    "change its user": f"{PYTHON} -c 'import os; os.setuid(0)'",
    "change its group": f"{PYTHON} -c 'import os; os.setgid(0)'",
    "connect to an abstract socket of the node": f'{PYTHON} -c "{CONNECT}"',
    "make an io_uring": CALL % "c.syscall(425, 1, bytes(120)) < 0",
    "load a program into the kernel": CALL % "c.syscall(321, 5, bytes(128), 128) < 0",
}


@pytest.fixture
def abstract_socket() -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + SOCKET)
        listener.listen()
        yield


@pytest.mark.parametrize("level", CONFINED)
@pytest.mark.parametrize("attack", CHANGES)
async def test_a_tenant_cannot(scene: Scene, abstract_socket: None, attack: str, level: str) -> None:
    printed, _ = await scene.attack(f"trap '' TERM; if ({CHANGES[attack]}) 2>&1; then echo won; fi; echo tried", level)
    assert "won" not in printed, printed
    assert "tried" in printed or attack == "kill everything"
    victim = await scene.bench.look(scene.victim)
    assert victim is not None
    assert victim.phase == "running"
    assert os.listdir(scene.tmp_path / "outside") == []


async def test_the_attacks_are_real(scene: Scene, abstract_socket: None) -> None:
    """The same scripts succeed where nothing confines them, so that a script with a mistake in it is noticed."""
    won = []
    for attack in ("kill the agent", "write outside", "mount", "make a mount namespace", "change its group"):
        printed, _ = await scene.attack(f"if ({CHANGES[attack]}) 2>&1; then echo won; fi", "privileged", user=None)
        won += [attack] if "won" in printed else []
    attack = CHANGES["connect to an abstract socket of the node"]
    printed, _ = await scene.attack(f"if ({attack}) 2>&1; then echo won; fi", "privileged")
    assert "won" in printed, printed
    assert len(won) == 5
    (scene.tmp_path / "outside" / "written").unlink()
    for attack in ("the victim's environment", "the victim's volume", "the victim's log"):
        printed, _ = await scene.attack(f"({READS[attack]}) 2>&1", "privileged", user=None)
        assert [line for line in printed if SECRET in line], attack


@pytest.mark.parametrize("level", CONFINED)
async def test_a_tenant_sees_its_own_processes_and_folders_only(scene: Scene, level: str) -> None:
    script = "ls -d /proc/[0-9]* | wc -l; ls /; ls /tmp; ls /home /root /var/lib /srv 2>/dev/null; echo; id -u"
    printed, reason = await scene.attack(script, level)
    assert reason == "Completed"
    assert int(printed[0]) <= 5
    usual = {"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "opt", "etc", "proc", "sys", "dev", "tmp"}
    usual |= {"run", "var", "mnt", "nix"}
    own = scene.bench.directory.parts[1:3]
    assert {*printed[1:-2]} <= usual | {*own}
    assert printed[-1] == str(ATTACKER)


@pytest.mark.parametrize("level", CONFINED)
async def test_a_program_that_runs_as_its_owner_gains_nothing(scene: Scene, level: str) -> None:
    volume = scene.tmp_path / "programs"
    volume.mkdir()
    shutil.copy("/usr/bin/id", volume / "id")
    (volume / "id").chmod(0o6755)
    volume.chmod(0o755)
    mounts = (Mount(path="/programs", source=str(volume.resolve())),)
    printed, _ = await scene.attack("/programs/id -u; /programs/id -g", level, mounts=mounts)
    assert printed == [str(ATTACKER), str(ATTACKER)]


@pytest.mark.parametrize("level", CONFINED)
@pytest.mark.parametrize("user", [0, "root", "0:0"])
async def test_a_confined_process_is_never_root(bench: Bench, level: str, user: str | int) -> None:
    ended = await bench.ended(await bench.start("id", user=user, level=level))
    assert ended.reason == "StartFailed"
    assert "no process as root" in ended.message


async def test_a_task_that_asks_for_confinement_gets_it_in_a_privileged_namespace(bench: Bench) -> None:
    script = "id -u; grep CapEff /proc/self/status; test -w /usr && echo open || echo closed; echo $$"
    seen = []
    for options in ({}, {"confine": True}):
        unit = await bench.start(script, level="privileged", options=options)
        await bench.ended(unit)
        seen.append([line.decode() for line in await bench.output(unit)])
    assert seen[0][0] == "0"
    assert (seen[1][0], int(seen[1][1].split()[1], 16), seen[1][2]) == ("65534", 0, "closed")
    assert int(seen[1][3]) < 100 < int(seen[0][3])


async def test_a_task_that_asks_for_confinement_is_never_root(bench: Bench) -> None:
    ended = await bench.ended(await bench.start("id", user=0, level="privileged", options={"confine": True}))
    assert (ended.reason, "no process as root" in ended.message) == ("StartFailed", True)


# Mounts.


def make_etc(folder: Path, library: Path | None = None) -> Path:
    """A folder to be mounted at /etc, whose name service says what its author wants."""
    folder.mkdir()
    (folder / "nsswitch.conf").write_text("passwd: files\ngroup: evil files\n")
    (folder / "passwd").write_text("root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")
    (folder / "group").write_text("root:x:0:nobody\nshadow:x:42:nobody,root\nnogroup:x:65534:\n")
    if library is not None:
        (folder / "ld.so.conf").write_text(f"{library}\n")
        words = ["ldconfig", "-X", "-C", str(folder / "ld.so.cache"), "-f", str(folder / "ld.so.conf")]
        subprocess.run(words, check=True, env={"PATH": "/usr/sbin:/sbin"})
    folder.chmod(0o755)
    return folder.resolve()


@pytest.mark.parametrize("level", ["restricted", "baseline", "privileged"])
async def test_a_task_that_is_not_root_cannot_cover_the_nodes_etc(bench: Bench, tmp_path: Path, level: str) -> None:
    mounts = (Mount(path="/etc", source=str(make_etc(tmp_path / "etc"))),)
    unit = await bench.start("id", user="nobody", level=level, mounts=mounts)
    ended = await bench.ended(unit)
    assert ended.reason == "StartFailed"
    assert "cover a system folder" in ended.message


async def test_users_are_resolved_before_files_of_a_namespace_are_mounted(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Had the engine let it pass, a volume at /etc would still not say which groups a task gets."""
    monkeypatch.setattr(Confinement, "check_target", lambda *_: None)
    mounts = (Mount(path="/etc", source=str(make_etc(tmp_path / "etc"))),)
    for level in ("baseline", "privileged"):
        script = "grep ^Groups: /proc/self/status; sleep 3600"
        unit = await bench.start(script, user="nobody", level=level, mounts=mounts)
        assert (await bench.printed(unit))[0].split() == [b"Groups:", b"65534"]
        execution = await bench.engine.exec(unit, ["grep", "^Groups:", "/proc/self/status"])
        piece = await execution.read()
        assert piece is not None
        assert piece[1].split() == [b"Groups:", b"65534"]
        await execution.close()


async def test_no_library_of_a_tenant_is_loaded_as_root(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name service library of the tenant's, in its own /etc and in the folders of libraries, writes a proof."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to make the library of the attack with")
    monkeypatch.setattr(Confinement, "check_target", lambda *_: None)
    library, proof = tmp_path / "library", tmp_path / "proof"
    library.mkdir()
    proof.mkdir()
    proof.chmod(0o777)
    source = tmp_path / "evil.c"
    source.write_text(
        "#include <stdio.h>\n#include <unistd.h>\n"
        "__attribute__((constructor)) static void run(void)"
        ' { FILE *f = fopen("/mnt/proof", "w"); if (f) { fprintf(f, "uid %d", geteuid()); fclose(f); } }\n'
    )
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library / "libnss_evil.so.2"), str(source)], check=True)
    etc = make_etc(tmp_path / "etc", library)
    for level in ("baseline", "privileged"):
        mounts = (
            Mount(path="/etc", source=str(etc)),
            Mount(path="/mnt", source=str(proof.resolve())),
            Mount(path=str(library.resolve()), source=str(library.resolve())),
        )
        unit = await bench.start("echo begun; sleep 3600", user="nobody", level=level, mounts=mounts)
        assert await bench.printed(unit) == [b"begun"]
        execution = await bench.engine.exec(unit, ["true"])
        await execution.wait()
        await execution.close()
        await bench.engine.remove(unit)
    assert os.listdir(proof) == []


@pytest.mark.parametrize("level", ["restricted", "baseline", "privileged"])
async def test_no_folder_is_made_on_the_node_for_a_mount(bench: Bench, tmp_path: Path, level: str) -> None:
    target = tmp_path.resolve() / "made" / "here"
    for mount in (Mount(path=str(target), size_bytes=4096), Mount(path=str(target), source=str(tmp_path.resolve()))):
        unit = await bench.start(f"test -d {target}", level=level, mounts=(mount,))
        ended = await bench.ended(unit)
        if level == "privileged":
            assert ended.reason == "StartFailed"
            assert "does not exist on this node" in ended.message
        else:
            assert ended.reason == "Completed"
        assert not target.parent.exists()


@pytest.mark.parametrize("level", ["restricted", "baseline", "privileged"])
async def test_a_link_in_a_volume_leads_no_mount_to_the_node(bench: Bench, tmp_path: Path, level: str) -> None:
    volume, outside = tmp_path / "volume", tmp_path / "outside"
    volume.mkdir()
    outside.mkdir()
    (volume / "way").symlink_to(outside)
    mounts = (
        Mount(path="/mnt", source=str(volume.resolve())),
        Mount(path="/mnt/way/there", size_bytes=4096),
    )
    ended = await bench.ended(await bench.start("true", level=level, mounts=mounts))
    assert ended.reason == "StartFailed"
    assert "is a link" in ended.message
    assert os.listdir(outside) == []


@pytest.mark.parametrize("path", ["/", "/usr", "/bin", "/proc", "/proc/sys", "/dev/null", "/sys", "/etc/../etc"])
async def test_what_a_view_consists_of_cannot_be_covered(bench: Bench, path: str) -> None:
    ended = await bench.ended(
        await bench.start("true", level="restricted", mounts=(Mount(path=path, size_bytes=4096),))
    )
    assert ended.reason == "StartFailed"


# Commands beside the task.


@pytest.mark.parametrize("level", CONFINED)
async def test_an_exec_command_is_confined_like_its_task(scene: Scene, level: str) -> None:
    look = "id -u; id -G; grep -E '^(CapPrm|CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; ls /proc/self/ns -l"
    unit = await scene.bench.start(f"{look} | sed 's/.*-> //'; sleep 3600", user=ATTACKER, level=level)
    expected = [line for line in await scene.bench.printed(unit, 17) if b"pid_for" not in line]
    execution = await scene.bench.engine.exec(unit, ["sh", "-c", f"{look} | sed 's/.*-> //'"])
    seen = b""
    while piece := await execution.read():
        seen += piece[1]
    await execution.close()
    assert seen.splitlines() == expected
    assert [b"Seccomp:\t2" in expected, b"NoNewPrivs:\t1" in expected, b"CapBnd:\t0000000000000000" in expected]


@pytest.mark.parametrize("level", CONFINED)
async def test_an_exec_command_reads_no_more_than_its_task(scene: Scene, level: str) -> None:
    unit = await scene.bench.start("sleep 3600", user=ATTACKER, level=level, env=scene.facts)
    script = "cat $VOLUME/data $FOLDER/log /proc/[0-9]*/environ /proc/$VICTIM/environ 2>&1"
    execution = await scene.bench.engine.exec(unit, ["sh", "-c", script])
    seen = b""
    while piece := await execution.read():
        seen += piece[1]
    await execution.close()
    assert SECRET.encode() not in seen


async def test_a_number_that_another_process_got_is_not_joined(bench: Bench) -> None:
    """The record of a unit is changed to name another process, as after its number was used again."""
    unit = await bench.start("sleep 3600", user=ATTACKER, level="restricted")
    other = await bench.start("sleep 3600", user=VICTIM, level="restricted")
    record = bench.folder(unit) / "running.json"
    record.write_bytes((bench.folder(other) / "running.json").read_bytes())
    execution = await bench.engine.exec(unit, ["id"])
    seen = await execution.read()
    assert seen is not None
    assert seen[0] == "stderr"
    assert b"does not run any more" in seen[1]
    await execution.close()


def test_nothing_is_imported_or_loaded_in_the_view_of_a_task(tmp_path: Path) -> None:
    """Run the way into a view with Python's audit hook: after the first system call that enters it, no import."""
    program = """
import os, sys
sys.path.append({src!r})
from mandor.engines.shim import confine, entry, kernel, mounts, view
from mandor.engines.shim.task_user import find_task_user

task_user = find_task_user("nobody")
inside = []

def note(event, arguments):
    if inside and (event in ("import", "exec", "compile") or event.startswith("ctypes.dlopen")):
        os.write(2, f"{{event}} {{arguments}}".encode())
        os._exit(9)

sys.addaudithook(note)
leave = mounts.leave_node
def leaving():
    leave()
    inside.append(True)
mounts.leave_node = leaving
launch = {{
    "groups": [], "mounts": [{{"source": None, "target": "/mnt", "size": 4096, "read_only": False}}],
    "confined": None, "view": None, "cwd": None, "work": "/", "below": "", "env": {{}}, "runner": "x",
}}
pid = os.fork()
if pid == 0:
    entry.enter(launch, task_user, ["true"], os.getppid())
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    source = str(Path(sys.modules[ProcessEngine.__module__].__file__ or "").parents[3])
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program.format(src=source)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


# Where a node cannot confine.


async def test_a_restricted_launch_is_refused_where_there_are_no_namespaces(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "engine", mounts=False)
    assert "confined" not in (await bench.engine.probe()).extras
    ended = await bench.ended(await bench.start("true", level="restricted"))
    assert ended.reason == "StartFailed"
    assert "cannot confine a process" in ended.message
    await clear(bench)


async def test_landlock_confines_where_there_are_no_namespaces(tmp_path: Path) -> None:
    """At baseline, with the filters alone: other units, volumes and the agent's data cannot be opened."""
    from mandor.engines.shim.kernel import landlock_version

    if not landlock_version():
        pytest.skip("this kernel has no Landlock")
    bench = Bench(tmp_path / "engine", mounts=False)
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if "pytest" in str(folder):
            folder.chmod(0o711)
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o777)
    moved = Path("/var/lib") / f"mandor-security-{os.getpid()}"
    moved.write_text(SECRET)
    try:
        script = (
            f"cat {moved}; touch {outside}/x; unshare -Ur true && echo won; kill -0 {os.getpid()} && echo won; id -u"
        )
        unit = await bench.start(script, user=ATTACKER)
        await bench.ended(unit)
        printed = [line.decode() for line in await bench.output(unit)]
    finally:
        moved.unlink()
    assert printed[-1] == str(ATTACKER)
    assert SECRET not in "".join(printed)
    assert "won" not in printed
    await clear(bench)


def test_every_refused_call_has_its_number(tmp_path: Path) -> None:
    """The filter's numbers are those of this machine's C library, asked through names that both know."""
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists() or ctypes.sizeof(ctypes.c_void_p) != 8:
        pytest.skip("there is no list of system calls on this machine")
    from mandor.engines.process.seccomp import REFUSED

    lines = (line.split() for line in header.read_text().splitlines() if line.startswith("#define __NR_"))
    known = {words[1].removeprefix("__NR_"): int(words[2]) for words in lines}
    assert {name: numbers[0] for name, numbers in REFUSED.items() if numbers[0] != known.get(name)} == {}
