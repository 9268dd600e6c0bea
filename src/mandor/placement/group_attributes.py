"""Rank and identity of the instances of each group, cached until their workload changes."""

from collections.abc import Callable

from mandor.model.instance import Instance
from mandor.model.meta import Key, Object
from mandor.model.priority import PriorityClass
from mandor.model.workload import Workload
from mandor.placement.claims import CLAIM_RANK
from mandor.placement.conversion import class_name, identity_of, rank_of, workload_key
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.occupancy import ORDINARY, Rank


class GroupAttributes:
    """Ranks and identities by workload and group."""

    def __init__(self, find: Callable[[Key], Object | None]) -> None:
        """`find` returns the current workload."""
        self.classes: dict[str, PriorityClass] = {}
        self._find = find
        self._ranks: dict[tuple[str, str], dict[str, Rank]] = {}
        """Ranks by namespace and workload, then by group."""
        self._identities: dict[Key, dict[str, Identity]] = {}
        """Identities by workload, then by group."""

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
            found = rank_of(workload, group, self.classes) if isinstance(workload, Workload) else ORDINARY
            groups[group] = found
        return found

    def forget_ranks(self, workload: Key) -> None:
        """Drop the ranks of a workload after a change of it or of its priority class."""
        self._ranks.pop((workload.namespace, workload.name), None)

    def identity(self, instance: Instance) -> Identity:
        key, group = workload_key(instance), instance.spec.group
        groups = self._identities.setdefault(key, {})
        found = groups.get(group)
        if found is None:
            workload = self._find(key)
            found = identity_of(instance, workload if isinstance(workload, Workload) else None)
            groups[group] = found
        return found

    def relabel(self, workload: Key, now: Workload | None) -> list[tuple[Identity, Identity]]:
        """Update the identities of a workload's groups to its labels; return the pairs of old and new that differ."""
        known = self._identities.pop(workload, {})
        if now is None:
            return []
        named = class_name(now)
        made = {group: Identity(workload.namespace, workload.name, group, now.meta.labels, named) for group in known}
        self._identities[workload] = made
        return [(old, made[group]) for group, old in known.items() if made[group] != old]
