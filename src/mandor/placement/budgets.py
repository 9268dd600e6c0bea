"""How many more of a group may be disrupted now: the one answer for whoever has a choice.

Only what is available counts, so everything that is under way is counted: roll-outs, moves, drains, preemption, and
what crashed or was lost, which asked nobody.
"""

from collections.abc import Callable, Iterable, Sequence

from mandor.lib.steps import FEW, WRITTEN, Steps, pieces
from mandor.model.instance import Instance
from mandor.model.meta import Key, Object
from mandor.model.phase import Phase
from mandor.model.workload import Workload, WorkloadSpec
from mandor.placement.allocation_state import AllocationState, Group


def spare(spec: WorkloadSpec, group: str, members: Iterable[Instance]) -> int | None:
    """How many more of the group may be disrupted now, which has these members; None: any number."""
    least = _least(spec, group)
    return None if least is None else sum(map(available, members)) - least


def may_stop(spec: WorkloadSpec, group: str, serving: int) -> int | None:
    """The same for whoever moves them, of a group of which so many are available. What stops first because its author
    wants it so keeps to the limit of an update, too: without a budget, all of it would be away at once."""
    wish = spec.groups[group]
    if spec.type != "service" or wish.update.order != "stop-first":
        least = _least(spec, group)
        return None if least is None else serving - least
    return serving - (wish.count - wish.update_room()[1])


def available(instance: Instance) -> bool:
    return instance.phase is Phase.RUNNING and instance.status.ready and instance.spec.stop is None


def _least(spec: WorkloadSpec, group: str) -> int | None:
    """So many of the group must stay available; None: it has no budget."""
    wanted = spec.batch.parallelism if spec.batch is not None else spec.groups[group].count
    most = spec.groups[group].disruption.most_unavailable(wanted)
    return None if most is None else max(0, wanted - most)


class Budgets:
    """The same of all groups, kept by changes and told to the table. Only groups with a budget cost anything."""

    def __init__(self, lodgings: AllocationState) -> None:
        self._lodgings = lodgings
        self._least: dict[Group, int] = {}
        """So many must stay available."""
        self._available: dict[Group, set[Key]] = {}

    def set_workload(self, key: Key, workload: Workload | None) -> frozenset[Group]:
        """The groups that have a new budget: they are to be counted before anybody goes by it."""
        least = _all_least(workload) if workload is not None else {}
        old = {group for group in self._least if group[:2] == (key.namespace, key.name)}
        for group in old - least.keys():
            del self._least[group], self._available[group]
            self._lodgings.allow(group, None)
        new = frozenset(least.keys() - old)
        self._least |= least
        self._available |= {group: set() for group in new}
        for group in least:
            self._tell(group)
        return new

    def count(
        self, groups: frozenset[Group], instances: Callable[[], Sequence[Object]], now: Callable[[Key], Object | None]
    ) -> Steps[None]:
        """`instances`: all there are, or all of these groups. What changes between two steps is seen, so each is taken
        as it is `now`."""
        workloads = {workload for _, workload, _ in groups}
        for piece in pieces(instances() if groups else (), FEW):
            theirs = [each for each in piece if isinstance(each, Instance) and each.spec.workload in workloads]
            for each in theirs:
                if _group(each) in groups:
                    self.see(each, now(each.key))
            yield len(piece) + WRITTEN * len(theirs)

    @property
    def any(self) -> bool:
        """Somebody has one."""
        return bool(self._least)

    def see(self, before: Object | None, after: Object | None) -> None:
        """An instance as it was and as it is."""
        known = after if isinstance(after, Instance) else before
        if not self._least or not isinstance(known, Instance) or _group(known) not in self._least:
            return
        if isinstance(after, Instance) and available(after):
            self._available[_group(known)].add(known.key)
        else:
            self._available[_group(known)].discard(known.key)
        self._tell(_group(known))

    def _tell(self, group: Group) -> None:
        self._lodgings.allow(group, len(self._available[group]) - self._least[group])


def _all_least(workload: Workload) -> dict[Group, int]:
    meta = workload.meta
    found = {(meta.namespace, meta.name, name): _least(workload.spec, name) for name in workload.spec.groups}
    return {group: least for group, least in found.items() if least is not None}


def _group(instance: Instance) -> Group:
    return instance.meta.namespace, instance.spec.workload, instance.spec.group
