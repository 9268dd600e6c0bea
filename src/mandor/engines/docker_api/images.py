"""Images over Docker's API: lists, pulls and loads them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mandor.engines.containers.credentials import header_for
from mandor.engines.containers.images import Images, Progress, cannot_pull, split
from mandor.engines.containers.loading import cannot_load
from mandor.engines.containers.pulled_images import PulledImages
from mandor.engines.docker_api.client import ApiClient, Refused
from mandor.model.image import ImageFile


class ApiImages(Images):
    def __init__(self, api: ApiClient, pulled: PulledImages, *, credentials: Sequence[Path] | None = None) -> None:
        super().__init__(pulled, credentials)
        self._api = api

    async def sizes(self) -> Mapping[str, int]:
        found = await self._api.get("/images/json")
        return {tag: int(each["Size"]) for each in found for tag in each.get("RepoTags") or () if "<none>" not in tag}

    def _digests(self, found: Any) -> Sequence[str]:
        return tuple(found.get("RepoDigests") or ())

    async def look(self, name: str) -> Any | None:
        try:
            return await self._api.get(f"/images/{name}/json")
        except Refused as error:
            if error.status in {400, 404}:
                return None
            raise

    async def _pull(self, name: str, progress: Progress, login: str) -> None:
        registry, repository, tag = split(name)
        pinned = tag.startswith("@")
        query = {"fromImage": repository + tag} if pinned else {"fromImage": repository, "tag": tag}
        layers: dict[str, tuple[int, int]] = {}
        try:
            async with self._api.stream(
                "POST", "/images/create", query=query, headers=header_for(registry, self._files, login)
            ) as stream:
                while line := await stream.readline():
                    self._follow(name, line, layers, progress)
        except Refused as error:
            raise cannot_pull(name, error.message) from error

    def _follow(self, name: str, line: bytes, layers: dict[str, tuple[int, int]], progress: Progress) -> None:
        try:
            said = msgspec.json.decode(line)
        except msgspec.DecodeError:
            return
        if not isinstance(said, dict):
            return
        if said.get("error"):
            raise cannot_pull(name, str(said["error"]))
        detail = said.get("progressDetail") or {}
        if said.get("status") == "Downloading" and detail.get("total"):
            layers[str(said.get("id"))] = int(detail.get("current", 0)), int(detail["total"])
            done, total = (sum(column) for column in zip(*layers.values(), strict=True))
            progress(f"pulling {name}: {done * 100 // max(total, 1)} % of {total / 1e6:.1f} MB")

    async def _remove(self, name: str) -> bool:
        """Remove an image without containers. An image with a second name would only lose this name, so containers are
        checked first."""
        using = msgspec.json.encode({"ancestor": [name]}).decode()
        if await self._api.get("/containers/json", all="true", filters=using):
            return False
        try:
            await self._api.call("DELETE", f"/images/{name}", query={"force": "false"})
        except Refused as error:
            if error.status == 409:
                return False  # a container uses it
            if error.status != 404:
                raise
        return True

    # From files.

    def _id(self, found: Any) -> str:
        return str(found.get("Id", ""))

    async def _load(self, image: ImageFile, content: AsyncIterator[bytes]) -> None:
        said: list[str] = []
        try:
            async with self._api.stream(
                "POST", "/images/load", data=content, headers={"Content-Type": "application/x-tar"}
            ) as stream:
                while line := await stream.readline():
                    said += _loaded(self._api.name, line)
            await self._tag(image, said)
        except Refused as error:
            raise cannot_load(self._api.name, error.message) from error
        for name in image.names:
            if await self.look(name) is None:
                raise cannot_load(self._api.name, f"the archive has no image {name}")

    async def _tag(self, image: ImageFile, said: Sequence[str]) -> None:
        """Give the loaded image the requested names."""
        missing = [name for name in image.names if await self.look(name) is None]
        for name in missing if said else ():
            _, repository, tag = split(name)
            await self._api.post(f"/images/{said[0]}/tag", repo=repository, tag=tag)


def _loaded(engine: str, line: bytes) -> list[str]:
    """Return the names or ids in a line of the answer."""
    try:
        told = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return []
    if not isinstance(told, dict):
        return []
    if told.get("error"):
        raise cannot_load(engine, str(told["error"]))
    word, _, name = str(told.get("stream", "")).partition(": ")
    # Podman writes several into one line.
    return [each.strip() for each in name.split(",")] if word.startswith("Loaded image") else []
