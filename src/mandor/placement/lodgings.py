"""Who lodges on which node, read from the table: those whose tenure is out of the ordinary, and what budgets allow."""

from collections.abc import Collection
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

from mandor.model.meta import Key
from mandor.placement.framework.ask import Shape
from mandor.placement.framework.census import Census
from mandor.placement.framework.identity import NOBODY, Identity
from mandor.placement.framework.lodging import SETTLED, Going, Level, Lodger, Tenure
from mandor.placement.levels import Levels

if TYPE_CHECKING:
    from mandor.placement.charge import Trial
    from mandor.placement.table import Table

_new_tuple = tuple.__new__  # half the time of Lodger(…), and there are many
Group = tuple[str, str, str]
"""Namespace, workload, group."""


class Lodgings:
    """One of the table; it says who comes and who leaves."""

    def __init__(self, table: "Table", levels: Levels, census: Census) -> None:
        self._table = table
        self._census = census
        self._levels = levels
        self._stopping: set[Key] = set()
        self._held: dict[Key, int] = {}
        """Their priorities."""
        self._settled: dict[int, int] = {}
        """How many, by priority."""
        self._allowed: dict[Group, int] = {}
        """How many more of a group may be disrupted."""

    # What is tried out.

    def trial(self) -> "AbstractContextManager[Trial]":
        return self._table.trial()

    def set_charge(self, key: Key, node: str, shape: Shape, who: Identity = NOBODY, tenure: Tenure = SETTLED) -> None:
        self._table.set_charge(key, node, shape, who, tenure)

    def drop_charge(self, key: Key) -> bool:
        return self._table.drop_charge(key)

    # Who is there.

    def lodgers(self, node: str) -> list[Lodger]:
        """The most important first."""
        return sorted(map(self._lodger, self._table.keys_on(node)), key=_importance)

    def stopping(self) -> list[tuple[str, Lodger]]:
        return self._named(self._stopping) if self._stopping else []

    def going(self) -> Going:
        return self._levels.going()

    def held(self) -> list[tuple[str, Lodger]]:
        return self._named(self._held) if self._held else []

    def lowest_held(self) -> int | None:
        return min(self._held.values()) if self._held else None

    def lowest(self) -> int | None:
        return min(self._settled, default=None)

    def levels(self, below: int) -> list[Level]:
        return self._levels.below(below)

    # Budgets.

    def allowed(self, who: Identity) -> int | None:
        return self._allowed.get((who.namespace, who.workload, who.group)) if self._allowed else None

    def allow(self, group: Group, count: int | None) -> None:
        """So many more of a group may be disrupted; None: as many as anybody likes."""
        if self._allowed.get(group) == count:
            return
        self._table.version += 1
        if count is None:
            del self._allowed[group]
        else:
            self._allowed[group] = count

    def spend(self, who: Identity, times: int = 1) -> None:
        """Within a trial: so many of its group are disrupted."""
        group = (who.namespace, who.workload, who.group)
        allowed = self._allowed.get(group)
        if allowed is not None:
            self.allow(group, allowed - times)
            self._table.undo_by(partial(self.allow, group, allowed))

    def tight(self) -> list[tuple[str, Lodger]]:
        found: list[tuple[str, Lodger]] = []
        for group in sorted(group for group, count in self._allowed.items() if count <= 0):
            for who in self._census.of_group(*group):
                for node in sorted(self._census.nodes_of(who)):
                    found += [(node, each) for each in self.lodgers(node) if each.who == who and each.tenure.settled]
        return found

    # What only the table calls.

    def come(self, key: Key, tenure: Tenure, count: int = 1) -> None:
        """`count`: so many that are settled like this one."""
        if tenure.held:
            self._held[key] = tenure.rank.priority
        elif tenure.until is not None:
            self._stopping.add(key)
        else:
            priority = tenure.rank.priority
            self._settled[priority] = self._settled.get(priority, 0) + count

    def leave(self, key: Key, tenure: Tenure) -> None:
        if tenure.held:
            self._held.pop(key, None)
        elif tenure.until is not None:
            self._stopping.discard(key)
        else:
            priority = tenure.rank.priority
            left = self._settled[priority] - 1
            if left:
                self._settled[priority] = left
            else:
                del self._settled[priority]

    def _lodger(self, key: Key) -> Lodger:
        charge = self._table.charges[key]
        return _new_tuple(Lodger, (key, charge.shape, charge.who, charge.tenure))

    def _named(self, keys: Collection[Key]) -> list[tuple[str, Lodger]]:
        return [(self._table.charges[key].node, self._lodger(key)) for key in sorted(keys)]


def _importance(lodger: Lodger) -> tuple[int, float, Key]:
    return lodger.importance
