"""Images of an engine: lists them, pulls missing ones and removes unused ones."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from mandor.engines.containers.credentials import HUB_HOST, default_files
from mandor.engines.containers.pulled_images import PulledImages
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
    def __init__(self, pulled: PulledImages, credentials: Sequence[Path] | None = None) -> None:
        self.pulled, self._credentials = pulled, credentials
        self._pulls = asyncio.Semaphore(PULLS_MOST)
        self._busy: dict[str, asyncio.Lock] = {}

    @abstractmethod
    async def look(self, name: str) -> Any | None:
        """Return the description of an image in the format of its engine; None: the node does not have it."""

    @abstractmethod
    async def sizes(self) -> Mapping[str, int]:
        """Return the sizes of the images on the node, in bytes, by name."""

    @abstractmethod
    async def _pull(self, name: str, progress: Progress, login: str) -> None:
        """Pull an image. `login`: the values of a pull secret; empty: none."""

    async def ensure(self, name: str, pull: Pull, progress: Progress, login: str = "") -> Any:
        """Return the image, pulled if need be; concurrent calls for one image share one pull.

        `NotFound`: it cannot be pulled as it is named; `Unavailable`: its registry does not answer.
        """
        if pull != "always" and (found := await self.look(name)) is not None:
            self.pulled.use(name)
            return found
        if pull == "never":
            raise NotFound(
                f"the image {name} is not on this node, and `pull: never` forbids pulling it",
                hint="load it with `mandor image load`, or remove `pull: never`",
            )
        async with self._busy.setdefault(name, asyncio.Lock()):
            try:
                if pull == "missing" and (found := await self.look(name)) is not None:
                    return found  # Another call has pulled the same image meanwhile.
                progress(f"pulling {name}")
                async with self._pulls:
                    with step("pull image", {"container.image.name": name}):
                        await self._pull(name, progress, login)
                self.pulled.add(name)
            finally:
                self._busy.pop(name, None)
        progress("")
        found = await self.look(name)
        if found is None:
            raise Unavailable(f"the image {name} was pulled, and the engine does not list it")
        return found

    async def load(self, image: ImageFile, content: AsyncIterator[bytes]) -> bool:
        """Load an image from an archive; return whether it is new. An image that the node has under all its names, with
        the same id, is not loaded again."""
        if image.id and image.names:
            found = [await self.look(name) for name in image.names]
            if all(each is not None and self._id(each).removeprefix("sha256:") == image.id for each in found):
                return False
        async with self._pulls:
            await self._load(image, content)
        self.pulled.forget(*image.names)  # it cannot be pulled again
        return True

    def digest_of(self, name: str, found: Any) -> str:
        """Return the digest of an image that was pulled; empty: it was loaded from a file, or has no digest."""
        if name not in self.pulled:
            return ""
        wanted = repository_of(name)
        digests = [each.partition("@") for each in self._digests(found)]
        return next((digest for repository, _, digest in digests if repository_of(repository) == wanted), "")

    @abstractmethod
    def _digests(self, found: Any) -> Sequence[str]:
        """Return the `REPOSITORY@DIGEST` names of an image that `look` returned."""

    async def clean(self, keep: Collection[str]) -> str:
        """Remove the least recently used image that was pulled for a task and has no container; return its name."""
        for name in self.pulled.oldest():
            if name in keep or name in self._busy:
                continue
            there = await self.look(name) is not None
            if not there or await self._remove(name):
                self.pulled.forget(name)
                if there:
                    return name
        return ""

    @abstractmethod
    async def _remove(self, name: str) -> bool:
        """Remove an image; False: a container uses it."""

    @abstractmethod
    def _id(self, found: Any) -> str:
        """Return the id of an image that `look` returned."""

    @abstractmethod
    async def _load(self, image: ImageFile, content: AsyncIterator[bytes]) -> None: ...

    @property
    def _files(self) -> Sequence[Path]:
        """Return the files with logins for registries."""
        return default_files() if self._credentials is None else self._credentials


def cannot_pull(name: str, message: str) -> NotFound | Unavailable:
    words = f"the image {name} is not on this node and cannot be pulled: {message}"
    if any(mark in message.lower() for mark in _NEVER):
        return NotFound(
            words, hint="check the name of the image, and the login of the node or the `pull_secret` of the task"
        )
    return Unavailable(words, hint="check that the node can reach the registry")


def split(name: str) -> tuple[str, str, str]:
    """Split a name into registry, repository as written, and tag or `@digest`."""
    repository, at, digest = name.partition("@")
    last = repository.rpartition("/")[2]
    tag = ""
    if ":" in last:
        repository, _, tag = repository.rpartition(":")
    first, slash, _ = repository.partition("/")
    named = bool(slash) and ("." in first or ":" in first or first == "localhost")
    return (first if named else HUB_HOST), repository, f"@{digest}" if at else tag or "latest"
