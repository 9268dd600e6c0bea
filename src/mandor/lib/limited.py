"""Runs programs on untrusted input as child processes with limits on time, memory, files and output."""

import asyncio
import os
import resource
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

KEPT = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "HOME")
"""Environment variables passed to the child; others may contain secrets."""
PIECE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Limits:
    seconds: float
    """Wall-clock time; then the child is killed."""
    memory_bytes: int
    output_bytes: int
    """Bytes of standard output, and of standard error; then the child is killed."""
    cpu_seconds: int | None = None
    files: int | None = None
    """Open files and sockets, including the three standard streams."""
    writes: bool = True
    """Whether the child may write to files."""
    niceness: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    status: int
    """Exit status, or the negative number of the signal that ended the child."""
    output: bytes
    errors: bytes

    @property
    def out_of_time(self) -> bool:
        return self.status in {-signal.SIGXCPU, -signal.SIGKILL}


class Overran(Exception):
    """Raised after the child was killed because it exceeded its time or output limit."""


async def run_limited(
    command: Sequence[str], limits: Limits, *, given: bytes = b"", folder: Path | None = None
) -> Ended:
    """Run the command with `given` as standard input, which is sent after the limits are set."""
    environment = {name: os.environ[name] for name in KEPT if name in os.environ} | {"OPENBLAS_NUM_THREADS": "1"}
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        _limit(process.pid, limits)
        async with asyncio.timeout(limits.seconds), asyncio.TaskGroup() as tasks:
            tasks.create_task(_feed(process.stdin, given))
            output = tasks.create_task(_read(process.stdout, limits.output_bytes))
            errors = tasks.create_task(_read(process.stderr, limits.output_bytes))
            status = await process.wait()
        return Ended(status, output.result(), errors.result())
    except TimeoutError:
        raise Overran(f"it took more than {limits.seconds:g} s") from None
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    finally:
        # What it may have started is in its session, too.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _limit(pid: int, limits: Limits) -> None:
    # A library that is mapped counts as address space, but not as data.
    wanted: list[tuple[int, int | None]] = [
        (resource.RLIMIT_DATA, limits.memory_bytes),
        (resource.RLIMIT_CPU, limits.cpu_seconds),
        (resource.RLIMIT_NOFILE, limits.files),
        (resource.RLIMIT_FSIZE, None if limits.writes else 0),
        (resource.RLIMIT_CORE, 0),
    ]
    with suppress(ProcessLookupError):
        for kind, most in wanted:
            if most is not None:
                resource.prlimit(pid, kind, (most, most))
        os.setpriority(os.PRIO_PROCESS, pid, limits.niceness)


async def _feed(stdin: asyncio.StreamWriter, given: bytes) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):
        stdin.write(given)
        await stdin.drain()
        stdin.close()
        await stdin.wait_closed()


async def _read(stream: asyncio.StreamReader, most: int) -> bytes:
    pieces, size = list[bytes](), 0
    while piece := await stream.read(PIECE_BYTES):
        size += len(piece)
        if size > most:
            raise Overran(f"it answered more than {most:,} bytes")
        pieces.append(piece)
    return b"".join(pieces)
