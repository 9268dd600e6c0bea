"""PrioritySort: higher priority first, then whoever has waited longest."""

from collections.abc import Hashable

from mandor.placement.framework.ask import Ask
from mandor.placement.framework.points import QueueSortPlugin


class PrioritySort(QueueSortPlugin):
    name = "PrioritySort"

    def sort_key(self, ask: Ask, queued_at: float) -> Hashable:
        return (-ask.priority, queued_at)
