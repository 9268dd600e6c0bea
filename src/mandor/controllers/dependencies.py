"""Which workloads wait for which: kept by changes of workloads."""

from collections.abc import Set

from mandor.model.workload import Workload

Named = tuple[str, str]
"""Namespace and workload."""


class Dependencies:
    """Only workloads that depend on others cost anything."""

    def __init__(self) -> None:
        self._of: dict[Named, frozenset[str]] = {}
        self._on: dict[Named, set[Named]] = {}

    def set(self, namespace: str, name: str, workload: Workload | None) -> None:
        groups = workload.spec.groups if workload is not None else {}
        named = {other for group in groups.values() for other in group.depends_on if other not in groups}
        key, before = (namespace, name), self._of.pop((namespace, name), frozenset())
        for other in before - named:
            self._on[namespace, other].discard(key)
            if not self._on[namespace, other]:
                del self._on[namespace, other]
        for other in named:
            self._on.setdefault((namespace, other), set()).add(key)
        if named:
            self._of[key] = frozenset(named)

    def on(self, namespace: str, name: str) -> Set[Named]:
        """Those who wait for it."""
        return self._on.get((namespace, name), frozenset())
