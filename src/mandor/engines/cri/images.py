"""Images of a CRI runtime: what is there, and how the rest is fetched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mandor.engines.containers.credentials import login_for
from mandor.engines.containers.images import Images, Progress, cannot_pull, split
from mandor.engines.cri import wire
from mandor.engines.cri.client import CriClient, Refused

PULL_SECONDS = 1800.0


class CriImages(Images):
    def __init__(self, api: CriClient, *, credentials: Sequence[Path] | None = None) -> None:
        super().__init__(credentials)
        self._api = api

    async def look(self, name: str) -> Any | None:
        image = wire.make("ImageSpec", image=name)
        found = await self._api.call(wire.IMAGE_STATUS, image=image, verbose=True)
        return found if found.image.id else None

    async def sizes(self) -> Mapping[str, int]:
        found = await self._api.call(wire.LIST_IMAGES)
        return {tag: int(image.size) for image in found.images for tag in image.repo_tags}

    async def _pull(self, name: str, progress: Progress) -> None:
        fields: dict[str, Any] = {"image": wire.make("ImageSpec", image=name)}
        if login := login_for(split(name)[0], self._files):
            names = {"identitytoken": "identity_token", "serveraddress": "server_address"}
            fields["auth"] = wire.make("AuthConfig", **{names.get(key, key): value for key, value in login.items()})
        try:
            await self._api.call(wire.PULL, seconds=PULL_SECONDS, **fields)
        except Refused as error:
            raise cannot_pull(name, error.message) from error
