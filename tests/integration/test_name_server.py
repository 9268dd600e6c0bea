"""The name server process beside others: crashes, other servers on the machine, a real dnsmasq as upstream."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import dns.asyncquery
import dns.exception
import dns.message
import psutil
import pytest

from mandor.errors import Unavailable
from mandor.network.base import NameRecord, NameTable
from mandor.network.dns.names import NameServerProcess
from scripts.components import environment, find
from tests.components.ports import free_port

PATIENCE_SECONDS = 60.0
TABLE = NameTable({"shop.default": NameRecord(("10.93.0.64",)), "far.default": NameRecord(alias="known.example")})

Make = Callable[..., NameServerProcess]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Return a driver with a folder of its own; all processes are ended after the test."""
    made: list[NameServerProcess] = []
    names: set[str] = set()

    def start(
        name: str, addresses: list[str], port: int, upstream: list[tuple[str, int]] | None = None
    ) -> NameServerProcess:
        names.add(name)
        made.append(NameServerProcess(tmp_path / name, addresses, port=port, upstream=upstream or [], add=False))
        return made[-1]

    yield start
    for each in made:
        await each.close()  # before any is removed: an open one would start the process again
    for each in made:
        await each.remove()
    for name in names:
        _kill(tmp_path / name)


async def found(address: str, port: int, name: str = "shop.default.mandor", *, tcp: bool = False) -> list[str]:
    """Return the addresses of a name; empty while nothing answers."""
    call = dns.asyncquery.tcp if tcp else dns.asyncquery.udp
    try:
        answer = await call(dns.message.make_query(name, "A"), address, timeout=2, port=port)
    except (OSError, EOFError, dns.exception.Timeout):
        return []
    return sorted(item.to_text() for each in answer.answer for item in each)


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not true():
            await asyncio.sleep(0.05)


async def answered(address: str, port: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await found(address, port):
            await asyncio.sleep(0.05)


def processes(folder: Path) -> list[psutil.Process]:
    """Return the processes of a server, the oldest first."""
    all_of_them = psutil.process_iter(["cmdline"])
    own = [each for each in all_of_them if str(folder.resolve()) in (each.info["cmdline"] or ())]
    return sorted(own, key=lambda each: (each.create_time(), each.pid))


def _kill(folder: Path) -> None:
    """End what is left of a server whose parent was killed while it started the next one."""
    while left := processes(folder):
        for each in left:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(left, timeout=5)


async def test_a_killed_server_is_started_again_by_its_parent_and_by_the_agent(make: Make, tmp_path: Path) -> None:
    port = free_port()
    names = make("one", ["127.0.0.1"], port)
    await names.open()
    await names.apply(TABLE)
    await names.close()  # the agent is down
    guardian, server = processes(tmp_path / "one")
    os.kill(server.pid, signal.SIGKILL)
    await answered("127.0.0.1", port)
    assert processes(tmp_path / "one")[0].pid == guardian.pid
    os.kill(guardian.pid, signal.SIGKILL)
    await until(lambda: guardian.pid not in {each.pid for each in processes(tmp_path / "one")})
    for each in processes(tmp_path / "one"):
        os.kill(each.pid, signal.SIGKILL)
    await until(lambda: not processes(tmp_path / "one"))
    again = make("one", ["127.0.0.1"], port)
    assert await again.open() == "127.0.0.1"
    assert await found("127.0.0.1", port) == ["10.93.0.64"], "the table on disk is in effect"
    os.kill(processes(tmp_path / "one")[1].pid, signal.SIGKILL)
    await until(lambda: len(processes(tmp_path / "one")) == 2)
    await again.apply(NameTable({"shop.default": NameRecord(("10.93.0.99",))}))
    assert await found("127.0.0.1", port) == ["10.93.0.99"]


async def test_a_stopped_server_leaves_no_process(make: Make, tmp_path: Path) -> None:
    names = make("one", ["127.0.0.1"], free_port())
    await names.open()
    assert len(processes(tmp_path / "one")) == 2
    await names.remove()
    await until(lambda: not processes(tmp_path / "one"))


async def test_servers_of_one_machine_have_one_address_each_and_keep_it(make: Make, tmp_path: Path) -> None:
    port, addresses = free_port(), ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    first, second = make("one", addresses, port), make("two", addresses, port)
    assert (await first.open(), await second.open()) == ("127.0.0.1", "127.0.0.2")
    await first.remove()
    for each in processes(tmp_path / "two"):
        os.kill(each.pid, signal.SIGKILL)
    await until(lambda: not processes(tmp_path / "two"))
    assert await make("two", addresses, port).open() == "127.0.0.2", "not the first one, which is free again"


async def test_an_address_that_cannot_be_used_is_reported(make: Make) -> None:
    port = free_port()
    await make("one", ["127.0.0.1"], port).open()
    with pytest.raises(Unavailable, match=f"port {port} of 127.0.0.1 cannot be used"):
        await make("two", ["127.0.0.1"], port).open()


@pytest.fixture
def dnsmasq(tmp_path: Path) -> Iterator[int]:
    """A dnsmasq that knows a name; yields its port."""
    port = free_port()
    words = [str(find("dnsmasq")), "--keep-in-foreground", f"--port={port}", "--listen-address=127.0.0.1"]
    words += ["--bind-interfaces", "--no-hosts", "--no-resolv", "--user=root", "--pid-file=", "--conf-file=/dev/null"]
    words += [
        "--address=/known.example/192.0.2.80",
        *(f"--host-record=long.example,192.0.2.{n}" for n in range(1, 101)),
    ]
    running = subprocess.Popen(words, env=os.environ | environment("dnsmasq"))
    yield port
    running.terminate()
    running.wait()


@pytest.mark.real("dnsmasq")
async def test_other_names_are_relayed_to_a_real_server(make: Make, dnsmasq: int) -> None:
    port = free_port()
    names = make("one", ["127.0.0.1"], port, [("127.0.0.1", dnsmasq)])
    await names.open()
    await names.apply(TABLE)

    async def known() -> list[str]:
        return await found("127.0.0.1", port, "known.example")

    async with asyncio.timeout(PATIENCE_SECONDS):
        while await known() != ["192.0.2.80"]:
            await asyncio.sleep(0.05)
    assert await found("127.0.0.1", port, "known.example", tcp=True) == ["192.0.2.80"]
    assert await found("127.0.0.1", port, "far.default") == ["192.0.2.80", "known.example."]
    assert len(await found("127.0.0.1", port, "long.example", tcp=True)) == 100


async def test_a_server_never_asks_itself(make: Make) -> None:
    port = free_port()
    names = make("one", ["127.0.0.1"], port, [("127.0.0.1", port)])
    await names.open()
    answer = await dns.asyncquery.udp(dns.message.make_query("other.example", "A"), "127.0.0.1", timeout=30, port=port)
    assert answer.rcode() == dns.rcode.SERVFAIL
