"""`mandor restore`: fills an empty store from a backup, with no server running."""

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from mandor.api.cluster import KEY
from mandor.errors import Invalid
from mandor.lib.sealing import key_id_of
from mandor.model.record import Cluster
from mandor.roots.bootstrap import raise_epoch
from mandor.roots.master_key import read_master
from mandor.roots.server import store_access
from mandor.roots.settings import ServerSettings, load
from mandor.store.base import Store
from mandor.store.dump import load_dump
from mandor.store.marker import MarkerContent, read_marker, write_marker
from mandor.store.open import open_store


def run(file: str, *, flags: Mapping[str, str]) -> str:
    """Restore the backup and return a sentence about the result, and a note if a key is missing."""
    settings = load(ServerSettings, "server", environ=os.environ, flags=flags)
    settings.directory.mkdir(parents=True, exist_ok=True)
    return asyncio.run(_restore(Path(file), settings))


async def _restore(file: Path, settings: ServerSettings) -> str:
    async with await open_store(settings.store_url, access=store_access(settings)) as store:
        with file.open("rb") as content:
            header = await load_dump(store, content)
        epoch = header.epoch + 1
        if settings.durable:
            before = await asyncio.to_thread(_known_before, settings.marker_file)
            if before is not None and before.cluster == header.cluster and before.epoch >= epoch:
                # The same or an older backup was restored before: agents have seen revisions of that epoch.
                epoch = (await raise_epoch(store, before.epoch + 1)).epoch
            revision = (await store.list(Cluster.kind)).revision
            known = MarkerContent(cluster=header.cluster, epoch=epoch, revision=revision)
            await asyncio.to_thread(write_marker, settings.marker_file, known)
        needed = await _missing_key(store, settings)
    return f"restored cluster {header.cluster} of revision {header.revision}; its epoch is {epoch} now{needed}"


def _known_before(path: Path) -> MarkerContent | None:
    """Return what the data directory knows of its store; None: nothing, or the file is damaged."""
    with suppress(Invalid):
        return read_marker(path)
    return None


async def _missing_key(store: Store, settings: ServerSettings) -> str:
    """Return a note if the data directory lacks the key that opens the restored secrets; a backup does not contain
    it.
    """
    cluster = await store.get(KEY)
    needed = {key_id_of(each.sealed) for each in cluster.status.keys} if isinstance(cluster, Cluster) else set()
    found = await asyncio.to_thread(
        read_master, settings.secrets_key_file, given=False, command=settings.secrets_key_command
    )
    missing = needed - set(found.key_ids if found is not None else ())
    if not missing:
        return ""
    return (
        f"\nits secrets are encrypted under the key {min(missing)}, which is not in {settings.secrets_key_file}: copy "
        "`secrets.key` of the server that the backup is from to that file before you start a server"
    )
