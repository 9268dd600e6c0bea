"""Images of an engine: what is there, and fetching what is not."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from mandor.engines.containers.credentials import HUB_HOST, default_files
from mandor.engines.containers.fetched import Fetched
from mandor.errors import NotFound, Unavailable
from mandor.model.image import ImageFile
from mandor.model.image_reference import repository_of
from mandor.telemetry.span import step

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
Pull = Literal["always", "missing", "never"]


class Images(ABC):
    def __init__(self, fetched: Fetched, credentials: Sequence[Path] | None = None) -> None:
        self.fetched, self._credentials = fetched, credentials
        self._pulls = asyncio.Semaphore(PULLS_MOST)
        self._busy: dict[str, asyncio.Lock] = {}

    @abstractmethod
    async def look(self, name: str) -> Any | None:
        """What the engine says of it; None: it is not there."""

    @abstractmethod
    async def sizes(self) -> Mapping[str, int]:
        """Those that are there, in bytes."""

    @abstractmethod
    async def _pull(self, name: str, progress: Progress, login: str) -> None:
        """`login`: the values of a pull secret; empty: none."""

    async def ensure(self, name: str, pull: Pull, progress: Progress, login: str = "") -> Any:
        """The image, which is there afterwards; many who want the same one wait for one pull.

        `NotFound`: it never will be as things stand; `Unavailable`: its registry cannot be asked now.
        """
        if pull != "always" and (found := await self.look(name)) is not None:
            self.fetched.use(name)
            return found
        if pull == "never":
            raise NotFound(
                f"the image {name} is not on this node, and `pull: never` forbids to fetch it",
                hint="`mandor image load` brings it there; or allow it to be pulled",
            )
        async with self._busy.setdefault(name, asyncio.Lock()):
            try:
                if pull == "missing" and (found := await self.look(name)) is not None:
                    return found  # Somebody else waited for the same one, and was first.
                progress(f"pulling {name}")
                async with self._pulls:
                    with step("pull image", {"container.image.name": name}):
                        await self._pull(name, progress, login)
                self.fetched.add(name)
            finally:
                self._busy.pop(name, None)
        progress("")
        found = await self.look(name)
        if found is None:
            raise Unavailable(f"{name} was pulled and is not there")
        return found

    async def load(self, image: ImageFile, content: AsyncIterator[bytes]) -> bool:
        """From an archive; True: it is new. What is there under all its names, by its id, is not taken again."""
        if image.id and image.names:
            found = [await self.look(name) for name in image.names]
            if all(each is not None and self._id(each).removeprefix("sha256:") == image.id for each in found):
                return False
        async with self._pulls:
            await self._load(image, content)
        self.fetched.forget(*image.names)  # it cannot be fetched again
        return True

    def digest_of(self, name: str, found: Any) -> str:
        """The digest of an image that was pulled here; empty: it came otherwise, or its engine names none."""
        if name not in self.fetched:
            return ""
        wanted = repository_of(name)
        digests = [each.partition("@") for each in self._digests(found)]
        return next((digest for repository, _, digest in digests if repository_of(repository) == wanted), "")

    @abstractmethod
    def _digests(self, found: Any) -> Sequence[str]:
        """`REPOSITORY@DIGEST` of what `look` found."""

    async def clean(self, keep: Collection[str]) -> str:
        """Take away the one that was fetched here, is used by nothing, and was wanted longest ago: its name."""
        for name in self.fetched.oldest():
            if name in keep or name in self._busy:
                continue
            there = await self.look(name) is not None
            if not there or await self._remove(name):
                self.fetched.forget(name)
                if there:
                    return name
        return ""

    @abstractmethod
    async def _remove(self, name: str) -> bool:
        """False: something uses it, whoever's that is."""

    @abstractmethod
    def _id(self, found: Any) -> str:
        """Of what `look` found."""

    @abstractmethod
    async def _load(self, image: ImageFile, content: AsyncIterator[bytes]) -> None: ...

    @property
    def _files(self) -> Sequence[Path]:
        """Where logins to registries are found."""
        return default_files() if self._credentials is None else self._credentials


def cannot_pull(name: str, message: str) -> NotFound | Unavailable:
    words = f"the image {name} is not on this node and cannot be pulled: {message}"
    if any(mark in message.lower() for mark in _NEVER):
        return NotFound(words, hint="is its name right, and is the node logged in, or has the task a `pull_secret`?")
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
