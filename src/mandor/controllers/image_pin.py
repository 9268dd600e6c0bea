"""ImagePinController: pins the images of a release to the digests that a node first reports for them."""

from collections.abc import Iterable
from typing import ClassVar

import msgspec

from mandor.controllers.base import Controller
from mandor.errors import Conflict
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.meta import Key
from mandor.model.pin import images_of
from mandor.model.workload import Release
from mandor.store.base import Change, Put, Store

AGAIN_SECONDS = 0.1


def with_pins(release: Release, reported: InstanceStatus) -> Release | None:
    """Return the release with digests for images that had none; None if there is nothing new."""
    known = release.status.images
    new = {
        image: digest for image, digest in (reported.images or {}).items() if image not in known and "@" not in image
    }
    new = {image: digest for image, digest in new.items() if image in images_of(release)}
    if not new:
        return None
    return release.changed(status=msgspec.structs.replace(release.status, images={**known, **new}))


class ImagePinController(Controller[Key]):
    """Keys are those of instances whose nodes report digests."""

    name: ClassVar[str] = "image-pin"
    watches: ClassVar[tuple[str, ...]] = (Instance.kind,)
    workers: ClassVar[int] = 1

    def __init__(self, store: Store) -> None:
        self._store = store

    def observe(self, change: Change) -> Iterable[Key]:
        before, after = change.before, change.after
        if not isinstance(after, Instance) or not after.status.images:
            return ()
        same = isinstance(before, Instance) and before.status.images == after.status.images
        return () if same else (after.key,)

    async def reconcile(self, key: Key) -> float | None:
        instance = await self._store.get(key)
        if not isinstance(instance, Instance) or not instance.status.images:
            return None
        release = await self._store.get(Key(Release.kind, key.namespace, instance.spec.release))
        pinned = with_pins(release, instance.status) if isinstance(release, Release) else None
        if pinned is None:
            return None
        try:
            await self._store.commit(Put(pinned))
        except Conflict:
            return AGAIN_SECONDS
        return None
