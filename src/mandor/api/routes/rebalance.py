"""What a rebalance would move, and for what; nothing is written."""

from typing import Annotated

from msgspec import Meta as Note
from msgspec import Struct

from mandor.api.gate import Gate
from mandor.api.http.fair_queue import Lane
from mandor.api.operation import Call, Operation, Text
from mandor.api.scheduling import Bench
from mandor.model.codec import encode
from mandor.model.image import tagged
from mandor.model.rebalance import PlannedMove, RebalanceSpec
from mandor.placement.cluster_model import ClusterModel
from mandor.placement.rebalance import MoveSearch

_USUAL = RebalanceSpec()


class RebalanceQuery(Struct, frozen=True, forbid_unknown_fields=True):
    moves: Annotated[int, Note(ge=1, le=100, description="So many instances would move at most.")] = _USUAL.moves
    min_gain: Annotated[int, Note(ge=1, le=100_000, description="What a move must gain.")] = _USUAL.min_gain


class Proposal(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A move, and what it costs."""

    instance: str
    namespace: str
    workload: str
    source: str
    to: str
    gain: int
    """In points of the scheduler's scores: its own, and what those gain or lose by it who stay on the two nodes."""
    own: int
    because: str = ""
    cpu_milli: int = 0
    """So much is taken twice until the other one serves."""
    memory_bytes: int = 0
    fetches: tuple[str, ...] = ()
    """Images that are not on that node yet."""


class RebalanceReport(Struct, frozen=True, omit_defaults=True, kw_only=True):
    moves: tuple[Proposal, ...] = ()
    hidden: int = 0
    """Of namespaces that the asker does not see."""
    resting: int = 0
    """So many were moved not long ago, and stay for now."""
    staying: int = 0
    """So many are no services, have volumes or are to stay; or their service is not whole, or is being rolled out."""
    complete: bool = True
    """False: it takes too long to look at everybody."""


async def plan_rebalance(call: Call[RebalanceQuery, None]) -> Text:
    call.caller.require_somewhere("plan", "workload", what="ask for plans")
    spec = RebalanceSpec(moves=call.query.moves, min_gain=call.query.min_gain)

    def answer(bench: Bench) -> bytes:
        board = bench.board()
        search = MoveSearch(board, bench.profiles(board), spec, now=call.parts.clock.now(), watch=bench.guard)
        complete = not any(bench.enough() for _ in search.steps())
        seen = [each for each in search.found if call.caller.sees(each.namespace)]
        return encode(
            RebalanceReport(
                moves=tuple(_told(board, each) for each in seen),
                hidden=len(search.found) - len(seen),
                resting=search.resting,
                staying=search.staying,
                complete=complete,
            )
        )

    return Text(await call.parts.desk.work(answer))


def _told(board: ClusterModel, move: PlannedMove) -> Proposal:
    allocation = board.table.allocation(move.key)
    assert allocation is not None  # it was found there
    cpu, memory = allocation.shape.counted
    there = board.nodes[move.to].status.images
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
        summary="What a rebalance would move, for what gain and at what cost; nothing is written",
        tag="placement",
        gate=Gate(verbs=("plan",), kind="workload"),
        handler=plan_rebalance,
        query=RebalanceQuery,
        result=RebalanceReport,
        lane=Lane.FORECAST,
    ),
]
