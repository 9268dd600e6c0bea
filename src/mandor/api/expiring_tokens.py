"""ExpiringTokens: counts the tokens that expire soon, without reading all of them."""

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import get_args

from mandor.model.meta import Object
from mandor.model.record import Role, Token, soon_seconds
from mandor.store.base import Change


class ExpiringTokens:
    """Sorted times by role, updated by changes: from such a time on, a token counts as expiring soon."""

    def __init__(self) -> None:
        self._times: dict[Role, list[float]] = {role: [] for role in get_args(Role)}

    def follow(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if (before := _time(change.before)) is not None:
                times = self._times[before[0]]
                del times[bisect_left(times, before[1])]
            if (after := _time(change.after)) is not None:
                insort(self._times[after[0]], after[1])

    def counts(self, now: float) -> dict[tuple[str, ...], float]:
        return {(role,): float(bisect_left(times, now)) for role, times in self._times.items()}


def _time(value: Object | None) -> tuple[Role, float] | None:
    if not isinstance(value, Token) or value.ends_at == math.inf:
        return None
    role = value.spec.role
    return role, value.ends_at - soon_seconds(role, value.lasts_seconds)
