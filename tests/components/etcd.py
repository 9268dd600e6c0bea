"""A private etcd: one member or several, on free loopback ports or on machines of their own, in a folder of its own."""

from __future__ import annotations

import functools
import itertools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import trustme

from tests.components.ports import free_port

READY_SECONDS = 60.0
STOP_SECONDS = 20.0

_prefixes = itertools.count(1)


@dataclass(frozen=True)
class Tls:
    """The files of a private CA: a server certificate, for loopback, and a client's."""

    ca_file: Path
    cert_file: Path
    """The client's certificate."""
    key_file: Path
    server_cert_file: Path
    server_key_file: Path

    @staticmethod
    def make(folder: Path, *addresses: str) -> Tls:
        """`addresses`: of the server, besides loopback."""
        folder.mkdir(parents=True, exist_ok=True)
        ca = trustme.CA()
        server, client = ca.issue_cert("127.0.0.1", "localhost", *addresses), ca.issue_cert("client@mandor.test")
        tls = Tls(*(folder / name for name in ("ca.pem", "client.pem", "client.key", "server.pem", "server.key")))
        ca.cert_pem.write_to_path(tls.ca_file)
        for issued, cert_file, key_file in (
            (client, tls.cert_file, tls.key_file),
            (server, tls.server_cert_file, tls.server_key_file),
        ):
            cert_file.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
            issued.private_key_pem.write_to_path(key_file)
            key_file.chmod(0o600)
        return tls


@dataclass
class Member:
    """One etcd process, which can be killed and started again on the same data and ports."""

    name: str
    folder: Path
    client_port: int
    peer_port: int
    host: str = "127.0.0.1"
    inside: Callable[[], AbstractContextManager[None]] = nullcontext
    """The way onto its machine."""
    process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"{self.host}:{self.client_port}"

    @property
    def peer(self) -> str:
        return f"{self.name}=http://{self.host}:{self.peer_port}"

    @property
    def log_file(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None


class NotReady(Exception):
    """A member ended, or did not answer in time; the message holds the end of its log."""


@dataclass
class Etcd:
    """A running etcd of one or more members. Member numbers start at 0."""

    binary: Path
    folder: Path
    members: Sequence[Member]
    tls: Tls | None = None
    options: Sequence[str] = ()
    inside: Callable[[], AbstractContextManager[None]] = nullcontext
    """Onto the machine from which etcdctl is run."""
    _ctl: Path = field(init=False)

    def __post_init__(self) -> None:
        self._ctl = self.binary.with_name("etcdctl")

    # What tests use.

    @property
    def endpoints(self) -> list[str]:
        """`host:port` of every member, running or not."""
        return [member.endpoint for member in self.members]

    @property
    def urls(self) -> list[str]:
        """The endpoints with their scheme."""
        return [f"{self._scheme}://{endpoint}" for endpoint in self.endpoints]

    def prefix(self) -> str:
        """A key prefix that no other test uses, ending in `/`."""
        return f"/test-{os.getpid()}-{next(_prefixes)}/"

    def kill(self, index: int) -> None:
        """`kill -9` a member and wait until it is gone."""
        process = self._process(index)
        process.kill()
        process.wait(STOP_SECONDS)

    def pause(self, index: int) -> None:
        """Freeze a member: its connections stay open and nothing answers."""
        self._process(index).send_signal(signal.SIGSTOP)

    def resume(self, index: int) -> None:
        self._process(index).send_signal(signal.SIGCONT)

    def start(self, index: int, *, wait: bool = True) -> None:
        """Start a member (again) on its own data and ports."""
        member = self.members[index]
        assert not member.running, f"{member.name} is running"
        with member.log_file.open("ab") as log, member.inside():
            member.process = subprocess.Popen(
                self._command(member),
                env=_environ(),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        if wait:
            self.wait_ready(index)

    def leader(self) -> int:
        """The number of the member that leads, as the members themselves say."""
        for index, member in enumerate(self.members):
            if not member.running:
                continue
            answer = self._run_ctl(["--write-out=fields", "endpoint", "status"], [member.endpoint])
            facts = dict(line.split(" : ", 1) for line in answer.stdout.splitlines() if " : " in line)
            if facts and facts.get('"MemberID"') == facts.get('"Leader"'):
                return index
        raise NotReady("no member leads")

    def etcdctl(self, *arguments: str) -> str:
        """Run etcdctl against the running members; its standard output."""
        done = self._run_ctl(arguments, [member.endpoint for member in self.members if member.running])
        if done.returncode:
            raise RuntimeError(f"etcdctl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def wait_ready(self, *indexes: int) -> None:
        """Wait until the members (all, if none is named) answer a consistent read."""
        deadline = time.monotonic() + READY_SECONDS
        for index in indexes or range(len(self.members)):
            member = self.members[index]
            while self._run_ctl(["endpoint", "health"], [member.endpoint]).returncode:
                if not member.running or time.monotonic() > deadline:
                    raise NotReady(f"{member.name} is not ready:\n{member.log_file.read_text()[-2000:]}")
                time.sleep(0.05)

    def stop(self) -> None:
        """End every member at once: a polite end of a cluster hands its leadership round for seconds."""
        for member in self.members:
            if member.process and member.running:
                member.process.kill()
        for member in self.members:
            if member.process:
                member.process.wait(STOP_SECONDS)

    # How it is done.

    @property
    def _scheme(self) -> str:
        return "https" if self.tls else "http"

    def _process(self, index: int) -> subprocess.Popen[bytes]:
        member = self.members[index]
        assert member.process is not None, f"{member.name} was never started"
        assert member.running, f"{member.name} is not running"
        return member.process

    def _command(self, member: Member) -> list[str]:
        client, peer = f"{self._scheme}://{member.endpoint}", member.peer.partition("=")[2]
        command = [
            str(self.binary),
            f"--name={member.name}",
            f"--data-dir={member.folder / member.name}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster={','.join(each.peer for each in self.members)}",
            f"--initial-cluster-token={self.folder.name}",
            "--log-level=warn",
            *_fast_options(self.binary),
            *self.options,
        ]
        if self.tls:
            command += [
                "--client-cert-auth",
                f"--trusted-ca-file={self.tls.ca_file}",
                f"--cert-file={self.tls.server_cert_file}",
                f"--key-file={self.tls.server_key_file}",
            ]
        return command

    def _run_ctl(self, arguments: Sequence[str], endpoints: Sequence[str]) -> subprocess.CompletedProcess[str]:
        urls = ",".join(f"{self._scheme}://{endpoint}" for endpoint in endpoints)
        command = [str(self._ctl), f"--endpoints={urls}", "--command-timeout=5s"]
        if self.tls:
            command += [f"--cacert={self.tls.ca_file}", f"--cert={self.tls.cert_file}", f"--key={self.tls.key_file}"]
        with self.inside():
            return subprocess.run(
                [*command, *arguments],
                capture_output=True,
                text=True,
                timeout=READY_SECONDS,
                check=False,
                env=_environ() | {"ETCDCTL_API": "3"},
            )


def start_etcd(
    binary: Path, folder: Path, *, members: int = 1, tls: Tls | None = None, options: Sequence[str] = ()
) -> Etcd:
    """Start a private etcd and wait until every member answers; the caller stops it."""
    for attempt in itertools.count(1):
        home = folder / f"etcd-{attempt}"
        home.mkdir(parents=True)
        fleet = [Member(f"m{index}", home, free_port(), free_port()) for index in range(members)]
        etcd = Etcd(binary, home, fleet, tls, options)
        try:
            for index in range(members):
                etcd.start(index, wait=False)
            etcd.wait_ready()
        except NotReady as error:
            etcd.stop()
            # Somebody took a port between our look and etcd's bind: look again.
            if "address already in use" in str(error) and attempt < 5:
                continue
            raise
        except BaseException:
            etcd.stop()
            raise
        return etcd
    raise AssertionError("unreachable")


def _environ() -> dict[str, str]:
    """Without a user's own settings of etcd, which would contradict our flags."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("ETCD_", "ETCDCTL_"))}


@functools.cache
def _fast_options(binary: Path) -> tuple[str, ...]:
    """Tests kill processes, not machines, so what is in the page cache survives: spare the disk where etcd can."""
    usage = subprocess.run([binary, "--help"], capture_output=True, text=True, timeout=20, check=False)
    return ("--unsafe-no-fsync",) if "unsafe-no-fsync" in usage.stdout + usage.stderr else ()
