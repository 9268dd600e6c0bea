"""SecretUsers: the workloads whose instances react to changes of a secret, for the two controllers of `on_change`."""

from collections.abc import Callable, Iterable

from mandor.model.group import Group
from mandor.model.meta import Key
from mandor.model.secret import Secret
from mandor.model.workload import Workload
from mandor.store.base import Change, Store

AGAIN_SECONDS = 0.1
"""Seconds until a workload is reconciled again after a write conflict."""
NO_NAMES = frozenset[str]()


class SecretUsers:
    """Index of workloads by secret, and of secrets by workload. Workloads without any such secret are left out."""

    def __init__(self, secrets_of: Callable[[Iterable[Group]], frozenset[str]]) -> None:
        """`secrets_of`: returns the names of the secrets whose changes concern the groups of a workload."""
        self._secrets_of = secrets_of
        self._names: dict[Key, frozenset[str]] = {}
        """Names of secrets by workload."""
        self._users: dict[Key, dict[Key, None]] = {}
        """Workloads by secret."""

    def __bool__(self) -> bool:
        return bool(self._names)

    def __contains__(self, workload: Key) -> bool:
        return workload in self._names

    def names(self, workload: Key) -> frozenset[str]:
        """Return the names of the workload's secrets; they are in its namespace."""
        return self._names.get(workload, NO_NAMES)

    def observe_secret(self, change: Change) -> tuple[Key, ...]:
        """Return the workloads to reconcile: those with this secret, if its value changed."""
        before, after = change.before, change.after
        same = isinstance(before, Secret) and isinstance(after, Secret) and before.content_id == after.content_id
        return () if same or after is None else tuple(self._users.get(after.key, ()))

    def observe_workload(self, change: Change) -> tuple[Key, ...]:
        """Update the index; return the key of the workload if it has such secrets."""
        if change.status_only:
            return ()
        key, after = change.value.key, change.after
        self._set(key, self._secrets_of(after.spec.groups.values()) if isinstance(after, Workload) else NO_NAMES)
        return (key,) if key in self._names else ()

    def _set(self, workload: Key, names: frozenset[str]) -> None:
        for name in self._names.pop(workload, NO_NAMES) - names:
            secret = Key(Secret.kind, workload.namespace, name)
            self._users[secret].pop(workload, None)
            if not self._users[secret]:
                del self._users[secret]
        if names:
            self._names[workload] = names
            for name in names:
                self._users.setdefault(Key(Secret.kind, workload.namespace, name), {})[workload] = None


async def content_ids(store: Store, namespace: str, names: Iterable[str]) -> dict[str, str]:
    """Return the content ids of existing secrets, read from the store because a mirror can lag behind."""
    found = {name: await store.get(Key(Secret.kind, namespace, name)) for name in sorted(names)}
    return {name: each.content_id for name, each in found.items() if isinstance(each, Secret)}
