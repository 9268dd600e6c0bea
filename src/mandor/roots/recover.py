"""`mandor recover`: examines a damaged store, and builds a new one from readable rows and from a backup."""

import asyncio
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from mandor.api.cluster import KEY
from mandor.api.sealed_values import SEALED, key_ids
from mandor.errors import Invalid, MandorError, Unavailable
from mandor.lib.lock import LockHeld, hold
from mandor.lib.sealing import key_id_of
from mandor.model.meta import Object
from mandor.model.record import Cluster
from mandor.roots.master_key import read_master
from mandor.roots.server import store_access
from mandor.roots.settings import ServerSettings, load
from mandor.store.backups import newest_good
from mandor.store.base import Delete, Put
from mandor.store.dump import fill, read_dump
from mandor.store.file_check import check_file, wal_of
from mandor.store.marker import MarkerContent, read_marker, sync_folder, write_marker
from mandor.store.open import open_store
from mandor.store.salvage import Salvaged, salvage
from mandor.store.sqlite import SqliteStore
from mandor.store.state_file import row_key


@dataclass(slots=True)
class Plan:
    """Objects and revision that a recovery would write, with its report."""

    path: Path
    marker: Path
    objects: list[Object] = field(default_factory=list)
    revision: int = 0
    report: list[str] = field(default_factory=list)
    sound: bool = False
    """The store is intact: nothing has to be recovered."""

    @property
    def cluster(self) -> Cluster | None:
        return next((item for item in self.objects if isinstance(item, Cluster)), None)


def settings_of(flags: Mapping[str, str], file: str | None = None) -> ServerSettings:
    return load(ServerSettings, "server", file=file, environ=os.environ, flags=flags)


def examine(settings: ServerSettings, backup: str = "") -> Plan:
    """Read the store, its marker and the newest valid backup; writes nothing."""
    path = _path(settings)
    plan = Plan(path, settings.marker_file)
    known = _known(plan)
    with _held(path), tempfile.TemporaryDirectory(prefix="mandor-recover-") as folder:
        found = salvage(path, Path(folder))
    saved = _backup(settings, backup, plan)
    _describe(plan, found, known)
    if found.whole and (known is None or found.revision >= known.revision):
        try:
            check_file(path, known)
            plan.sound = plan.marker.exists() and known is not None
        except MandorError as error:
            plan.report.append(str(error))
    _choose(plan, found, saved)
    plan.revision = max(found.revision, known.revision if known else 0, saved[0] if saved else 0)
    counts = Counter(item.kind for item in plan.objects)
    plan.report.append("recovered: " + (", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())) or "nothing"))
    return plan


def write(plan: Plan) -> str:
    """Build the new store, move the damaged files to another name, and put the new store in their place."""
    cluster = plan.cluster
    if cluster is None:
        raise Invalid(
            f"nothing of {plan.path} can be recovered: no cluster object was found",
            hint="give --backup FILE, or --backup-dir DIR",
        )
    new = plan.path.with_name(plan.path.name + ".recovered")
    with _held(plan.path):
        for name in (new, wal_of(new)):
            name.unlink(missing_ok=True)
        revision = asyncio.run(_build(new, plan))
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        kept = plan.path.with_name(f"{plan.path.name}.damaged-{stamp}")
        for old, target in ((plan.path, kept), (wal_of(plan.path), wal_of(kept))):
            if old.exists():
                old.rename(target)
        new.rename(plan.path)
        new.with_name(new.name + ".lock").unlink(missing_ok=True)
        sync_folder(plan.path.parent)
        epoch = cluster.spec.epoch + 1
        write_marker(plan.marker, MarkerContent(cluster=cluster.spec.id, epoch=epoch, revision=revision))
    return (
        f"recovered cluster {cluster.spec.id} with {len(plan.objects)} objects; its epoch is {epoch} now; "
        f"the damaged files are kept as {kept.name}*"
    )


async def _build(new: Path, plan: Plan) -> int:
    async with await SqliteStore.open(new) as store:
        await fill(store, plan.objects, plan.revision)
        return store.index.revision


def _path(settings: ServerSettings) -> Path:
    scheme, _, address = settings.store_url.partition(":")
    if scheme != "sqlite":
        raise Invalid(
            f"`mandor recover` reads stores in SQLite; this one is {scheme}:",
            hint="restore etcd from its own snapshot, or `mandor restore` a backup into a new prefix",
        )
    return Path(address).absolute()


@contextmanager
def _held(path: Path) -> Iterator[None]:
    try:
        with hold(path.with_name(path.name + ".lock")):
            yield
    except LockHeld as error:
        raise Unavailable(
            f"{path} is in use by process {error.holder or '?'}", hint="stop that server first"
        ) from error


def _known(plan: Plan) -> MarkerContent | None:
    try:
        return read_marker(plan.marker)
    except Invalid as error:
        plan.report.append(str(error))
        return None


def _backup(settings: ServerSettings, backup: str, plan: Plan) -> tuple[int, list[Object]] | None:
    """Return the backup's revision and objects; None: there is no backup."""
    file = Path(backup) if backup else newest_good(Path(settings.backup_dir)) if settings.backup_dir else None
    if file is None:
        plan.report.append("backup: none; --backup FILE or --backup-dir DIR names one")
        return None
    with file.open("rb") as content:
        dump = read_dump(content)
        objects = list(dump)
    plan.report.append(f"backup: {file}, revision {dump.header.revision}, {len(objects)} objects")
    return dump.header.revision, objects


def _describe(plan: Plan, found: Salvaged, known: MarkerContent | None) -> None:
    if known is not None:
        plan.report.append(
            f"expected: cluster {known.cluster}, epoch {known.epoch}, revision {known.revision} or later"
        )
    if found.problem:
        plan.report.append(f"found: {plan.path} {found.problem}".replace(f"{plan.path} {plan.path}", str(plan.path)))
        return
    behind = " (with frames behind a damaged place of the write-ahead log)" if found.repaired else ""
    plan.report.append(f"found: revision {found.revision}, {len(found.objects)} readable objects{behind}")
    if known is not None and found.revision < known.revision:
        plan.report.append(f"lost: the last {known.revision - found.revision} revisions")
    plan.report += [f"damaged: {key.partition('/')[2]}" for key in found.damaged[:20]]
    if len(found.damaged) > 20:
        plan.report.append(f"damaged: {len(found.damaged) - 20} more")
    if found.gaps:
        plan.report.append(f"unreadable: {len(found.gaps)} places in the file, with an unknown number of objects")
    if found.unknown:
        plan.report.append(f"not taken: {found.unknown} objects of kinds that this version does not know")


def _choose(plan: Plan, found: Salvaged, saved: tuple[int, list[Object]] | None) -> None:
    """Return readable objects, and objects of the backup for unreadable rows. Other objects of the backup were deleted
    since, such as revoked tokens, and are left out."""
    plan.objects = list(found.objects.values())
    if saved is None:
        return
    if plan.cluster is None and found.problem:
        plan.objects = saved[1]
        plan.report.append("the new store is made from the backup alone")
        return
    names = {item.key for item in plan.objects}
    taken = [
        item
        for item in saved[1]
        if item.key not in names
        and found.misses(row_key(item.meta.uid, (item.kind, item.meta.namespace, item.meta.name)))
    ]
    plan.objects += taken
    plan.report.append(f"taken from the backup: {len(taken)} objects that the store no longer shows")


# Secrets whose key is lost.


async def forget_secrets(settings: ServerSettings, *, write: bool) -> list[str]:
    """Find the secrets, signing keys and authority that this server's keys cannot open; `write`: delete them and the
    data keys they need."""
    path = settings.secrets_key_file
    given = bool(settings.secrets_key)
    master = await asyncio.to_thread(read_master, path, given=given, command=settings.secrets_key_command)
    known = set(master.key_ids) if master is not None else set()
    async with await open_store(settings.store_url, access=store_access(settings)) as store:
        cluster = await store.get(KEY)
        keys = cluster.status.keys if isinstance(cluster, Cluster) else ()
        usable = [each for each in keys if key_id_of(each.sealed) in known]
        known |= {each.id for each in usable}
        lost = [each for kind in SEALED for each in (await store.list(kind)).items if not key_ids(each) <= known]
        if write:
            for each in lost:
                await store.commit(Delete(each.key, each.meta.version))
            if isinstance(cluster, Cluster) and len(usable) < len(keys):
                status = msgspec.structs.replace(cluster.status, keys=tuple(usable))
                await store.commit(Put(cluster.changed(status=status)))
            if settings.durable and (known_marker := read_marker(settings.marker_file)) is not None:
                revision = (await store.list(Cluster.kind)).revision
                raised = MarkerContent(cluster=known_marker.cluster, epoch=known_marker.epoch, revision=revision)
                write_marker(settings.marker_file, raised)
    return [str(each.key) for each in lost]
