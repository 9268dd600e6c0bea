"""EngineFit: does the node have an engine that can run it, and a preferred one?"""

from collections.abc import Hashable

from mandor.model.node import Capabilities
from mandor.placement.framework.ask import Ask, Shape
from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.points import (
    NODES,
    SCORE_MOST,
    SKIP,
    FilterPlugin,
    PreScorePlugin,
    Reach,
    ScorePlugin,
    Skip,
)
from mandor.placement.framework.snapshot import Engines, Snapshot


class EngineFit(FilterPlugin, PreScorePlugin, ScorePlugin):
    """The score: 100 for the engine named first, less for each one later in the list."""

    name = "EngineFit"
    retry_on = NODES
    by_class = True

    def reach(self, ask: Ask, nodes: Snapshot) -> Reach:
        return Reach.ATTRIBUTES

    def goes_by(self, ask: Ask) -> Hashable:
        return ask.shape.engines, ask.shape.images, ask.shape.needs

    def filter(self, state: CycleState, ask: Ask, nodes: Snapshot) -> Mask:
        shape = ask.shape
        question = (self.name, shape.engines, shape.images, shape.needs)
        return nodes.engines.where(question, lambda engines: bool(usable(shape, engines)))

    def why(self, ask: Ask, nodes: Snapshot, refused: Mask) -> str:
        wanted = " or ".join(ask.shape.engines) or "any engine"
        kind = {frozenset({True}): "images", frozenset({False}): "commands"}.get(
            ask.shape.images, "images and commands"
        )
        if ask.shape.needs:
            kind += f" and has {', '.join(sorted(ask.shape.needs))}"
        return f"no {wanted} that is up and runs {kind}" if ask.shape.engines else f"no engine is up that runs {kind}"

    def pre_score(self, state: CycleState, ask: Ask, nodes: Snapshot, feasible: Mask) -> Skip | None:
        return SKIP if len(ask.shape.engines) < 2 else None

    def score(self, state: CycleState, ask: Ask, nodes: Snapshot, feasible: Mask) -> Scores:
        shape = ask.shape
        question = (self.name, shape.engines, shape.images, shape.needs)
        return nodes.engines.scores(question, lambda engines: _preference(shape, engines))


def usable(shape: Shape, engines: Engines) -> list[str]:
    """The node's engines that can run it, the preferred first."""
    able = [name for name, capabilities in engines.items if capabilities.up and _runs(shape, capabilities)]
    if not shape.engines:
        return able
    return [name for name in shape.engines if name in able]


def _runs(shape: Shape, capabilities: Capabilities) -> bool:
    """Images need an engine that runs images; a bare command, one that runs the node's own programs."""
    return shape.images == {capabilities.images} and shape.needs <= capabilities.extras


def _preference(shape: Shape, engines: Engines) -> int:
    found = usable(shape, engines)
    if not found:
        return 0
    return SCORE_MOST - SCORE_MOST * shape.engines.index(found[0]) // len(shape.engines)
