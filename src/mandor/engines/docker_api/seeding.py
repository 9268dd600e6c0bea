"""Fills a new, empty volume with the content of an image, as the engine itself does for its named volumes.

The engine copies when a container with a named volume is created (Docker) or initialized (Podman). So a named volume
whose folder is the volume of the agent is mounted into a container that never runs; both are removed afterwards.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from mandor.engines.base import Launch, Mount, Unit
from mandor.engines.containers import labels as marks
from mandor.engines.docker_api.client import GONE, START_SECONDS, ApiClient, Refused
from mandor.engines.docker_api.containers import Containers
from mandor.model.record import FIRST_NAMESPACE_USER


class Seeding:
    def __init__(self, api: ApiClient, containers: Containers, *, initialize: str = "") -> None:
        """`initialize`: path of the call that initializes a container; empty: creating it is enough."""
        self._api, self._containers, self._initialize = api, containers, initialize

    async def fill(self, unit: Unit, launch: Launch) -> None:
        """Fill the new volumes of a launch that are empty."""
        for number, mount in enumerate(launch.mounts):
            if mount.seed and mount.source is not None and _empty(mount.source):
                await self._copy(f"{marks.container_name(unit)}-seed-{number}", mount.source, mount, launch)
                if isinstance(launch.user, int) and launch.user >= FIRST_NAMESPACE_USER:
                    # The namespace gives the task another user than the image has; it owns its data.
                    await asyncio.to_thread(_give, mount.source, launch.user)

    async def _copy(self, name: str, source: str, mount: Mount, launch: Launch) -> None:
        await self._remove(name)  # left by a crash
        try:
            options = {"type": "none", "o": "bind", "device": source}
            await self._api.post("/volumes/create", {"Name": name, "Driver": "local", "DriverOpts": options})
            made = await self._api.post(
                "/containers/create", _body(name, mount, launch), seconds=START_SECONDS, name=name
            )
            if self._initialize:
                with suppress(Refused):  # The start of the task itself reports why its program cannot run.
                    await self._api.call("POST", self._initialize.format(made["Id"]), seconds=START_SECONDS)
        finally:
            await self._remove(name)

    async def _remove(self, name: str) -> None:
        """Remove container and volume; the folder that the volume refers to is kept."""
        await self._containers.discard(name)
        try:
            await self._api.call("DELETE", f"/volumes/{name}", query={"force": "true"})
        except Refused as error:
            if error.status != GONE:
                raise


def _body(name: str, mount: Mount, launch: Launch) -> dict[str, Any]:
    volume = {"Type": "volume", "Source": name, "Target": mount.path}
    body: dict[str, Any] = {"Image": launch.image, "HostConfig": {"NetworkMode": "none", "Mounts": [volume]}}
    if launch.command:
        body["Entrypoint"] = list(launch.command)
    if launch.args or launch.command:
        body["Cmd"] = list(launch.args)
    return body


def _empty(folder: str) -> bool:
    with os.scandir(folder) as found:
        return next(found, None) is None


def _give(folder: str, user: int) -> None:
    """Change the owner of a folder and everything in it; symbolic links are not followed."""
    if os.geteuid() == 0:
        for path in (folder, *_below(folder)):
            os.chown(path, user, user, follow_symlinks=False)


def _below(folder: str) -> Iterator[str]:
    for place, folders, files in os.walk(folder):
        yield from (os.path.join(place, name) for name in (*folders, *files))
