"""Registry of the servers of a cluster: their versions, and the features that all of them support."""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from mandor.errors import Conflict, MandorError, Unsupported
from mandor.lib.clock import Clock
from mandor.lib.versions import SKEW_MOST, compatible
from mandor.model.meta import Key, Meta
from mandor.model.record import Server, ServerSpec
from mandor.store.base import Delete, Put, Store

log = logging.getLogger(__name__)

RENEW_SHARE = 0.2  # of the time after which an entry counts as dead
LEAVE_SECONDS = 2.0


@dataclass(slots=True)
class _Observation:
    """A server's entry, and when it last changed on this server's monotonic clock."""

    server: Server
    at: float


class ServerRegistry:
    """Call `enter` once, then `run`. A server is live while its entry keeps changing, on the observer's clock."""

    def __init__(self, store: Store, clock: Clock, name: str, own: ServerSpec) -> None:
        self._store, self._clock, self._name = store, clock, name
        self._own = own
        self._entry: Server | None = None
        self._seen: dict[str, _Observation] = {}

    # Queries.

    def living(self) -> list[Server]:
        """Return all live servers, this one included."""
        now = self._clock.monotonic()
        return [each.server for each in self._seen.values() if now - each.at < each.server.spec.seconds]

    def everywhere(self) -> frozenset[str]:
        """Return the features that every live server supports."""
        common = frozenset(self._own.features)
        for each in self.living():
            common &= frozenset(each.spec.features)
        return common

    def lacking(self, feature: str) -> list[str]:
        """Return the names and versions of the live servers without this feature."""
        return [_shown(each) for each in self.living() if feature not in each.spec.features]

    # The own entry.

    async def enter(self) -> None:
        """Write this server's entry; raise `Unsupported` if a live server has an incompatible version."""
        await self._look()
        others = [each.server for each in self._seen.values()]
        foreign = [each for each in others if not compatible(self._own.version, each.spec.version)]
        if foreign:
            await self._refuse_if_alive(foreign)
        await self._renew()

    async def _refuse_if_alive(self, foreign: list[Server]) -> None:
        """Wait until the entries expire; raise `Unsupported` as soon as one of them changes."""
        until = self._clock.monotonic() + max(each.spec.seconds for each in foreign)
        versions = {each.meta.name: each.meta.version for each in foreign}
        while self._clock.monotonic() < until:
            await self._clock.sleep(1.0)
            await self._look()
            for name, version in versions.items():
                found = self._seen.get(name)
                if found is not None and found.server.meta.version != version:
                    raise Unsupported(
                        f"this server has version {self._own.version}, but {_shown(found.server)} is running: servers "
                        f"of one cluster may differ by {SKEW_MOST} minor version",
                        hint="upgrade all servers one minor version at a time",
                    )

    async def run(self) -> None:
        """Renew the entry and read the others until cancelled; then delete the entry."""
        try:
            while True:
                try:
                    await self._renew()
                    await self._look()
                except MandorError as error:
                    self._entry = None
                    log.warning("cannot update the registry of servers: %s", error)
                await self._clock.sleep(self._own.seconds * RENEW_SHARE)
        finally:
            await self._leave()

    async def _renew(self) -> None:
        if self._entry is None:
            found = await self._store.get(Key(Server.kind, "", self._name))
            self._entry = found if isinstance(found, Server) else None
        before = self._entry
        count = before.spec.renewals + 1 if before is not None else 1
        spec = msgspec.structs.replace(self._own, renewals=count)
        entry = before.changed(spec=spec) if before is not None else Server(meta=Meta(name=self._name), spec=spec)
        try:
            await self._store.commit(Put(entry))
        finally:
            self._entry = None  # the outcome is unknown: read it again before the next renewal
        found = await self._store.get(entry.key)
        if isinstance(found, Server):
            self._entry = found
            self._seen[self._name] = _Observation(found, self._clock.monotonic())

    async def _look(self) -> None:
        now = self._clock.monotonic()
        seen: dict[str, _Observation] = {}
        for each in await self._listed():
            known = self._seen.get(each.meta.name)
            fresh = known is None or known.server.meta.version != each.meta.version
            seen[each.meta.name] = _Observation(each, now) if fresh or known is None else known
        self._seen = seen

    async def _listed(self) -> list[Server]:
        return [each for each in (await self._store.list(Server.kind)).items if isinstance(each, Server)]

    async def _leave(self) -> None:
        """Delete the entry, so that other servers need not wait until it expires."""
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                found = await self._store.get(Key(Server.kind, "", self._name))
                if found is not None:
                    with suppress(Conflict):
                        await self._store.commit(Delete(found.key, found.meta.version))
        except (MandorError, TimeoutError) as error:
            log.info("the registry entry was not deleted and will expire: %s", error)


def _shown(server: Server) -> str:
    return f"{server.spec.address or server.meta.name} ({server.spec.version})"
