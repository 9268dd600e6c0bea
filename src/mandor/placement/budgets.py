"""Disruption budgets: how many more instances of a group may be disrupted now.

Only available instances count, so every disruption in progress is included: roll-outs, moves, drains, preemption,
crashes and lost nodes.
"""

from collections.abc import Callable, Iterable, Sequence

from mandor.lib.steps import FEW, WRITTEN, Steps, pieces
from mandor.model.instance import Instance
from mandor.model.meta import Key, Object
from mandor.model.phase import Phase
from mandor.model.workload import Workload, WorkloadSpec
from mandor.placement.allocation_state import AllocationState, Group


def spare(spec: WorkloadSpec, group: str, members: Iterable[Instance]) -> int | None:
    """Return how many more of these members may be disrupted; None: any number."""
    least = _least(spec, group)
    return None if least is None else sum(map(available, members)) - least


def may_stop(spec: WorkloadSpec, group: str, serving: int) -> int | None:
    """Return how many of `serving` available instances may be moved; None: any number.

    A stop-first group also keeps the limit of its updates: without a budget, all of it would be down at once.
    """
    wanted = spec.groups[group]
    if spec.type != "service" or wanted.update.order != "stop-first":
        least = _least(spec, group)
        return None if least is None else serving - least
    return serving - (wanted.count - wanted.update_room()[1])


def available(instance: Instance) -> bool:
    return instance.phase is Phase.RUNNING and instance.status.ready and instance.spec.stop is None


def _least(spec: WorkloadSpec, group: str) -> int | None:
    """Return the number of instances that must stay available; None: the group has no budget."""
    wanted = spec.batch.together if spec.batch is not None else spec.groups[group].count
    most = spec.groups[group].disruption.most_unavailable(wanted)
    return None if most is None else max(0, wanted - most)


class Budgets:
    """The budgets of all groups, updated by changes and written to the allocation state."""

    def __init__(self, allocations: AllocationState) -> None:
        self._allocations = allocations
        self._least: dict[Group, int] = {}
        """Instances that must stay available, by group."""
        self._available: dict[Group, set[Key]] = {}

    def set_workload(self, key: Key, workload: Workload | None) -> frozenset[Group]:
        """Update the budgets of a workload; return the groups with a new budget, which have to be counted."""
        least = _all_least(workload) if workload is not None else {}
        old = {group for group in self._least if group[:2] == (key.namespace, key.name)}
        for group in old - least.keys():
            del self._least[group], self._available[group]
            self._allocations.allow(group, None)
        new = frozenset(least.keys() - old)
        self._least |= least
        self._available |= {group: set() for group in new}
        for group in least:
            self._update(group)
        return new

    def count(self, groups: frozenset[Group], keys: Sequence[Key], find: Callable[[Key], Object | None]) -> Steps[None]:
        """Count the available instances of groups. `keys`: their instances; each is read when its turn comes."""
        for piece in pieces(keys, FEW):
            for key in piece:
                now = find(key)
                if isinstance(now, Instance) and _group(now) in groups:
                    self.see(None, now)
            yield WRITTEN * len(piece)

    @property
    def any(self) -> bool:
        """Return whether any group has a budget."""
        return bool(self._least)

    def see(self, before: Object | None, after: Object | None) -> None:
        """Apply a change of an instance."""
        known = after if isinstance(after, Instance) else before
        if not self._least or not isinstance(known, Instance) or _group(known) not in self._least:
            return
        if isinstance(after, Instance) and available(after):
            self._available[_group(known)].add(known.key)
        else:
            self._available[_group(known)].discard(known.key)
        self._update(_group(known))

    def _update(self, group: Group) -> None:
        self._allocations.allow(group, len(self._available[group]) - self._least[group])


def _all_least(workload: Workload) -> dict[Group, int]:
    meta = workload.meta
    found = {(meta.namespace, meta.name, name): _least(workload.spec, name) for name in workload.spec.groups}
    return {group: least for group, least in found.items() if least is not None}


def _group(instance: Instance) -> Group:
    return instance.meta.namespace, instance.spec.workload, instance.spec.group
