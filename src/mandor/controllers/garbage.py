"""The garbage controller: deletes expired and orphaned objects every 30 seconds."""

import logging
from collections.abc import Iterable, Mapping, Sequence, Set
from operator import is_
from typing import Any, TypeVar

from mandor.controllers import garbage_plan
from mandor.controllers.base import Controller
from mandor.controllers.garbage_plan import Keep
from mandor.controllers.heartbeats import SERVER
from mandor.controllers.writer import Writer
from mandor.lib.clock import Clock
from mandor.lib.steps import chosen
from mandor.lib.turns import in_turns
from mandor.model.decision import DecisionRecord
from mandor.model.instance import Instance
from mandor.model.meta import Object
from mandor.model.record import Event, HeartbeatSummary, Lease, Server, Session, Token
from mandor.model.usage import UsageSummary
from mandor.model.workload import Release, Workload
from mandor.store.base import Delete, Store
from mandor.store.mirror import Mirror

log = logging.getLogger(__name__)

O = TypeVar("O", bound=Object)  # noqa: E741 - O for object
SWEEP = "sweep"


class GarbageController(Controller[str]):
    """Lists kinds instead of mirroring them: they change often and are read rarely."""

    name = "garbage"
    watches = ()
    workers = 1

    def __init__(self, store: Store, clock: Clock, keep: Keep | None = None) -> None:
        self._store = store
        self._clock = clock
        self._keep = keep or Keep()
        self._seen: dict[str, dict[tuple[str, int], float]] = {}
        self._listed: dict[str, tuple[Sequence[Object], list[Any]]] = {}
        """Last listing and its filtered items by kind; a store without changes returns the same listing object."""
        self._nothing_of: tuple[object, ...] = ()
        """The listings of releases and workloads that were last found to contain no garbage."""

    def begin(self, mirrors: Mapping[str, Mirror]) -> None:
        self._writer = Writer(self._store, {})

    def first(self) -> Iterable[str]:
        return (SWEEP,)

    async def reconcile(self, key: str) -> float | None:
        garbage = [
            *await in_turns(garbage_plan.old_events(await self._list(Event), self._keep, self._clock.now())),
            *await in_turns(
                garbage_plan.old_decisions(await self._list(DecisionRecord), self._keep, self._clock.now())
            ),
            *garbage_plan.expired_tokens(await self._list(Token), self._clock.now()),
            *await self._of_servers(),
            *await self._of_workloads(),
        ]
        if garbage:
            deleted = chosen(garbage, lambda piece: [Delete(each.key, each.meta.version) for each in piece], each=3)
            await self._writer.commit_each(await in_turns(deleted))
            log.info("deleted %d expired or orphaned objects", len(garbage))
        return self._keep.sweep_seconds

    async def _of_servers(self) -> list[Object]:
        leases = [each for each in await self._list(Lease) if each.meta.name.startswith(SERVER)]
        hearings: list[HeartbeatSummary | UsageSummary] = [
            *await self._list(HeartbeatSummary),
            *await self._list(UsageSummary),
        ]
        entries = await self._list(Server)
        unchanged = self._unchanged("leases", [*leases, *hearings])
        dead = garbage_plan.dead_servers(leases, unchanged, self._keep)
        live = [each for each in leases if each not in dead]
        servers = {each.meta.name.removeprefix(SERVER) for each in live}
        addresses = {each.spec.address for each in live}
        return [
            *dead,
            *garbage_plan.dead_servers(entries, self._unchanged("servers", entries), self._keep),
            *garbage_plan.orphaned_hearings(hearings, servers, unchanged, self._keep),
            *garbage_plan.stale_sessions(await self._list(Session), addresses, self._keep, self._clock.now()),
        ]

    async def _of_workloads(self) -> list[Object]:
        # Releases first: a workload exists before its releases and instances.
        releases = await self._list(Release)
        listed = (releases, await self._list(Workload))
        if len(self._nothing_of) == len(listed) and all(map(is_, self._nothing_of, listed)):
            return []
        if not garbage_plan.concerned(releases, _by_name(listed[1])):
            self._nothing_of = listed
            return []
        instances = (await self._store.list(Instance.kind)).items
        workloads = _by_name(await self._list(Workload))
        concerned = garbage_plan.concerned(releases, workloads)
        found = await in_turns(chosen(instances, lambda piece: _of(concerned, piece), each=2))
        return [
            *await in_turns(garbage_plan.finished_instances(found, workloads, self._keep, self._clock.now())),
            *await in_turns(garbage_plan.orphaned_releases(releases, workloads.keys(), found)),
        ]

    def _unchanged(self, group: str, values: Iterable[Object]) -> dict[str, float]:
        """Return the seconds since each object last changed, on this process's clock."""
        now, known = self._clock.monotonic(), self._seen.get(group, {})
        seen = {
            (each.meta.name, each.meta.version): known.get((each.meta.name, each.meta.version), now) for each in values
        }
        self._seen[group] = seen
        return {name: now - at for (name, _), at in seen.items()}

    async def _list(self, kind: type[O]) -> list[O]:
        items = (await self._store.list(kind.kind)).items
        known = self._listed.get(kind.kind)
        if known is None or known[0] is not items:
            found = await in_turns(chosen(items, lambda piece: [each for each in piece if isinstance(each, kind)]))
            known = self._listed[kind.kind] = items, found
        return known[1]


def _by_name(workloads: Iterable[Workload]) -> dict[tuple[str, str], Workload]:
    return {(each.meta.namespace, each.meta.name): each for each in workloads}


def _of(workloads: Set[tuple[str, str]], objects: Sequence[Object]) -> list[Instance]:
    return [
        each
        for each in objects
        if isinstance(each, Instance) and (each.meta.namespace, each.spec.workload) in workloads
    ]
