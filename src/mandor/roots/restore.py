"""`mandor restore`: fills an empty store from a backup, with no server running."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

from mandor.model.record import Cluster
from mandor.roots.server import store_access
from mandor.roots.settings import ServerSettings, load
from mandor.store.dump import load_dump
from mandor.store.marker import MarkerContent, write_marker
from mandor.store.open import open_store


def run(file: str, *, flags: Mapping[str, str]) -> str:
    """Restore the backup and return one sentence about the result."""
    settings = load(ServerSettings, "server", environ=os.environ, flags=flags)
    settings.directory.mkdir(parents=True, exist_ok=True)
    return asyncio.run(_restore(Path(file), settings))


async def _restore(file: Path, settings: ServerSettings) -> str:
    async with await open_store(settings.store_url, access=store_access(settings)) as store:
        with file.open("rb") as content:
            header = await load_dump(store, content)
        if settings.durable:
            revision = (await store.list(Cluster.kind)).revision
            known = MarkerContent(cluster=header.cluster, epoch=header.epoch + 1, revision=revision)
            await asyncio.to_thread(write_marker, settings.marker_file, known)
    return f"restored cluster {header.cluster} of revision {header.revision}; its epoch is {header.epoch + 1} now"
