"""Operations for debugging Mandor itself."""

from mandor.api.gate import Gate
from mandor.api.http.fair_queue import Lane
from mandor.api.operation import Call, Operation
from mandor.errors import NotFound
from mandor.model.record import Lease
from mandor.model.table_report import TableReport


async def compare_table(call: Call[None, None]) -> TableReport:
    """Compare the scheduler's table with the store; a server whose scheduler does not lead names the leader."""
    call.caller.require("debug", "cluster", what="compare the scheduler's table with the store")
    report = await call.parts.compare_table()
    if report is not None:
        return report
    leases = [each for each in (await call.parts.store.list(Lease.kind)).items if isinstance(each, Lease)]
    leaders = [each.spec for each in leases if each.meta.name.startswith("leader-scheduler") and each.spec.holder]
    addresses = ", ".join(sorted({each.address for each in leaders if each.address}))
    raise NotFound(
        "this server's scheduler does not lead, so it has no table",
        hint=f"use the leader: {addresses}" if addresses else "no scheduler leads now; try again in a few seconds",
    )


OPERATIONS = [
    Operation(
        method="GET",
        path="/v1/debug/table",
        name="compareTable",
        summary="Compare the scheduler's table with the store",
        tag="meta",
        gate=Gate(verbs=("debug",), kind="cluster"),
        handler=compare_table,
        result=TableReport,
        refuses=("not_found",),
        lane=Lane.BULK,
    ),
]
