"""Index of `depends_on` between workloads, updated on every workload change."""

from collections.abc import Collection

from mandor.model.workload import Workload

Named = tuple[str, str]
"""Namespace and workload."""


class Dependencies:
    """Stores entries only for workloads that depend on others."""

    def __init__(self) -> None:
        self._of: dict[Named, frozenset[str]] = {}
        self._on: dict[Named, dict[Named, None]] = {}

    def set(self, namespace: str, name: str, workload: Workload | None) -> None:
        groups = workload.spec.groups if workload is not None else {}
        named = {other for group in groups.values() for other in group.depends_on if other not in groups}
        key, before = (namespace, name), self._of.pop((namespace, name), frozenset())
        for other in before - named:
            self._on[namespace, other].pop(key, None)
            if not self._on[namespace, other]:
                del self._on[namespace, other]
        for other in named:
            self._on.setdefault((namespace, other), {})[key] = None
        if named:
            self._of[key] = frozenset(named)

    def on(self, namespace: str, name: str) -> Collection[Named]:
        """Return the workloads that depend on this one, in the order of registration."""
        return self._on.get((namespace, name), {})
