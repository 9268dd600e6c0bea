"""How many more of each group may be disrupted: kept by changes, and told to the table."""

from collections.abc import Iterable

from mandor.model.instance import Instance
from mandor.model.meta import Key, Object
from mandor.model.phase import Phase
from mandor.model.workload import Workload
from mandor.placement.lodgings import Group, Lodgings


class Budgets:
    """Only groups with a budget cost anything."""

    def __init__(self, lodgings: Lodgings) -> None:
        self._lodgings = lodgings
        self._least: dict[Group, int] = {}
        """So many must stay available."""
        self._available: dict[Group, set[Key]] = {}

    def set_workload(self, key: Key, workload: Workload | None, instances: Iterable[Object]) -> None:
        """`instances`: all there are; they are looked at only if there is a new budget."""
        least = _least(workload) if workload is not None else {}
        old = {group for group in self._least if group[:2] == (key.namespace, key.name)}
        for group in old - least.keys():
            del self._least[group], self._available[group]
            self._lodgings.allow(group, None)
        new = least.keys() - old
        self._least |= least
        if new:
            self._available |= {group: set() for group in new}
            for each in instances:
                if isinstance(each, Instance) and _group(each) in new and _available(each):
                    self._available[_group(each)].add(each.key)
        for group in least:
            self._tell(group)

    def see(self, before: Object | None, after: Object | None) -> None:
        """An instance as it was and as it is."""
        known = after if isinstance(after, Instance) else before
        if not self._least or not isinstance(known, Instance) or _group(known) not in self._least:
            return
        if isinstance(after, Instance) and _available(after):
            self._available[_group(known)].add(known.key)
        else:
            self._available[_group(known)].discard(known.key)
        self._tell(_group(known))

    def _tell(self, group: Group) -> None:
        self._lodgings.allow(group, len(self._available[group]) - self._least[group])


def _least(workload: Workload) -> dict[Group, int]:
    spec, meta = workload.spec, workload.meta
    found = {}
    for name, group in spec.groups.items():
        wanted = spec.batch.parallelism if spec.batch is not None else group.count
        most = group.disruption.most_unavailable(wanted)
        if most is not None:
            found[meta.namespace, meta.name, name] = max(0, wanted - most)
    return found


def _available(instance: Instance) -> bool:
    return instance.phase is Phase.RUNNING and instance.status.ready and instance.spec.stop is None


def _group(instance: Instance) -> Group:
    return instance.meta.namespace, instance.spec.workload, instance.spec.group
