"""Store of a run: memory, a SQLite file or an etcd, used by this run only."""

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from mandor.errors import Invalid, Unavailable
from mandor.store.base import WRITES_MOST, Delete, Store
from mandor.store.open import open_store

HOMES = ("memory", "sqlite", "etcd")
START_SECONDS = 60.0
_BESIDE = Path(".components/etcd/usr/bin/etcd")
"""Path of the etcd that `make components` installs."""

CpuSeconds = Callable[[], float]
"""Returns the CPU seconds of other processes of the run, such as etcd."""


def nobody() -> float:
    return 0.0


@asynccontextmanager
async def open_home(home: str, endpoints: str = "") -> AsyncIterator[tuple[Store, CpuSeconds]]:
    """Open an empty store that is removed afterwards."""
    with TemporaryDirectory(prefix="mandor-bench-") as folder:
        if home == "memory":
            async with await open_store("memory:") as store:
                yield store, nobody
        elif home == "sqlite":
            async with await open_store(f"sqlite:{folder}/state.db") as store:
                yield store, nobody
        elif endpoints:
            async with await open_store(f"etcd://{endpoints}/mandor-bench-{uuid4().hex}") as store:
                try:
                    yield store, nobody
                finally:
                    await _clear(store)
        else:
            with private_etcd(Path(folder)) as (address, cpu):
                async with await open_store(f"etcd://{address}/mandor") as store:
                    yield store, cpu


async def _clear(store: Store) -> None:
    """Delete the keys of this run from an etcd that was running before."""
    items = (await store.list(None)).items
    for start in range(0, len(items), WRITES_MOST):
        await store.commit(*(Delete(each.key, each.meta.version) for each in items[start : start + WRITES_MOST]))


@contextmanager
def private_etcd(folder: Path) -> Iterator[tuple[str, CpuSeconds]]:
    program = shutil.which("etcd") or (str(_BESIDE) if _BESIDE.exists() else None)
    if program is None:
        raise Invalid("there is no etcd on this machine", hint="install it, or give --etcd HOST:PORT of a running one")
    client, peer = free_port(), free_port()
    urls = {"client": f"http://127.0.0.1:{client}", "peer": f"http://127.0.0.1:{peer}"}
    command = [program, "--name=bench", f"--data-dir={folder / 'etcd'}", "--log-level=error"]
    command += [f"--{each}-{side}-urls={urls[side]}" for side in urls for each in ("listen",)]
    command += [f"--advertise-client-urls={urls['client']}", f"--initial-advertise-peer-urls={urls['peer']}"]
    command += [f"--initial-cluster=bench={urls['peer']}", "--quota-backend-bytes=8589934592"]
    with (folder / "etcd.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _wait_for(client, process, folder / "etcd.log")
        yield f"127.0.0.1:{client}", lambda: _cpu_seconds(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
    raise Unavailable(f"etcd did not start: {''.join(last) or 'it said nothing'}")


def _cpu_seconds(pid: int) -> float:
    import psutil

    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
