"""Tallies: sums the usage of autoscaled groups over the nodes that send heartbeats to this server."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import is_

from mandor.model.meta import Meta
from mandor.model.usage import GroupUsage, InstanceUsage, UsageSummary, UsageSummarySpec, usage_key
from mandor.model.workload import Workload
from mandor.store.base import Delete, Put, Store, Write

TALLY_SECONDS = 5.0
"""Shortest time between two writes; agents measure about every ten seconds."""
GROUPS_MOST = 1000
"""Groups per stored object."""


class Tallies:
    """Collects the reports of nodes about autoscaled groups, and returns the writes of their sums."""

    def __init__(self, server_id: str) -> None:
        self._server_id = server_id
        self._groups: frozenset[str] = frozenset()
        self._workloads: Sequence[object] = ()
        """The workloads that `_groups` was computed from."""
        self._by_node: dict[str, dict[str, GroupUsage]] = {}
        self._due_at = 0.0
        self._may_be_stored = True
        """Whether the store may hold a tally of this server."""

    def record(self, node: str, instances: Mapping[str, InstanceUsage]) -> None:
        if not self._groups:
            return
        used: dict[str, GroupUsage] = {}
        for name, each in instances.items():
            group = name.rpartition("-")[0]
            if group in self._groups and not each.warming:
                one = GroupUsage(1, each.cpu_milli, each.memory_bytes)
                used[group] = used[group] + one if group in used else one
        if used:
            self._by_node[node] = used
        else:
            self._by_node.pop(node, None)

    def forget(self, node: str) -> None:
        self._by_node.pop(node, None)

    async def writes(self, store: Store, now: float) -> list[Write]:
        """Return the writes of changed tallies; empty until `TALLY_SECONDS` have passed."""
        if now < self._due_at:
            return []
        self._due_at = now + TALLY_SECONDS
        workloads = (await store.list(Workload.kind)).items
        if not _same(workloads, self._workloads):
            self._groups, self._workloads = frozenset(_scaled(workloads)), workloads
        if not (self._groups or self._may_be_stored):
            return []
        stored = {each.meta.name: each for each in await self.stored(store)}
        wanted = dict(self._wanted())
        self._may_be_stored = bool(stored or wanted)
        writes: list[Write] = [Delete(each.key, each.meta.version) for n, each in stored.items() if n not in wanted]
        for name, spec in wanted.items():
            known = stored.get(name)
            if known is None or known.spec != spec:
                writes.append(Put(UsageSummary(meta=known.meta if known is not None else Meta(name=name), spec=spec)))
        return writes

    async def stored(self, store: Store) -> list[UsageSummary]:
        found = (await store.list(UsageSummary.kind)).items
        return [each for each in found if isinstance(each, UsageSummary) and each.server == self._server_id]

    def _wanted(self) -> Iterator[tuple[str, UsageSummarySpec]]:
        sums: dict[str, GroupUsage] = {}
        for used in self._by_node.values():
            for group, each in used.items():
                if group in self._groups:
                    sums[group] = sums[group] + each if group in sums else each
        names = sorted(sums)
        for number, start in enumerate(range(0, len(names), GROUPS_MOST)):
            some = {name: sums[name] for name in names[start : start + GROUPS_MOST]}
            yield f"{self._server_id}.{number}" if number else self._server_id, UsageSummarySpec(some)


def _same(some: Sequence[object], others: Sequence[object]) -> bool:
    """Return whether both sequences hold the same objects, which are immutable."""
    return some is others or (len(some) == len(others) and all(map(is_, some, others)))


def _scaled(workloads: Iterable[object]) -> Iterator[str]:
    for each in workloads:
        if isinstance(each, Workload):
            for name, group in each.spec.groups.items():
                if group.autoscale is not None:
                    yield usage_key(each.meta.namespace, each.meta.name, name)
