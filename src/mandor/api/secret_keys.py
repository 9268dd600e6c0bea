"""Data keys of a cluster: kept in its cluster object, sealed under the master keys of the servers.

Values are sealed with data keys; servers hold only master keys. All servers of a cluster therefore agree on the data
keys, and a server whose master keys cannot open them is refused.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec import Struct

from mandor.api.cluster import KEY
from mandor.api.sealed_values import SEALED, key_ids, resealed
from mandor.errors import Conflict, Invalid, MandorError
from mandor.lib.backoff import Backoff
from mandor.lib.sealing import KEY_BYTES, KeyRing, Sealer, Unsealable, key_id_of
from mandor.model.codec import encode
from mandor.model.meta import Object
from mandor.model.record import Cluster, SealingKey, Server
from mandor.store.base import Change, Listing, Put, Store
from mandor.store.list_watch import ListWatch

log = logging.getLogger("mandor.keys")

FEATURE = "sealing-keys"
BACKOFF = Backoff(first_seconds=5.0, most_seconds=5.0)
TRIES = 5
SETTLE_SECONDS = 3.0  # until other servers have read a new data key
YIELD_EVERY = 50  # objects; between them other requests are answered
HINT = "servers of one cluster share one key: copy `secrets.key` of another server, or name it with --secrets-key"


class Rotated(Struct, frozen=True, kw_only=True):
    key: str
    """Id of the new data key."""
    resealed: int
    """Objects whose values were sealed anew."""
    dropped: tuple[str, ...] = ()
    """Ids of data keys that nothing uses any more."""


def _about(cluster: str, key_id: str) -> str:
    return f"data key {key_id} of cluster {cluster}"


def new_key(master: Sealer, cluster: str, now: float) -> SealingKey:
    """Return a new data key, sealed under the first master key."""
    key = os.urandom(KEY_BYTES)
    key_id = Sealer(key).key_id
    return SealingKey(id=key_id, sealed=master.seal(key.hex(), _about(cluster, key_id)), created_at=now)


def open_keys(master: KeyRing, cluster: str, keys: Sequence[SealingKey]) -> list[Sealer]:
    """Return the data keys, the newest first; raise `Invalid` if this server lacks the master key of one."""
    found = []
    for each in reversed(keys):
        try:
            found.append(Sealer(bytes.fromhex(master.open(each.sealed, _about(cluster, each.id)))))
        except Unsealable as error:
            raise Invalid(
                f"the key for secrets of this server is {', '.join(master.key_ids)}, and the cluster's secrets are "
                f"sealed under {key_id_of(each.sealed) or '?'}",
                hint=HINT,
            ) from error
    return found


def check_openable(ring: KeyRing, items: Iterable[Object]) -> None:
    """Raise `Invalid` if a stored value was sealed with a key that is not on the ring."""
    for item in items:
        lacking = key_ids(item) - set(ring.key_ids)
        if lacking:
            raise Invalid(
                f"the {item.key} was sealed with the key {min(lacking) or '?'}, and this server has "
                f"{', '.join(ring.key_ids)}",
                hint=HINT,
            )


class Keys:
    """The key ring of this server, kept equal to the cluster's data keys."""

    def __init__(self, store: Store, master: KeyRing) -> None:
        self._store, self._master = store, master
        self.living: Callable[[], Sequence[Server]] = tuple
        """Returns the live servers of the cluster."""
        self.ring = KeyRing(master.sealers)
        self.trouble = ""
        """The error that prevents the use of the cluster's data keys; empty: none."""

    @property
    def master_ids(self) -> tuple[str, ...]:
        return self._master.key_ids

    async def begin(self, now: float) -> None:
        """Create the first data key of a cluster that has none, once every server can use it."""
        if not (await self._cluster()).status.keys:
            await self.add(now)

    async def load(self) -> None:
        """Load the data keys of the cluster; raise `Invalid` if they, or a sealed value, cannot be opened."""
        self._take(await self._cluster())
        for kind in SEALED:
            check_openable(self.ring, (await self._store.list(kind)).items)

    async def run(self) -> None:
        """Follow changes of the data keys."""
        await ListWatch(self._store, Cluster.kind, backoff=BACKOFF).run(self._listed, self._changed, _interrupted)

    async def _listed(self, listing: Listing) -> None:
        self._take_or_report(listing.items)

    async def _changed(self, changes: Sequence[Change]) -> None:
        self._take_or_report([each.after for each in changes if each.after is not None])

    def _take_or_report(self, items: Iterable[Object]) -> None:
        for item in items:
            if isinstance(item, Cluster):
                try:
                    self._take(item)
                    self.trouble = ""
                except Invalid as error:
                    self.trouble = str(error)
                    log.error("%s", error)

    def _take(self, cluster: Cluster) -> None:
        opened = open_keys(self._master, cluster.spec.id, cluster.status.keys)
        self.ring.use([*opened, *self._master.sealers])

    async def _cluster(self) -> Cluster:
        found = await self._store.get(KEY)
        if not isinstance(found, Cluster):
            raise Invalid("the store does not hold a cluster")
        return found

    # Rotation.

    async def rotate(self, now: float) -> "Rotated":
        """Seal everything with a new data key, and drop the keys that nothing uses afterwards."""
        lacking = [each for each in self.living() if self._master.key_id not in each.spec.keys]
        if lacking:
            shown = lacking[0].spec.address or lacking[0].meta.name
            raise Conflict(
                f"the server {shown} does not have the master key {self._master.key_id}",
                hint="give all servers the same keys, restart them, and try again",
            )
        made = await self.add(now)
        if len(self.living()) > 1:
            await self._settle()
        count = await self.reseal()
        return Rotated(key=made, resealed=count, dropped=tuple(await self.drop_unused()))

    async def _settle(self) -> None:
        """Wait until other servers seal with the new key, so that nothing is sealed with a key that is then dropped."""
        await asyncio.sleep(SETTLE_SECONDS)

    async def add(self, now: float) -> str:
        """Create a data key that seals from now on; return its id."""
        for _ in range(TRIES):
            cluster = await self._cluster()
            made = new_key(self._master, cluster.spec.id, now)
            keys = (*cluster.status.keys, made)
            changed = cluster.changed(status=msgspec.structs.replace(cluster.status, keys=keys))
            try:
                await self._store.commit(Put(changed))
            except Conflict:
                continue
            self._take(changed)
            return made.id
        raise Conflict("the keys for secrets are being changed by another server", hint="try again")

    async def reseal(self) -> int:
        """Seal every stored value with the newest key, one object at a time; return the number of changed objects."""
        count = 0
        for kind in SEALED:
            for number, item in enumerate((await self._store.list(kind)).items):
                count += await self._reseal_one(item)
                if number % YIELD_EVERY == 0:
                    await asyncio.sleep(0)
        return count

    async def _reseal_one(self, item: Object) -> int:
        found: Object | None = item
        for _ in range(TRIES):
            if found is None or key_ids(found) <= {self.ring.key_id}:
                return 0
            try:
                await self._store.commit(Put(resealed(self.ring, found)))
            except Conflict:
                found = await self._store.get(item.key)
                continue
            return 1
        return 0

    async def drop_unused(self) -> list[str]:
        """Delete data keys, except the newest, that no stored object uses; return their ids."""
        used = set()
        cluster = await self._cluster()
        marks = {each.id: f"v1.{each.id}.".encode() for each in cluster.status.keys[:-1]}
        for item in (await self._store.list(None)).items:
            if item.kind == Cluster.kind or not marks:
                continue
            data = encode(item)
            used |= {key_id for key_id, mark in marks.items() if mark in data}
        dropped = [key_id for key_id in marks if key_id not in used]
        if dropped:
            kept = tuple(each for each in cluster.status.keys if each.id not in dropped)
            changed = cluster.changed(status=msgspec.structs.replace(cluster.status, keys=kept))
            await self._store.commit(Put(changed))
            self._take(changed)
        return dropped


def _interrupted(error: MandorError, failures: int) -> None:
    log.warning("cannot follow the keys for secrets: %s", error)
