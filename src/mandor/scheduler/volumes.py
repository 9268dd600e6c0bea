"""Writes the node of an instance's volumes before the instance is bound; idempotent."""

import logging

import msgspec

from mandor.errors import Conflict, Unavailable
from mandor.lib.clock import Clock
from mandor.model.meta import Meta
from mandor.model.volume import Volume, VolumeSpec
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.volumes import WantedVolume
from mandor.scheduler.binding import NotBound
from mandor.scheduler.store_retry import AFTER_OUTAGE
from mandor.store.base import Put, Store

log = logging.getLogger(__name__)

TRIES_MOST = 5
"""Tries of a commit that conflicts."""


class VolumeWriter:
    """Assigns volumes to nodes. After a crash, a volume without data and users is placed again with its instance."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def write(self, request: PlacementRequest, node: str) -> None:
        """Assign the local volumes of a request to a node; raise `NotBound` if one is on another node or gone."""
        conflicts = outages = 0
        while True:
            try:
                writes = [await self._written(wanted, request, node) for wanted in request.local_volumes]
                changed = [each for each in writes if each is not None]
                if changed:
                    await self._store.commit(*(Put(each) for each in changed))
                return
            except Conflict as error:
                conflicts += 1
                if conflicts == TRIES_MOST:
                    raise NotBound(
                        f"the volumes of {request.key.name} changed during each of {TRIES_MOST} tries: {error}"
                    ) from error
            except Unavailable as error:
                outages += 1
                log.warning(
                    "the store is unavailable, placing the volumes of %s is retried: %s", request.key.name, error
                )
                await self._clock.sleep(AFTER_OUTAGE.pause(outages))

    async def _written(self, wanted: WantedVolume, request: PlacementRequest, node: str) -> Volume | None:
        """Return the volume to write; None: it is on that node already."""
        stored = await self._store.get(wanted.key)
        if not isinstance(stored, Volume):
            if wanted.spec.volume is not None:
                raise NotBound(f"the volume {wanted.key.name} was deleted")
            stored = Volume(meta=Meta(name=wanted.key.name, namespace=wanted.key.namespace), spec=_spec(wanted))
        status = stored.status
        if status.path and status.node != node:
            raise NotBound(f"the volume {wanted.key.name} is now on {status.node}")
        owner = status.workload or request.identity.workload
        placed = stored.changed(status=msgspec.structs.replace(status, node=node, workload=owner))
        return placed if placed != stored or not stored.meta.version else None


def _spec(wanted: WantedVolume) -> VolumeSpec:
    spec = wanted.spec
    return VolumeSpec(size=spec.size, reclaim=spec.reclaim, on_loss=spec.on_loss, owner=spec.owner, mode=spec.mode)
