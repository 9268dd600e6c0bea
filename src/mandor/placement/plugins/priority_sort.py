"""PrioritySort: higher priorities first, then the longest waiting."""

from collections.abc import Hashable

from mandor.placement.framework.points import QueueSortPlugin
from mandor.placement.framework.request import PlacementRequest


class PrioritySort(QueueSortPlugin):
    name = "PrioritySort"

    def sort_key(self, request: PlacementRequest, queued_at: float) -> Hashable:
        return (-request.priority, queued_at)
