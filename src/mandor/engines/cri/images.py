"""Images of a CRI runtime: lists, pulls and loads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mandor.engines.containers.credentials import HUB_HOST, login_for
from mandor.engines.containers.images import Images, Progress, cannot_pull, split
from mandor.engines.containers.loading import cannot_load
from mandor.engines.containers.pulled_images import PulledImages
from mandor.engines.cri import wire
from mandor.engines.cri.client import CriClient, Refused
from mandor.engines.cri.containerd import import_image
from mandor.model.image import ImageFile

PULL_SECONDS = 1800.0
SEEN_SECONDS, SEEN_TRIES = 0.1, 100


class CriImages(Images):
    def __init__(self, api: CriClient, pulled: PulledImages, *, credentials: Sequence[Path] | None = None) -> None:
        super().__init__(pulled, credentials)
        self._api = api

    def _digests(self, found: Any) -> Sequence[str]:
        return tuple(found.image.repo_digests)

    async def look(self, name: str) -> Any | None:
        image = wire.make("ImageSpec", image=name)
        found = await self._api.call(wire.IMAGE_STATUS, image=image, verbose=True)
        return found if found.image.id else None

    async def sizes(self) -> Mapping[str, int]:
        found = await self._api.call(wire.LIST_IMAGES)
        return {tag: int(image.size) for image in found.images for tag in image.repo_tags}

    async def _pull(self, name: str, progress: Progress, login: str) -> None:
        fields: dict[str, Any] = {"image": wire.make("ImageSpec", image=name)}
        if found := login_for(split(name)[0], self._files, login):
            names = {"identitytoken": "identity_token", "serveraddress": "server_address"}
            fields["auth"] = wire.make("AuthConfig", **{names.get(key, key): value for key, value in found.items()})
        try:
            await self._api.call(wire.PULL, seconds=PULL_SECONDS, **fields)
        except Refused as error:
            raise cannot_pull(name, error.message) from error

    async def _remove(self, name: str) -> bool:
        """Remove an image without containers; the runtime itself would also remove one that is in use."""
        found = await self.look(name)
        known = {name, found.image.id, *found.image.repo_tags, *found.image.repo_digests} if found else {name}
        containers = (await self._api.call(wire.LIST)).containers
        if any({each.image.image, each.image_ref} & known for each in containers):
            return False
        await self._api.call(wire.REMOVE_IMAGE, image=wire.make("ImageSpec", image=name))
        return True

    # From files.

    def _id(self, found: Any) -> str:
        return str(found.image.id)

    async def _load(self, image: ImageFile, content: AsyncIterator[bytes]) -> None:
        """Load an archive. Several images keep their names in the archive; a single one gets all given names."""
        names = [whole(name) for name in image.names]
        try:
            await import_image(self._api, names, content, several=not image.id)
        except Refused as error:
            raise cannot_load("containerd", error.message) from error
        # The CRI lists it a moment later.
        for _ in range(SEEN_TRIES):
            if all([await self.look(name) is not None for name in image.names]):
                return
            await asyncio.sleep(SEEN_SECONDS)
        raise cannot_load("containerd", f"it loaded the archive, and has no image {', '.join(image.names)}")


def whole(name: str) -> str:
    """Return the full reference of an image: `docker.io/library/web:latest` for `web`."""
    registry, repository, tag = split(name)
    if registry == HUB_HOST:
        path = repository.removeprefix(f"{HUB_HOST}/")
        repository = f"{HUB_HOST}/{path if '/' in path else f'library/{path}'}"
    return repository + (tag if tag.startswith("@") else f":{tag}")
