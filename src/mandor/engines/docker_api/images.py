"""Images of an engine: what is there, and fetching what is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from mandor.engines.docker_api.client import ApiClient, Refused
from mandor.engines.docker_api.credentials import HUB_HOST, default_files, header_for
from mandor.engines.docker_api.options import Pull
from mandor.errors import NotFound, Unavailable

_NEVER = (
    "manifest unknown",
    "not found",
    "denied",
    "unauthorized",
    "authentication required",
    "no basic auth credentials",
    "invalid reference",
    "no matching manifest",
)
PULLS_MOST = 4

Progress = Callable[[str], None]


class Images:
    def __init__(self, api: ApiClient, *, credentials: Sequence[Path] | None = None) -> None:
        self._api = api
        self._files = credentials
        self._pulls = asyncio.Semaphore(PULLS_MOST)
        self._busy: dict[str, asyncio.Lock] = {}

    async def sizes(self) -> dict[str, int]:
        found = await self._api.get("/images/json")
        return {tag: int(each["Size"]) for each in found for tag in each.get("RepoTags") or () if "<none>" not in tag}

    async def has(self, name: str) -> bool:
        try:
            await self._api.get(f"/images/{name}/json")
        except Refused as error:
            if error.status in {400, 404}:
                return False
            raise
        return True

    async def ensure(self, name: str, pull: Pull, progress: Progress) -> None:
        """The image is there afterwards; many who want the same one wait for one pull.

        `NotFound`: it never will be as things stand; `Unavailable`: its registry cannot be asked now.
        """
        if pull != "always" and await self.has(name):
            return
        if pull == "never":
            raise NotFound(
                f"the image {name} is not on this node, and `pull: never` forbids to fetch it",
                hint="load it on the node, or allow it to be pulled",
            )
        lock = self._busy.setdefault(name, asyncio.Lock())
        async with lock:
            try:
                if pull == "missing" and await self.has(name):
                    return  # Somebody else waited for the same one, and was first.
                async with self._pulls:
                    await self._pull(name, progress)
            finally:
                self._busy.pop(name, None)

    async def _pull(self, name: str, progress: Progress) -> None:
        registry, repository, tag = split(name)
        files = default_files() if self._files is None else self._files
        pinned = tag.startswith("@")
        query = {"fromImage": repository + tag} if pinned else {"fromImage": repository, "tag": tag}
        progress(f"pulling {name}")
        layers: dict[str, tuple[int, int]] = {}
        try:
            async with self._api.stream(
                "POST", "/images/create", query=query, headers=header_for(registry, files)
            ) as stream:
                while line := await stream.readline():
                    self._follow(name, line, layers, progress)
        except Refused as error:
            raise cannot_pull(name, error.message) from error
        if not await self.has(name):
            raise Unavailable(f"{name} was pulled and is not there")

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


def cannot_pull(name: str, message: str) -> NotFound | Unavailable:
    words = f"the image {name} is not on this node and cannot be pulled: {message}"
    if any(mark in message.lower() for mark in _NEVER):
        return NotFound(words, hint="is its name right, and is the node logged in to its registry?")
    return Unavailable(words, hint="is its registry reachable from this node?")


def split(name: str) -> tuple[str, str, str]:
    """(registry, repository with its registry as it was written, tag or `@digest`)."""
    repository, at, digest = name.partition("@")
    last = repository.rpartition("/")[2]
    tag = ""
    if ":" in last:
        repository, _, tag = repository.rpartition(":")
    first, slash, _ = repository.partition("/")
    named = bool(slash) and ("." in first or ":" in first or first == "localhost")
    return (first if named else HUB_HOST), repository, f"@{digest}" if at else tag or "latest"
