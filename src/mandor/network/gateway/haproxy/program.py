"""The program HAProxy: its check of a configuration, and its start."""

import asyncio
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mandor.errors import Invalid, Unavailable
from mandor.network.detached import write_file
from mandor.network.gateway.base import GatewayState
from mandor.network.gateway.haproxy.configuration import (
    CERTIFICATE_LIST,
    CERTIFICATES,
    CONFIG,
    MASTER_SOCKET,
    Configuration,
    HaproxySettings,
    render,
)

CHECK_SECONDS_MOST = 30.0
_LINE = re.compile(r"\[[^\]\s]*:(\d+)\]")
_BACKEND = re.compile(r"(?:^backend |:|str\()(?:rate:)?([A-Za-z0-9.-]+:[A-Za-z0-9.-]+)\b")


class Problem(NamedTuple):
    """The reason why HAProxy refuses a configuration."""

    message: str
    backend: str
    """Backend of the route that the message is about; empty: unknown."""


async def check_configuration(program: str, folder: Path, wanted: Configuration) -> Problem | None:
    """Let HAProxy check a configuration; None: it accepts it. The maps in effect are not replaced."""
    scratch = Path(tempfile.mkdtemp(dir=folder, prefix="check-"))
    try:
        text = wanted.config
        for file in wanted.maps:
            (scratch / file).write_text(wanted.map_text(file))
            text = text.replace(f"({folder / file})", f"({scratch / file})")
        (scratch / CERTIFICATE_LIST).write_text(wanted.list_text(folder))
        text = text.replace(str(folder / CERTIFICATE_LIST), str(scratch / CERTIFICATE_LIST))
        (scratch / CONFIG).write_text(text)
        try:
            process = await asyncio.create_subprocess_exec(
                *(program, "-c", "-f", str(scratch / CONFIG)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise Unavailable(f"{program} cannot be started: {error.strerror}", hint="install haproxy 2.6") from error
        try:
            async with asyncio.timeout(CHECK_SECONDS_MOST):
                _, errors = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise Unavailable(f"HAProxy did not check its configuration in {CHECK_SECONDS_MOST:g} s") from None
        return None if process.returncode == 0 else _problem(errors.decode(errors="replace"), text)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _problem(errors: str, config: str) -> Problem:
    """Return the first alert, and the route that the line in the alert belongs to."""
    alerts = [line for line in errors.splitlines() if "ALERT" in line]
    first = alerts[0] if alerts else errors.strip().partition("\n")[0]
    place = _LINE.search(first)
    lines = config.splitlines()
    number = min(int(place[1]), len(lines)) - 1 if place else -1
    while number >= 0:
        found = _BACKEND.search(lines[number])
        if found:
            return Problem(first[:500], found[1])
        number -= 1
    return Problem(first[:500], "")


def start(settings: HaproxySettings, program: str, run: Callable[[str, list[str]], None] = os.execvp) -> None:
    """Replace this process by HAProxy with the last configuration; without one, it serves no route yet."""
    folder = settings.folder
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / CERTIFICATES).mkdir(mode=0o700, exist_ok=True)
    if not (folder / CONFIG).exists():
        empty = render(GatewayState(), {}, settings)
        for file in empty.maps:
            write_file(folder / file, empty.map_text(file).encode())
        write_file(folder / CERTIFICATE_LIST, b"")
        write_file(folder / CONFIG, empty.config.encode())
    if shutil.which(program) is None:
        raise Invalid(f"there is no program {program}", hint="install haproxy 2.6 or newer, or set --haproxy")
    run(program, [program, "-W", "-db", "-f", str(folder / CONFIG), "-S", f"{folder / MASTER_SOCKET},mode,600"])
