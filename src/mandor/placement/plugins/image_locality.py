"""ImageLocality: prefers nodes that have the images of the instance."""

from collections.abc import Hashable

from mandor.model.image import tagged
from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.incremental import IncrementalScore, Reach
from mandor.placement.framework.points import SCORE_MOST, SKIP, PreScorePlugin, Skip
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Images, Snapshot

_MB = 1024 * 1024
LEAST_BYTES = 23 * _MB
MOST_BYTES = 1000 * _MB
"""Thresholds in bytes for each task: smaller images count as present, larger ones give no higher score."""


class ImageLocality(PreScorePlugin, IncrementalScore):
    """Kubernetes' formula: the sizes of the images on a node, each times the share of nodes that have it, scaled
    between two thresholds. The share keeps instances from gathering on the one node that has an image."""

    name = "ImageLocality"

    def reach(self, request: PlacementRequest, nodes: Snapshot) -> Reach:
        return Reach.ATTRIBUTES

    def cache_key(self, request: PlacementRequest) -> Hashable:
        return request.shape.image_names

    def pre_score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Skip | None:
        """Skip the score if no node has images: all nodes are equal."""
        return None if any(request.shape.image_names) and nodes.images.where(self.name, bool).any() else SKIP

    def score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Scores:
        wanted = tuple(tagged(name) for name in request.shape.image_names if name)
        tasks, total = len(request.shape.image_names), len(nodes)
        most = MOST_BYTES * tasks
        holders: dict[str, int] = {}

        def score(images: Images) -> int:
            holders.update(holders or _holders(wanted, nodes))
            sizes = dict(images)
            found = sum(int(sizes[name] * (holders[name] / total)) for name in wanted if name in sizes)
            return SCORE_MOST * (min(max(found, LEAST_BYTES), most) - LEAST_BYTES) // (most - LEAST_BYTES)

        return nodes.images.scores((self.name, wanted, tasks), score)


def _holders(wanted: tuple[str, ...], nodes: Snapshot) -> dict[str, int]:
    """Return the number of nodes that have each image."""
    holders = dict.fromkeys(wanted, 0)
    for images, count in nodes.images.tally():
        for name, _ in images:
            if name in holders:
                holders[name] += count
    return holders
