"""Volumes of this node: created before their instances start, and deleted when their objects are."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from mandor.agent.feed import Source
from mandor.agent.journal import Blocking
from mandor.agent.launch import source_name, subpath_of, user_of
from mandor.agent.machine import Machine
from mandor.agent.order import Order
from mandor.agent.volume_folder import VolumeFolders, VolumeRecord
from mandor.agent.volume_subpath import make_subpaths
from mandor.errors import Conflict, Forbidden, MandorError, Unavailable
from mandor.lib.clock import Clock, wait_event
from mandor.model.allowance import Allowance
from mandor.model.group import GroupTemplate
from mandor.model.instance import volume_names
from mandor.model.meta import Key, Object
from mandor.model.user_range import mapped_user
from mandor.model.volume import Volume, path_allowed
from mandor.store.base import Change, Put, Store

log = logging.getLogger(__name__)

SWEEP_SECONDS = 60.0
TRIES_MOST = 5


@dataclass(frozen=True, slots=True)
class PreparedVolumes:
    """The volumes of an instance that are ready, and what is wrong with the others."""

    sources: Mapping[str, str] = field(default_factory=dict)
    """Path on this node by name in the group, and of subpaths as `NAME/SUBPATH`; tmpfs volumes are left out."""
    new: frozenset[str] = frozenset()
    """Names of the volumes that no task has used yet."""
    refusal: str = ""
    """Why the instance can never start here."""
    missing: str = ""
    """Why the instance cannot start or restart now."""


class _Refused(Exception):
    pass


class _Missing(Exception):
    pass


class VolumeKeeper:
    """Creates, checks and deletes the volumes of this node."""

    def __init__(
        self,
        node: str,
        folder: Path,
        host_paths: Sequence[str],
        machine: Machine,
        store: Store,
        clock: Clock,
        blocking: Blocking,
        *,
        in_use: Callable[[Key], bool],
    ) -> None:
        """`in_use`: returns whether an instance of this node may still use the volume."""
        self._node, self._store, self._clock, self._blocking, self._in_use = node, store, clock, blocking, in_use
        self._folders = VolumeFolders(folder)
        self._machine = machine
        self._host_paths = [machine.real_path(path) for path in host_paths]
        self._ready: set[tuple[str, Key]] = set()
        """Volumes that were checked before the start of an instance, by its uid."""
        self._known: dict[Key, Volume] = {}
        self._source: Source | None = None
        self._news = asyncio.Event()

    # Before an instance starts.

    async def prepare(self, order: Order, *, begun: bool, mapped: bool = False) -> PreparedVolumes:
        """Create the volumes of an instance; `mapped`: its engine maps the user ids of namespaces to others."""
        template, instance = order.template, order.instance
        if template is None or not template.volumes:
            return PreparedVolumes()
        names = volume_names(template.volumes, instance.spec.workload, instance.spec.group, instance.meta.name)
        sources: dict[str, str] = {}
        new = set[str]()
        try:
            for name, volume in template.volumes.items():
                user = _owner(order, template, name, mapped=mapped)
                if volume.path is not None:
                    sources[name] = self._host(volume.path, order.allowance)
                elif volume.type == "scratch":
                    sources[name] = await self._scratch(order, name, user, begun=begun)
                    sources |= await self._subpaths(order, name, Path(sources[name]))
                elif name in names:
                    key = Key(Volume.kind, instance.meta.namespace, names[name])
                    sources[name] = await self._local(key, order, user, begun=begun)
                    sources |= await self._subpaths(order, name, Path(sources[name]))
                    if _seeds(template, name) and (record := self._folders.record(key)) is not None and record.new:
                        new.add(name)
        except _Refused as refused:
            return (
                PreparedVolumes(sources, missing=str(refused))
                if begun
                else PreparedVolumes(sources, refusal=str(refused))
            )
        except _Missing as missing:
            return PreparedVolumes(sources, missing=str(missing))
        return PreparedVolumes(sources, frozenset(new))

    async def mark_used(self, order: Order, names: frozenset[str]) -> None:
        """Record that a task uses these volumes: from now on they are not new, even if a task empties them."""
        if order.template is None:
            return
        spec = order.instance.spec
        held = volume_names(order.template.volumes, spec.workload, spec.group, order.instance.meta.name)
        for name in names & held.keys():
            key = Key(Volume.kind, order.instance.meta.namespace, held[name])
            await self._blocking(self._folders.mark_used, key)

    async def _subpaths(self, order: Order, name: str, data: Path) -> dict[str, str]:
        """Create the directories of the volume that tasks mount by subpath; return all that the volume has."""
        assert order.template is not None
        wanted = {
            subpath_of(order, task_name, mount)
            for task_name, task in order.template.tasks.items()
            for mount in task.mounts
            if mount.volume == name and mount.subpath
        }
        try:
            found = await self._blocking(make_subpaths, data, wanted)
        except OSError as error:
            raise _Missing(f"cannot create a subpath of volume {name}: {error}") from error
        return {source_name(name, subpath): str(path) for subpath, path in found.items()}

    def _host(self, path: str, allowance: Allowance) -> str:
        """Return the host path with symbolic links resolved, if the agent and the namespace both allow it.

        The API server has checked the path as it is written; only the node can resolve its links."""
        real = self._machine.real_path(path)
        if not path_allowed(real, self._host_paths):
            raise _Refused(f"host path {path} is not allowed on this node; its agent allows: {self._allowed()}")
        own = allowance.rules.host_paths
        if own is not None and not path_allowed(real, [self._machine.real_path(each) for each in own]):
            raise _Refused(
                f"host path {path} resolves to {real} on this node, which namespace {allowance.name} does not"
                f" allow; it allows: {', '.join(own) or 'none'}"
            )
        if not self._machine.has_path(real):
            raise _Refused(f"host path {path} does not exist on this node")
        return real

    def _allowed(self) -> str:
        return ", ".join(self._host_paths) or "none (--allow-host-path)"

    async def _scratch(self, order: Order, name: str, user: str | None, *, begun: bool) -> str:
        assert order.template is not None
        folder, volume = self._folders.scratch(order.uid, name), order.template.volumes[name]
        if begun and not folder.is_dir():
            raise _Missing(f"the directory of volume {name} is missing: {folder}")
        owner = volume.owner or user
        try:
            await self._blocking(lambda: self._folders.make_scratch(folder, owner=owner, mode=volume.mode))
        except OSError as error:
            raise _Missing(f"cannot create the directory of volume {name}: {error}") from error
        return str(folder)

    async def clear(self, uid: str) -> None:
        """Delete the scratch volumes of an instance that has ended."""
        if self._folders.has_scratch(uid):
            await self._blocking(self._folders.remove_scratch, uid)

    async def _local(self, key: Key, order: Order, user: str | None, *, begun: bool) -> str:
        data = self._folders.data(key)
        if begun or (order.uid, key) in self._ready:
            if not data.is_dir():
                raise _Missing(f"the directory of volume {key.name} is missing: {data}")
            return str(data)
        try:
            found = await self._store.get(key)
        except Unavailable as error:
            if self._folders.record(key) is None:
                raise _Missing(
                    f"volume {key.name} is not on this node yet, and the control plane is unavailable: {error}"
                ) from error
        except Forbidden as error:
            raise _Refused(f"volume {key.name} is not on this node") from error
        else:
            await self._found(key, found, order, user)
        self._ready.add((order.uid, key))
        return str(data)

    async def _found(self, key: Key, volume: Object | None, order: Order, user: str | None) -> None:
        if not isinstance(volume, Volume):
            raise _Refused(f"volume {key.name} does not exist")
        if volume.status.node != self._node:
            raise _Refused(f"volume {key.name} is on node {volume.status.node or '(none yet)'}, not on this one")
        record = self._folders.record(key)
        if record is None or not record.is_of(volume):
            if volume.status.path and volume.spec.on_loss == "wait":
                raise _Missing(
                    f"the directory of volume {key.name} is missing: {volume.status.path}; restore it, or delete the"
                    " volume to start with an empty one"
                )
            await self._make(key, volume, order, user)
        await self._report(volume)

    async def _make(self, key: Key, volume: Volume, order: Order, user: str | None) -> None:
        record = VolumeRecord(
            uid=volume.meta.uid,
            incarnation=volume.status.incarnation,
            cluster=order.cluster,
            epoch=order.epoch,
            version=volume.meta.version,
            new=True,
        )
        owner = volume.spec.owner or user
        try:
            await self._blocking(lambda: self._folders.make(key, record, owner=owner, mode=volume.spec.mode))
        except OSError as error:
            raise _Missing(f"cannot create the directory of volume {key.name}: {error}") from error
        log.info("created volume %s/%s", key.namespace, key.name)
        self._news.set()

    async def _report(self, volume: Volume) -> None:
        """Write the path to the volume's status, before any data is written: from then on it stays on this node."""
        path = str(self._folders.data(volume.key))
        for _ in range(TRIES_MOST):
            if volume.status.path == path:
                return
            try:
                await self._store.commit(Put(volume.changed(status=msgspec.structs.replace(volume.status, path=path))))
                return
            except Conflict:
                again = await self._store.get(volume.key)
                if not isinstance(again, Volume) or again.meta.uid != volume.meta.uid or again.node != self._node:
                    raise _Refused(f"volume {volume.meta.name} is no longer on this node") from None
                volume = again
        raise _Missing(f"volume {volume.meta.name} changed {TRIES_MOST} times while its path was written")

    def release(self, uid: str) -> None:
        """Forget an instance that was removed, and check for volumes to delete."""
        self._ready = {each for each in self._ready if each[0] != uid}
        self._news.set()

    # Reader of the feed.

    def listed(self, items: Sequence[Object], source: Source) -> None:
        self._known = {each.key: each for each in items if isinstance(each, Volume)}
        self._source = source
        self._news.set()

    def changed(self, change: Change, source: Source) -> None:
        if isinstance(change.after, Volume) and change.after.node == self._node:
            self._known[change.key] = change.after
        else:
            self._known.pop(change.key, None)
        self._source = source
        self._news.set()

    def lost(self, error: MandorError, failures: int) -> None:
        log.debug("cannot watch the node's volumes: %s", error)

    async def run(self) -> None:
        """Delete the directories of volumes that were deleted or recreated elsewhere; failures are retried."""
        await self._blocking(self._folders.empty_trash)
        while True:
            self._news.clear()
            some = self._folders.any
            try:
                if some:
                    await self._sweep()
            except OSError as error:
                log.warning("cannot delete a volume: %s", error)
            await wait_event(self._clock, SWEEP_SECONDS if some else None, self._news)

    async def _sweep(self) -> None:
        if self._source is None:
            return
        for key, record in list(self._folders.all()):
            if not self._deleted(key, record, self._source) or self._in_use(key):
                continue
            log.info("deleting volume %s/%s", key.namespace, key.name)
            await self._blocking(self._folders.remove, key, record)

    def _deleted(self, key: Key, record: VolumeRecord, source: Source) -> bool:
        """Return whether the cluster and epoch that created the volume no longer list it; others do not count."""
        known = self._known.get(key)
        if known is not None and record.is_of(known):
            return False
        return (record.cluster, record.epoch) == (source.cluster, source.epoch) and record.version <= source.revision


def _seeds(template: GroupTemplate, name: str) -> bool:
    return any(mount.seed and mount.volume == name for task in template.tasks.values() for mount in task.mounts)


def _owner(order: Order, template: GroupTemplate, name: str, *, mapped: bool) -> str | None:
    """Return the user of the first task that mounts the volume, as a number of this node."""
    for task in template.tasks.values():
        user = user_of(order.allowance, task, "process" if task.image is None else "")
        if user is not None and any(mount.volume == name for mount in task.mounts):
            return str(mapped_user(user) if mapped and isinstance(user, int) else user)
    return None
