"""Operations on one container; each tolerates concurrent changes by other programs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from mandor.engines.base import Launch, Unit
from mandor.engines.containers import labels as marks
from mandor.engines.containers.engine import KILL_SECONDS
from mandor.engines.docker_api.client import GONE, NOT_NOW, START_SECONDS, ApiClient, Refused
from mandor.engines.docker_api.files import find_ids, make_archive, read_archived
from mandor.engines.docker_api.observe import OVER
from mandor.errors import Conflict, EngineDown

LOOK_SECONDS = 0.05
LOOK_SECONDS_MOST = 0.5


class Containers:
    def __init__(self, api: ApiClient, owner: Callable[[], str], *, waits: bool, kill: str) -> None:
        """`waits`: the engine has a cheap call that waits for the end of a container; `kill`: path of the call that
        sends a signal."""
        self._api, self._owner, self._waits, self._kill = api, owner, waits, kill

    async def find(self, unit: Unit, *, foreign: bool = False) -> dict[str, Any] | None:
        """Return the inspected container of a unit; `foreign`: raise `Conflict` for a foreign container of the same
        name."""
        name = marks.container_name(unit)
        found = await self.inspect(name)
        if found is None:
            return None
        if marks.unit_of(found["Config"]["Labels"] or {}, self._owner()) == unit:
            return found
        if foreign:
            raise Conflict(
                f"{self._api.name} has a container {name} that belongs to another agent or program",
                hint="remove or rename it",
            )
        return None

    async def inspect(self, identity: str) -> dict[str, Any] | None:
        """Inspect a container; None: it does not exist."""
        try:
            found: dict[str, Any] = await self._api.get(f"/containers/{identity}/json")
        except Refused as error:
            if error.status == GONE:
                return None
            raise
        return found

    async def create(self, unit: Unit, body: dict[str, Any]) -> str:
        deadline = asyncio.get_running_loop().time() + KILL_SECONDS
        while True:
            try:
                made = await self._api.post(
                    "/containers/create", body, seconds=START_SECONDS, name=marks.container_name(unit)
                )
                return str(made["Id"])
            except Refused as error:
                # A cancelled earlier request for the same container is still being processed, or has just been.
                if not error.name_taken or asyncio.get_running_loop().time() > deadline:
                    raise
            found = await self.find(unit, foreign=True)
            if found is not None:
                await self.discard(found["Id"])
            await asyncio.sleep(LOOK_SECONDS)

    async def put_files(self, identity: str, launch: Launch) -> None:
        if not launch.files:
            return
        config = (await self._api.get(f"/containers/{identity}/json"))["Config"]
        user = config.get("User") or "0"
        uid, gid = find_ids(user, await self._read(identity, "/etc/passwd"))
        archive = make_archive(launch.files, config.get("WorkingDir") or "/", uid=uid, gid=gid)
        await self._api.call(
            "PUT",
            f"/containers/{identity}/archive",
            query={"path": "/"},
            data=archive,
            headers={"Content-Type": "application/x-tar"},
        )

    async def _read(self, identity: str, path: str) -> str:
        try:
            return read_archived(await self._api.call("GET", f"/containers/{identity}/archive", query={"path": path}))
        except Refused:
            return ""

    async def signal(self, identity: str, name: str) -> None:
        await self.quietly("POST", self._kill.format(identity), signal=name)

    async def over(self, identity: str, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                if self._waits:
                    await self._api.post(f"/containers/{identity}/wait", seconds=seconds + KILL_SECONDS)
                else:
                    await self._watch(identity)
        except TimeoutError:
            return False
        except Refused as error:
            if error.status != GONE:
                raise
        return True

    async def _watch(self, identity: str) -> None:
        pause = LOOK_SECONDS
        while (found := await self.inspect(identity)) is not None and found["State"]["Status"] not in OVER:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LOOK_SECONDS_MOST)

    async def quietly(self, method: str, path: str, **query: Any) -> None:
        """Send a request; a container that does not exist or does not run is no error."""
        try:
            await self._api.call(method, path, query=query)
        except Refused as error:
            if error.status not in {GONE, NOT_NOW} and "container state improper" not in error.message:
                raise

    async def discard(self, identity: str) -> None:
        """Remove a container and return when it is gone, also if another program removes it."""
        for _ in range(int(KILL_SECONDS * 10)):
            try:
                await self._api.call("DELETE", f"/containers/{identity}", query={"force": "true", "v": "true"})
            except Refused as error:
                if error.status == GONE:
                    return
                if error.status != NOT_NOW:
                    raise
            try:
                await self._api.get(f"/containers/{identity}/json")
            except Refused as error:
                if error.status == GONE:
                    return
                raise
            await asyncio.sleep(0.1)
        raise EngineDown(f"{self._api.name} does not remove the container {identity[:12]}")
