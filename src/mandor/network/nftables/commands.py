"""Runs the programs of the node that change its network: `nft`, `ip`, `bridge` and `iptables`."""

import asyncio
import os
import shutil
import subprocess

from mandor.errors import Unavailable

COMMAND_SECONDS_MOST = 60.0


def which(name: str) -> str | None:
    """Return the path of a program, also from folders of the administrator."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin")


async def run(name: str, *arguments: str, text: str = "") -> str:
    """Run a program and return its output; `Unavailable`: it is missing or failed."""
    program = which(name)
    if program is None:
        raise Unavailable(f"services and networks need the program `{name}`", hint=f"install the package of `{name}`")
    running = asyncio.get_running_loop().run_in_executor(None, _run, (program, *arguments), text)
    try:
        done = await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])  # it must not change the node later
        raise
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"`{name} {' '.join(arguments)}` failed: {error}") from error
    if done.returncode:
        raise Unavailable(f"`{name} {' '.join(arguments)}` failed: {done.stderr.strip()[:2000]}")
    return done.stdout


def _run(command: tuple[str, ...], text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, input=text, capture_output=True, text=True, errors="replace", timeout=COMMAND_SECONDS_MOST, check=False
    )
