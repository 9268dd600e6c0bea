"""Ansible pipeline: runs a playbook on this server with the order as variables."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path

from mandor.baremetal.pipeline import Pipeline, Run, VmOrder
from mandor.errors import Invalid, Unavailable

OUTPUT_MOST = 64 * 1024
MESSAGE_MOST = 400
MISUSED = frozenset({1, 4, 5, 250})
"""Exit codes of a playbook that can never succeed; unreachable hosts (4) may be back at the next attempt."""


class AnsiblePipeline(Pipeline):
    """The variable `mandor_action` is `create` or `delete`; `mandor_vm` holds the order."""

    def __init__(self, playbook: str, inventory: str = "localhost,", command: str = "") -> None:
        self._playbook, self._inventory, self._command = playbook, inventory, command or _found()

    async def create(self, order: VmOrder, run: Run) -> None:
        await self._play("create", order)

    async def delete(self, order: VmOrder, run: Run) -> None:
        await self._play("delete", order)

    async def _play(self, action: str, order: VmOrder) -> None:
        if not await asyncio.to_thread(Path(self._playbook).is_file):
            raise Invalid(f"the playbook {self._playbook} does not exist on this server")
        fields = {name: getattr(order, name) for name in order.__struct_fields__}
        variables = json.dumps({"mandor_action": action, "mandor_vm": fields})
        words = ["-i", self._inventory, "-e", variables, self._playbook]
        environ = {**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_RETRY_FILES_ENABLED": "0"}
        try:
            process = await asyncio.create_subprocess_exec(
                self._command,
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                env=environ,
            )
        except OSError as error:
            raise Unavailable(f"cannot start {self._command}: {error.strerror}", hint="install ansible") from error
        try:
            message = await _tail(process)
            code = await process.wait()
        finally:
            await _end(process)
        if code:
            wrong = Invalid if code in MISUSED - {4} else Unavailable
            raise wrong(f"the playbook failed with exit code {code}: {message[-MESSAGE_MOST:]}")


def _found() -> str:
    """Return the command on the PATH, or beside the running Python, so that no environment need be activated."""
    own = Path(sys.executable).with_name("ansible-playbook")
    return shutil.which("ansible-playbook") or (str(own) if own.exists() else "ansible-playbook")


async def _tail(process: asyncio.subprocess.Process) -> str:
    """Return the end of the output; the rest is discarded."""
    assert process.stdout is not None
    kept = b""
    while chunk := await process.stdout.read(8192):
        kept = (kept + chunk)[-OUTPUT_MOST:]
    return " ".join(kept.decode(errors="replace").split())


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the process group if it is still running."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
