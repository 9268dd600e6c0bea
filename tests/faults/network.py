"""Machines with addresses of their own on one machine: a network namespace each, and a router that can drop packets.

The namespaces are held open by this process alone: when it ends, however it ends, they are gone.
Where they are not allowed, all machines are loopback, and nothing can be cut.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import threading
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from scripts.components import environment, find, missing
from tests.components.ports import free_port

_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class Machine:
    """Network namespace of a program, with its address."""

    def __init__(self, name: str, address: str = "127.0.0.1", namespace: int | None = None) -> None:
        self.name = name
        self.address = address
        self._namespace = namespace

    @property
    def descriptor(self) -> int | None:
        """File descriptor of the namespace; None: the network of this process."""
        return self._namespace

    def port(self, usual: int) -> int:
        """The usual port; on loopback, which all machines share, a free one."""
        return free_port() if self._namespace is None else usual

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Enter the network of a machine: processes and sockets of this thread use it until the block ends."""
        if self._namespace is None:
            yield
            return
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _call(_libc.setns, self._namespace, _NEWNET)
            try:
                yield
            finally:
                _call(_libc.setns, home, _NEWNET)
        finally:
            os.close(home)

    def ip(self, *lines: str) -> None:
        """Commands of `ip`, all at once."""
        with self.inside():
            words = [str(_ip()), "-batch", "-"]
            done = subprocess.run(
                words,
                input="\n".join(lines) + "\n",
                capture_output=True,
                text=True,
                check=False,
                env=os.environ | environment("iproute2"),
            )
        if done.returncode:
            raise OSError(f"ip: {done.stderr.strip()}")

    def close(self) -> None:
        if self._namespace is not None:
            os.close(self._namespace)
            self._namespace = None


class Network:
    """Up to 250 machines around one router; without `real`, all of them are loopback."""

    def __init__(self, names: Iterable[str], *, real: bool) -> None:
        self.real = real
        self._cut: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        if not real:
            self.machines = {name: Machine(name) for name in names}
            return
        self._router = Machine("router", namespace=new_namespace())
        self.machines = {name: Machine(name, f"10.99.{number}.2", new_namespace()) for number, name in enumerate(names)}
        self._numbers = {name: number for number, name in enumerate(self.machines)}
        with self._router.inside():
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        for name, number in self._numbers.items():
            self._connect(self.machines[name], number)

    def _connect(self, machine: Machine, number: int) -> None:
        peer = f"/proc/{os.getpid()}/fd/{machine.descriptor}"
        self._router.ip(
            f"link add m{number} type veth peer name eth0 netns {peer}",
            f"addr add 10.99.{number}.1/24 dev m{number}",
            f"link set m{number} up",
        )
        machine.ip(
            "link set lo up",
            f"addr add {machine.address}/24 dev eth0",
            "link set eth0 up",
            f"route add default via 10.99.{number}.1",
        )

    @contextlib.contextmanager
    def cut(self, sources: Iterable[str], targets: Iterable[str], *, both: bool = True) -> Iterator[None]:
        """Drop what goes from the ones to the others, for a while; `both`: and back."""
        targets = tuple(targets)
        pairs = {(one, other) for one in sources for other in targets}
        if both:
            pairs |= {(other, one) for one, other in pairs}
        with self._lock:
            pairs -= self._cut  # somebody else cut these, and heals them
            self._rule("add", pairs)
            self._cut |= pairs
        try:
            yield
        finally:
            with self._lock:
                self._rule("del", pairs)
                self._cut -= pairs

    def _rule(self, verb: str, pairs: set[tuple[str, str]]) -> None:
        # By network, not by address: a machine that moves stays cut off.
        numbers = sorted((self._numbers[one], self._numbers[other]) for one, other in pairs)
        if numbers:
            self._router.ip(*(f"rule {verb} from 10.99.{a}.0/24 to 10.99.{b}.0/24 blackhole" for a, b in numbers))

    def move(self, name: str) -> str:
        """The machine gets another address, and loses the one it had."""
        machine, number = self.machines[name], self._numbers[name]
        before, last = machine.address, int(machine.address.rpartition(".")[2])
        machine.address = f"10.99.{number}.{last % 250 + 2}"
        machine.ip(
            f"addr del {before}/24 dev eth0",
            f"addr add {machine.address}/24 dev eth0",
            f"route replace default via 10.99.{number}.1",
        )
        return machine.address

    def close(self) -> None:
        for machine in self.machines.values():
            machine.close()
        if self.real:
            self._router.close()


@cache
def _ip() -> Path | None:
    return find("iproute2")


def why_not() -> str:
    """Return why network namespaces are not available; empty: they are."""
    if _ip() is None:
        return missing("iproute2")
    try:
        Network(["probe"], real=True).close()
    except OSError as error:
        return f"network namespaces are not allowed here ({error})"
    return ""


def new_namespace() -> int:
    """Make a network namespace in a thread of its own, and return its file descriptor."""
    made: list[int] = []
    failed: list[OSError] = []

    def make() -> None:
        try:
            _call(_libc.unshare, _NEWNET)
            made.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


def _call(function: object, *arguments: int) -> None:
    if function(*arguments):  # type: ignore[operator]
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
