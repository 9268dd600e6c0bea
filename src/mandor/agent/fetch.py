"""Reads the release, workload, namespace and secrets that an order needs besides the instance."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mandor import __version__
from mandor.agent.feed import Source
from mandor.agent.order import NamespaceView, Supervision
from mandor.errors import MandorError, NotFound, Unavailable
from mandor.lib.bounded import bounded
from mandor.lib.clock import Clock
from mandor.model.group import GroupTemplate
from mandor.model.instance import Instance
from mandor.model.meta import Key, Object
from mandor.model.pin import with_digests
from mandor.model.priority import PriorityClass, class_of
from mandor.model.record import Namespace
from mandor.model.secret import Secret, pick, secret_of
from mandor.model.unknown_fields import unknown_fields_of
from mandor.model.workload import Release, Workload
from mandor.store.base import Change, Store

RELEASES_MOST = 256
CARE_SECONDS = 2.0
"""Seconds that a workload or namespace is cached, so that instances that end together cause one read."""


class SecretValues(NamedTuple):
    """Values of secrets by reference, and the content ids of the secrets by name."""

    values: dict[str, str]
    content_ids: dict[str, str]


class Fetch:
    """Reads and caches objects of the control plane; concurrent reads are combined."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._releases: OrderedDict[Key, tuple[int, Release]] = OrderedDict()
        """Releases, each with the version of the instance for which it was read."""
        self._recent: dict[Key, tuple[float, Workload | Namespace]] = {}
        self._classes: tuple[float, dict[str, PriorityClass]] | None = None
        self._reads: dict[Key, asyncio.Future[Object | None]] = {}
        self._unread: list[Key] = []
        self._reader: asyncio.Task[None] | None = None

    async def template_and_supervision(self, instance: Instance) -> tuple[GroupTemplate, Supervision | None]:
        """Return the template and restart policy; the namespace is read with them and cached for `namespace_view`."""
        release, workload, _ = await self._find(
            instance, _release_key(instance), _workload_key(instance), _namespace_key(instance)
        )
        return self._template(instance, release), await self._supervision(instance, workload)

    async def namespace_view(self, instance: Instance) -> NamespaceView | None:
        """Return the namespace of an instance; None: it does not exist."""
        (found,) = await self._find(instance, _namespace_key(instance))
        return NamespaceView.of(found) if isinstance(found, Namespace) else None

    async def template(self, instance: Instance) -> GroupTemplate:
        """Return the template in the variant that was placed. Raise `NotFound` if the release or variant is missing,
        or if it has fields that this version of the agent does not know: the order can then never run here."""
        (release,) = await self._find(instance, _release_key(instance))
        return self._template(instance, release)

    async def _find(self, instance: Instance, *keys: Key) -> list[Object | None]:
        """Return the objects, from the cache where it is recent enough; the others are read together."""
        version = instance.meta.version
        found = {key: self._known(key, version) for key in keys}
        reads = {key: self._read(key) for key, known in found.items() if known is None}
        for key, answer in reads.items():
            found[key] = value = await asyncio.shield(answer)
            self._keep(value, version)
        return list(found.values())

    def _known(self, key: Key, version: int) -> Object | None:
        read_for, release = self._releases.get(key, (0, None))
        # A workload that was deleted and created again has releases of the same names: a release that was read before
        # this instance was written may be an old one.
        if release is not None and read_for >= version:
            self._releases.move_to_end(key)
            return release
        at, value = self._recent.get(key, (0.0, None))
        return value if self._clock.monotonic() - at <= CARE_SECONDS else None

    def _template(self, instance: Instance, release: Object | None) -> GroupTemplate:
        if not isinstance(release, Release):
            raise NotFound(f"release {instance.spec.release} does not exist")
        template = release.spec.groups.get(instance.spec.group)
        if template is None:
            raise NotFound(f"release {instance.spec.release} has no group {instance.spec.group}")
        unknown = unknown_fields_of(release.meta)
        if unknown is not None and (more := unknown.below("spec", "groups", instance.spec.group)).parts:
            raise NotFound(f"this agent (version {__version__}) does not know fields of its release: {more}")
        if instance.spec.variant > len(template.alternatives):
            raise NotFound(f"release {instance.spec.release} has no alternative {instance.spec.variant}")
        return with_digests(release, template.form(instance.spec.variant))

    def _keep(self, value: Object | None, version: int) -> None:
        if isinstance(value, Release):
            self._releases[value.key] = version, value
            self._releases.move_to_end(value.key)
            if len(self._releases) > RELEASES_MOST:
                self._releases.popitem(last=False)
        elif isinstance(value, Workload | Namespace):
            now = self._clock.monotonic()
            self._recent = {key: each for key, each in self._recent.items() if now - each[0] <= CARE_SECONDS}
            self._recent[value.key] = (now, value)

    # Reader of the feed: releases, workloads and namespaces that come with orders need not be read.

    def listed(self, items: Sequence[Object], source: Source) -> None:
        """Do nothing: lists contain no releases, workloads or namespaces."""

    def changed(self, change: Change, source: Source) -> None:
        self._keep(change.after, change.revision)

    def lost(self, error: MandorError, failures: int) -> None:
        """Do nothing: missing objects are read when they are needed."""

    async def secrets(self, instance: Instance, references: Iterable[str]) -> SecretValues:
        """Read the values by reference; `NotFound` names a secret or a key that does not exist."""
        found: dict[str, str] = {}
        ids: dict[str, str] = {}
        for reference in sorted(references):
            secret = await asyncio.shield(self._read(Key(Secret.kind, instance.meta.namespace, secret_of(reference))))
            if not isinstance(secret, Secret):
                raise NotFound(f"secret {secret_of(reference)} does not exist")
            value = pick(reference, secret.spec.values)
            if value is None:
                keys = ", ".join(sorted(secret.spec.values)) or "(none)"
                raise NotFound(f"{reference!r} names no value of the secret {secret_of(reference)}; its keys: {keys}")
            found[reference] = value
            ids[secret.meta.name] = secret.content_id
        return SecretValues(found, ids)

    async def supervision(self, instance: Instance) -> Supervision | None:
        """Return the restart policy and priority; None: the workload or its group no longer exists."""
        (workload,) = await self._find(instance, _workload_key(instance))
        return await self._supervision(instance, workload)

    async def _supervision(self, instance: Instance, workload: Object | None) -> Supervision | None:
        if not isinstance(workload, Workload):
            return None
        return Supervision.of(workload, instance.spec.group, await self._priority(workload))

    async def _priority(self, workload: Workload) -> int:
        given = workload.spec.priority
        if isinstance(given, int):
            return given
        now = self._clock.monotonic()
        if self._classes is None or now - self._classes[0] > CARE_SECONDS:
            found = (await self._store.list(PriorityClass.kind)).items
            self._classes = now, {each.meta.name: each for each in found if isinstance(each, PriorityClass)}
        return class_of(given, self._classes[1]).value

    async def template_quickly(self, instance: Instance, seconds: float) -> GroupTemplate | None:
        """Return `template`, or None if it is not available within `seconds`."""
        try:
            return await bounded(seconds, self.template(instance))
        except (Unavailable, NotFound, TimeoutError, OSError):
            return None

    async def namespace_view_quickly(self, instance: Instance, seconds: float) -> NamespaceView | None:
        """Return `namespace_view`, or None if it is not available within `seconds`."""
        try:
            return await bounded(seconds, self.namespace_view(instance))
        except (Unavailable, TimeoutError, OSError):
            return None

    async def supervision_quickly(self, instance: Instance, seconds: float) -> Supervision | None:
        """Return `supervision`, or None if it is not available within `seconds`: a restart does not wait longer."""
        try:
            return await bounded(seconds, self.supervision(instance))
        except (Unavailable, TimeoutError, OSError):
            return None

    def _read(self, key: Key) -> asyncio.Future[Object | None]:
        """Return a future for the object; concurrent callers share one read, since orders come in bursts."""
        answer = self._reads.get(key)
        if answer is None:
            answer = self._reads[key] = asyncio.get_running_loop().create_future()
            self._unread.append(key)
            if self._reader is None:
                self._reader = asyncio.ensure_future(self._run_reads())
        return answer

    async def _run_reads(self) -> None:
        try:
            while self._unread:
                await asyncio.sleep(0)  # collects the keys of orders that arrived together
                keys, self._unread = self._unread, []
                await self._read_all(keys)
        finally:
            self._reader = None

    async def _read_all(self, keys: Sequence[Key]) -> None:
        try:
            found = await self._store.get_all(keys)
        except MandorError as error:
            for key in keys:
                answer = self._reads.pop(key)
                answer.set_exception(error)
                answer.exception()  # marks it as retrieved: the caller may have been cancelled
        else:
            for key, value in zip(keys, found, strict=True):
                self._reads.pop(key).set_result(value)

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        for answer in self._reads.values():
            answer.cancel()


def _release_key(instance: Instance) -> Key:
    return Key(Release.kind, instance.meta.namespace, instance.spec.release)


def _namespace_key(instance: Instance) -> Key:
    return Key(Namespace.kind, "", instance.meta.namespace)


def _workload_key(instance: Instance) -> Key:
    return Key(Workload.kind, instance.meta.namespace, instance.spec.workload)
