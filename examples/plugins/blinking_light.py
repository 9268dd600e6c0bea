"""BlinkingLight: prefers the node with the most blinking lights.

A label of the node, `lights` unless the configuration names another, is the number of its lights:

    mandor agent --label lights=3
"""

from msgspec import Struct

from mandor.plugin import CycleState, NodeView, PlacementRequest, ScorePlugin, Scores, scaled


class BlinkingLightArgs(Struct, frozen=True):
    label: str = "lights"


class BlinkingLight(ScorePlugin):
    """A Score of one node at a time, called for each node that fits."""

    name = "BlinkingLight"
    Args = BlinkingLightArgs

    def __init__(self, args: BlinkingLightArgs) -> None:
        self._label = args.label

    def score_node(self, state: CycleState, request: PlacementRequest, view: NodeView) -> int:
        return int(view.facts.get(self._label, "0"))

    def normalize(self, state: CycleState, request: PlacementRequest, scores: Scores) -> Scores:
        # The node with the most lights gets 100, the others their share of it.
        return scaled(scores)
