"""One container: found, made, told something, taken away; each of it whatever others do at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from mandor.engines.base import Launch, Unit
from mandor.engines.containers import labels as marks
from mandor.engines.containers.engine import KILL_SECONDS
from mandor.engines.docker_api.client import GONE, NOT_NOW, START_SECONDS, ApiClient, Refused
from mandor.engines.docker_api.files import make_archive, read_archived, who
from mandor.engines.docker_api.observe import OVER
from mandor.errors import Conflict, EngineDown

LOOK_SECONDS = 0.05
LOOK_SECONDS_MOST = 0.5


class Containers:
    def __init__(self, api: ApiClient, owner: Callable[[], str], *, waits: bool, kill: str) -> None:
        """`waits`: the engine itself can wait for an end, and costs nothing while it does; `kill`: the call's path."""
        self._api, self._owner, self._waits, self._kill = api, owner, waits, kill

    async def find(self, unit: Unit, *, foreign: bool = False) -> dict[str, Any] | None:
        """Its container, inspected; `foreign`: somebody else's of the same name is an error, and not nothing."""
        name = marks.container_name(unit)
        found = await self.inspect(name)
        if found is None:
            return None
        if marks.unit_of(found["Config"]["Labels"] or {}, self._owner()) == unit:
            return found
        if foreign:
            raise Conflict(
                f"{self._api.name} has a container called {name} that is not this agent's", hint="remove or rename it"
            )
        return None

    async def inspect(self, identity: str) -> dict[str, Any] | None:
        """None: there is no such container."""
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
                # The same order was given before and broken off: it is being carried out, or was just now.
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
        uid, gid = who(user, await self._read(identity, "/etc/passwd"))
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
        """What is no longer there, or no longer runs, needs it no more."""
        try:
            await self._api.call(method, path, query=query)
        except Refused as error:
            if error.status not in {GONE, NOT_NOW} and "container state improper" not in error.message:
                raise

    async def discard(self, identity: str) -> None:
        """Gone afterwards, whoever else removes it at the same time."""
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
