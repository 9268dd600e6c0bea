"""EngineFit: filters nodes by their engines and prefers the engine named first."""

from collections.abc import Hashable
from functools import partial

from mandor.model.node import COMMAND, NO_COMMANDS, Capabilities
from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.incremental import IncrementalFilter, IncrementalScore, Reach
from mandor.placement.framework.points import NODE_EVENTS, SCORE_MOST, SKIP, PreScorePlugin, Skip
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.framework.snapshot import Engines, Snapshot


class EngineFit(IncrementalFilter, PreScorePlugin, IncrementalScore):
    """Scores 100 for the engine named first, and less for each later one in the list."""

    name = "EngineFit"
    retry_on = NODE_EVENTS
    by_class = True

    def reach(self, request: PlacementRequest, nodes: Snapshot) -> Reach:
        return Reach.ATTRIBUTES

    def cache_key(self, request: PlacementRequest) -> Hashable:
        return _question(request.shape)

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        shape = request.shape
        return nodes.engines.where((self.name, *_question(shape)), lambda engines: bool(usable(shape, engines)))

    def why(self, request: PlacementRequest, nodes: Snapshot, refused: Mask) -> str:
        shape = request.shape
        wanted = " or ".join(shape.engines)
        kind = {frozenset({True}): "images", frozenset({False}): "commands"}.get(shape.images, "images and commands")
        if needs := shape.needs - {COMMAND}:
            kind += f" and has {', '.join(sorted(needs))}"
        if COMMAND in shape.needs and _refuses_commands(shape, nodes):
            kind += " with a command"
        if shape.engines and shape.machine_on.issuperset(shape.engines):
            kind += " as virtual machines"
        said = f"no {wanted} that is up and runs {kind}" if wanted else f"no engine is up that runs {kind}"
        return said + _down(shape, nodes, refused)

    def pre_score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Skip | None:
        return SKIP if len(request.shape.engines) < 2 else None

    def score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Scores:
        shape = request.shape
        return nodes.engines.scores((self.name, *_question(shape)), lambda engines: _preference(shape, engines))


def _question(shape: Shape) -> tuple[Hashable, ...]:
    """Return the part of the shape that the answer depends on."""
    return shape.engines, shape.images, shape.needs, shape.machine_on


def usable(shape: Shape, engines: Engines) -> list[str]:
    """Return the engines of a node that can run the shape, the preferred one first."""
    able = [name for name, engine in engines.items if engine.up and _runs(shape, name, engine)]
    if not shape.engines:
        return able
    return [name for name in shape.engines if name in able]


def _runs(shape: Shape, name: str, engine: Capabilities) -> bool:
    machine = name not in shape.machine_on or "machines" in engine.extras
    return machine and engine.runs(shape.images, shape.needs)


def _refuses_commands(shape: Shape, nodes: Snapshot) -> bool:
    """Return whether an engine that the shape accepts runs only the programs of its images."""
    return any(
        NO_COMMANDS in engine.extras and (not shape.engines or name in shape.engines)
        for engines, _ in nodes.engines.tally()
        for name, engine in engines.items
    )


def _down(shape: Shape, nodes: Snapshot, refused: Mask) -> str:
    """Return a note about engines that could run the shape and do not respond."""
    said = []
    for name in sorted({name for engines, _ in nodes.engines.tally() for name in engines.names}):
        if shape.engines and name not in shape.engines:
            continue
        mask = refused & nodes.engines.where(("down", name, *_question(shape)), partial(_is_down, shape, name))
        count = int(mask.sum())
        if count == 1:
            found = dict(nodes.engines[int(mask.argmax())].items)[name]
            said.append(f"; {name} is down" + (f": {found.message}" if found.message else ""))
        elif count:
            said.append(f"; {name} is down on {count} of them")
    return "".join(said)


def _is_down(shape: Shape, name: str, engines: Engines) -> bool:
    found = dict(engines.items).get(name)
    return found is not None and not found.up and _runs(shape, name, found)


def _preference(shape: Shape, engines: Engines) -> int:
    found = usable(shape, engines)
    if not found:
        return 0
    return SCORE_MOST - SCORE_MOST * shape.engines.index(found[0]) // len(shape.engines)
