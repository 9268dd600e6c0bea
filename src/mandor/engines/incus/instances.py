"""Operations on Incus instances; each waits for other operations of Incus on the same instance."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from mandor.engines.base import Launch, Unit
from mandor.engines.containers.engine import KILL_SECONDS
from mandor.engines.incus import marks
from mandor.engines.incus.client import TAKEN, IncusClient, Refused, path_of
from mandor.engines.incus.files import put_files
from mandor.errors import Conflict

LOOK_SECONDS = 0.05


class Instances:
    def __init__(self, api: IncusClient, owner: Callable[[], str]) -> None:
        self._api, self._owner = api, owner

    async def list(self, recursion: int = 1) -> Sequence[tuple[Unit, Any]]:
        found = await self._api.get("/1.0/instances", recursion=recursion)
        return [(unit, each) for each in found if (unit := marks.unit_of(each["config"], self._owner())) is not None]

    async def find(self, unit: Unit, *, foreign: bool = False) -> Any | None:
        name = marks.instance_name(unit)
        try:
            found = await self._api.get(path_of(name))
        except Refused as error:
            if error.unknown:
                return None
            raise
        if marks.unit_of(found["config"], self._owner()) == unit:
            return found
        if foreign:
            raise Conflict(
                f"incus has an instance {name} that belongs to another agent or program", hint="remove or rename it"
            )
        return None

    async def create(self, name: str, body: Mapping[str, Any]) -> None:
        deadline = asyncio.get_running_loop().time() + KILL_SECONDS
        while True:
            try:
                await self._api.run("POST", "/1.0/instances", body)
            except Refused as error:
                # An interrupted call may have left it.
                taken = error.status == TAKEN or "already" in error.message or "is busy" in error.message
                if not taken or asyncio.get_running_loop().time() > deadline:
                    raise
                await self._settle(name)
                with suppress(Refused):
                    await self._api.get(path_of(name))
                    return
                await asyncio.sleep(LOOK_SECONDS)
            else:
                return

    async def complete(self, name: str, launch: Launch, *, known: bool) -> None:
        """Copy the files and start the instance; `known`: the files are copied already."""

        async def step() -> None:
            if not known:
                await put_files(self._api, name, launch)
                started = {"config": {marks.STARTED: f"{time.time():.3f}"}}
                await self._api.run("PATCH", path_of(name), started)
            if (await self._api.get(path_of(name)))["status"] != "Running":
                await self._api.run("PUT", path_of(name, "state"), {"action": "start", "timeout": 60})

        await self._retry_while_busy(name, step)

    async def command(self, name: str, command: Sequence[str], **options: Any) -> Any:
        """Start a command; return the operation, which ends with the command."""
        body = {"command": list(command), "wait-for-websocket": False, "interactive": False} | options
        return await self._api.call("POST", path_of(name, "exec"), body)

    async def shut_down(self, name: str, seconds: float) -> None:
        """Request a shutdown, which the instance may ignore."""
        with suppress(Refused):
            await self._api.run("PUT", path_of(name, "state"), {"action": "stop", "timeout": int(seconds)})

    async def switch_off(self, name: str) -> None:
        await self._quietly("PUT", path_of(name, "state"), {"action": "stop", "force": True})

    async def discard(self, unit: Unit) -> None:
        name = marks.instance_name(unit)
        deadline = asyncio.get_running_loop().time() + KILL_SECONDS
        while (found := await self.find(unit)) is not None:
            try:
                if found["status"] != "Stopped":
                    await self.switch_off(name)
                await self._quietly("DELETE", path_of(name))
            except Refused:  # Another operation is in progress.
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(LOOK_SECONDS)

    async def state(self, name: str) -> Mapping[str, Any]:
        """Return the state of an instance; empty: it cannot be read now."""
        with suppress(Refused):
            return await self._api.get(path_of(name, "state")) or {}
        return {}

    async def console(self, name: str) -> bytes:
        with suppress(Refused):
            return await self._api.fetch("GET", path_of(name, "console"))
        return b""

    async def _retry_while_busy(self, name: str, step: Callable[[], Awaitable[None]]) -> None:
        """Repeat a step while Incus is busy with the instance, as after an interrupted call."""
        deadline = asyncio.get_running_loop().time() + KILL_SECONDS
        while True:
            await self._settle(name)
            try:
                return await step()
            except Refused as error:
                if "is busy" not in error.message or asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(LOOK_SECONDS)

    async def _settle(self, name: str) -> None:
        """Wait for running operations on the instance: Incus completes interrupted calls."""
        for path in (await self._api.get("/1.0/operations") or {}).get("running", ()):
            with suppress(Refused):  # It has ended, with or without an error.
                operation = await self._api.get(path)
                if any(each.endswith(f"/{name}") for each in (operation.get("resources") or {}).get("instances", ())):
                    await self._api.finish({"operation": path})

    async def _quietly(self, method: str, path: str, body: Any = None) -> None:
        """Send a request; an instance that does not exist or does not run is no error."""
        try:
            await self._api.run(method, path, body)
        except Refused as error:
            if not error.unknown and "already stopped" not in error.message and "not running" not in error.message:
                raise
