"""Whose tenure is out of the ordinary, and how many may still be disrupted."""

from mandor.model.meta import Key
from mandor.placement.framework.lodging import Tenure

Group = tuple[str, str, str]
"""Namespace, workload, group."""


class Tenants:
    def __init__(self) -> None:
        self.stopping: set[Key] = set()
        self.held: set[Key] = set()
        self.allowed: dict[Group, int] = {}
        """How many more of a group may be disrupted."""
        self._settled: dict[int, int] = {}
        """How many, by priority."""

    @property
    def lowest(self) -> int | None:
        return min(self._settled, default=None)

    @property
    def tight(self) -> list[Group]:
        return sorted(group for group, count in self.allowed.items() if count <= 0)

    def allow(self, group: Group, count: int | None) -> bool:
        """True: that is new."""
        if self.allowed.get(group) == count:
            return False
        if count is None:
            del self.allowed[group]
        else:
            self.allowed[group] = count
        return True

    def come(self, key: Key, tenure: Tenure) -> None:
        if tenure.held:
            self.held.add(key)
        elif tenure.until is not None:
            self.stopping.add(key)
        else:
            priority = tenure.rank.priority
            self._settled[priority] = self._settled.get(priority, 0) + 1

    def leave(self, key: Key, tenure: Tenure) -> None:
        if tenure.held:
            self.held.discard(key)
        elif tenure.until is not None:
            self.stopping.discard(key)
        else:
            priority = tenure.rank.priority
            left = self._settled[priority] - 1
            if left:
                self._settled[priority] = left
            else:
                del self._settled[priority]
