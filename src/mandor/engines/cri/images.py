"""Images of a CRI runtime: what is there, and how the rest is fetched."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mandor.engines.cri import wire
from mandor.engines.cri.client import CriClient, Refused
from mandor.engines.docker_api.credentials import default_files, header_for
from mandor.engines.docker_api.images import cannot_pull, split
from mandor.errors import NotFound

PULL_SECONDS = 1800.0
PULLS_MOST = 4


class Images:
    def __init__(self, api: CriClient, *, credentials: Sequence[Path] | None = None) -> None:
        self._api = api
        self._files = credentials
        self._busy: dict[str, asyncio.Lock] = {}
        self._pulls = asyncio.Semaphore(PULLS_MOST)

    async def look(self, name: str) -> Any | None:
        """What the runtime says of it; None: it is not there."""
        image = wire.make("ImageSpec", image=name)
        found = await self._api.call(wire.IMAGE_STATUS, image=image, verbose=True)
        return found if found.image.id else None

    async def ensure(self, name: str, pull: str) -> Any:
        """The image is there afterwards; many who want the same one wait for one pull."""
        found = await self.look(name) if pull != "always" else None
        if found is not None:
            return found
        if pull == "never":
            raise NotFound(
                f"the image {name} is not on this node, and `pull: never` forbids to fetch it",
                hint="load it on the node, or allow it to be pulled",
            )
        async with self._busy.setdefault(name, asyncio.Lock()):
            if pull == "missing" and (found := await self.look(name)) is not None:
                return found  # Somebody else waited for the same one, and was first.
            async with self._pulls:
                await self._pull(name)
        return await self.look(name)

    async def sizes(self) -> Mapping[str, int]:
        found = await self._api.call(wire.LIST_IMAGES)
        return {tag: int(image.size) for image in found.images for tag in image.repo_tags}

    async def _pull(self, name: str) -> None:
        registry = split(name)[0]
        fields: dict[str, Any] = {"image": wire.make("ImageSpec", image=name)}
        if login := self._login(registry):
            fields["auth"] = wire.make("AuthConfig", **login)
        try:
            await self._api.call(wire.PULL, seconds=PULL_SECONDS, **fields)
        except Refused as error:
            raise cannot_pull(name, error.message) from error

    def _login(self, registry: str) -> dict[str, str]:
        files = default_files() if self._files is None else self._files
        header = header_for(registry, files).get("X-Registry-Auth")
        if header is None:
            return {}
        found = msgspec.json.decode(base64.urlsafe_b64decode(header))
        names = {"username": "username", "password": "password", "identitytoken": "identity_token"}
        return {names[key]: str(value) for key, value in found.items() if key in names} | {"server_address": registry}
