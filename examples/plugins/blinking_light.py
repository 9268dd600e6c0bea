"""BlinkingLight: the node with the most blinking lights wins.

A node says how many it has by a label, `lights` unless the configuration names another:

    mandor agent --label lights=3
"""

from msgspec import Struct

from mandor.placement.framework.column import Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.points import ScorePlugin, scaled
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import NodeView


class BlinkingLightArgs(Struct, frozen=True):
    label: str = "lights"


class BlinkingLight(ScorePlugin):
    """The one-node form: written for a single node, asked for each that fits."""

    name = "BlinkingLight"
    Args = BlinkingLightArgs

    def __init__(self, args: BlinkingLightArgs) -> None:
        self._label = args.label

    def score_node(self, state: CycleState, request: PlacementRequest, view: NodeView) -> int:
        return int(view.facts.get(self._label, "0"))

    def normalize(self, state: CycleState, request: PlacementRequest, scores: Scores) -> Scores:
        # A few lights are a small number out of 100: the node that has most of them gets 100.
        return scaled(scores)
