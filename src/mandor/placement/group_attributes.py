"""Rank and identity of the instances of each group, cached until their workload changes."""

from collections.abc import Callable, Mapping

from mandor.model.instance import Instance
from mandor.model.meta import Key, Object
from mandor.model.priority import PriorityClass
from mandor.model.workload import Workload
from mandor.placement.claims import CLAIM_RANK
from mandor.placement.conversion import identity_of, rank_of, workload_key
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.occupancy import ORDINARY, Rank

PARTS_MOST = 1024
"""Groups and releases of a workload whose identities are cached."""


class GroupAttributes:
    """Ranks and identities by workload and group."""

    def __init__(self, find: Callable[[Key], Object | None]) -> None:
        """`find` returns the current workload."""
        self._classes: dict[str, PriorityClass] = {}
        self._find = find
        self._ranks: dict[tuple[str, str], dict[str, Rank]] = {}
        """Ranks by namespace and workload, then by group."""
        self._identities: dict[Key, dict[tuple[str, str], Identity]] = {}
        """Identities by workload, then by group and release."""
        self._namespaces: dict[str, Mapping[str, str]] = {}
        """Labels of namespaces that have some."""

    def rank(self, instance: Instance) -> Rank:
        spec = instance.spec
        if spec.claim is not None:
            return CLAIM_RANK
        name, group = (instance.meta.namespace, spec.workload), spec.group
        groups = self._ranks.get(name)
        if groups is None:
            groups = self._ranks[name] = {}
        found = groups.get(group)
        if found is None:
            workload = self._find(workload_key(instance))
            found = rank_of(workload, group, self._classes) if isinstance(workload, Workload) else ORDINARY
            groups[group] = found
        return found

    def set_class(self, name: str, now: PriorityClass | None) -> list[Key]:
        """Set a priority class, or remove it; return the workloads whose ranks have changed."""
        if now is None:
            self._classes.pop(name, None)
        else:
            self._classes[name] = now
        changed = []
        for (namespace, workload), ranks in list(self._ranks.items()):
            key = Key(Workload.kind, namespace, workload)
            found = self._find(key)
            if isinstance(found, Workload):
                current = {group: rank_of(found, group, self._classes) for group in ranks}
                if current != ranks:
                    self._ranks[namespace, workload] = current
                    changed.append(key)
        return changed

    def identity(self, instance: Instance) -> Identity:
        key, part = workload_key(instance), (instance.spec.group, instance.spec.release)
        parts = self._identities.setdefault(key, {})
        found = parts.get(part)
        if found is None:
            workload = self._find(key)
            there = self._namespaces.get(key.namespace)
            found = identity_of(instance, workload if isinstance(workload, Workload) else None, there)
            if len(parts) >= PARTS_MOST:
                del parts[next(iter(parts))]
            parts[part] = found
        return found

    def forget(self, workload: Key) -> None:
        """Drop ranks and identities of a workload that has changed."""
        self._ranks.pop((workload.namespace, workload.name), None)
        self._identities.pop(workload, None)

    def set_namespace(self, name: str, labels: Mapping[str, str]) -> list[Key]:
        """Set the labels of a namespace; return the workloads whose identities have changed."""
        if self._namespaces.get(name, {}) == labels:
            return []
        self._namespaces.pop(name, None)
        if labels:
            self._namespaces[name] = labels
        changed = [key for key in self._identities if key.namespace == name]
        for key in changed:
            del self._identities[key]
        return changed
