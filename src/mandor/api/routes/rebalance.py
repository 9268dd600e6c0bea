"""Plan of a rebalance: the moves that it would make, with gain and cost; nothing is written."""

from typing import Annotated

from msgspec import Meta as Note
from msgspec import Struct

from mandor.api.gate import Gate
from mandor.api.http.fair_queue import Lane
from mandor.api.operation import Call, Operation, Text
from mandor.api.scheduling import ForecastWorkspace
from mandor.model.codec import encode
from mandor.model.image import tagged
from mandor.model.rebalance import PlannedMove, RebalanceSpec
from mandor.placement.cluster_model import ClusterModel
from mandor.placement.rebalance import MoveSearch

_DEFAULTS = RebalanceSpec()


class RebalanceQuery(Struct, frozen=True, forbid_unknown_fields=True):
    moves: Annotated[int, Note(ge=1, le=100, description="Largest number of instances to move.")] = _DEFAULTS.moves
    min_gain: Annotated[int, Note(ge=1, le=100_000, description="Smallest gain of a move.")] = _DEFAULTS.min_gain
    prefer: Annotated[bool, Note(description="Count `prefer` rules only.")] = False


class Proposal(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A move with its gain and cost."""

    instance: str
    namespace: str
    workload: str
    source: str
    to: str
    gain: int
    """Points of the scheduler's scores: the gain of the instance and of the instances that stay on the two nodes."""
    own: int
    because: str = ""
    cpu_milli: int = 0
    """CPU that is reserved twice until the replacement is ready."""
    memory_bytes: int = 0
    fetches: tuple[str, ...] = ()
    """Images that the target node has to pull."""


class RebalanceReport(Struct, frozen=True, omit_defaults=True, kw_only=True):
    moves: tuple[Proposal, ...] = ()
    hidden: int = 0
    """Number of moves in namespaces that the caller may not read."""
    resting: int = 0
    """Number of instances that were moved recently and stay for now."""
    staying: int = 0
    """Number of instances that cannot move: not a service, with volumes, pinned, unhealthy, or being updated."""
    complete: bool = True
    """False: the time limit was reached before all instances were examined."""


async def plan_rebalance(call: Call[RebalanceQuery, None]) -> Text:
    call.caller.require_somewhere("plan", "workload", what="make plans")
    spec = RebalanceSpec(moves=call.query.moves, min_gain=call.query.min_gain, prefer=call.query.prefer)

    def answer(workspace: ForecastWorkspace) -> bytes:
        model = workspace.model()
        search = MoveSearch(model, workspace.profiles(model), spec, now=call.parts.clock.now(), watch=workspace.guard)
        complete = not any(workspace.expired() for _ in search.steps())
        seen = [each for each in search.found if call.caller.sees(each.namespace)]
        return encode(
            RebalanceReport(
                moves=tuple(_proposal(model, each) for each in seen),
                hidden=len(search.found) - len(seen),
                resting=search.resting,
                staying=search.staying,
                complete=complete,
            )
        )

    return Text(await call.parts.forecasts.run(call.caller.identity, answer))


def _proposal(model: ClusterModel, move: PlannedMove) -> Proposal:
    allocation = model.table.allocation(move.key)
    assert allocation is not None  # it was found there
    cpu, memory = allocation.shape.counted
    there = model.nodes[move.to].status.images
    return Proposal(
        instance=move.instance,
        namespace=move.namespace,
        workload=move.workload,
        source=move.source,
        to=move.to,
        gain=move.gain,
        own=move.own,
        because=move.because,
        cpu_milli=cpu,
        memory_bytes=memory,
        fetches=tuple(
            dict.fromkeys(name for name in allocation.shape.image_names if name and tagged(name) not in there)
        ),
    )


OPERATIONS = [
    Operation(
        method="GET",
        path="/v1/plan/rebalance",
        name="plan_rebalance",
        summary="Plan a rebalance: moves, gain and cost; nothing is written",
        tag="placement",
        gate=Gate(verbs=("plan",), kind="workload"),
        handler=plan_rebalance,
        query=RebalanceQuery,
        result=RebalanceReport,
        lane=Lane.FORECAST,
    ),
]
