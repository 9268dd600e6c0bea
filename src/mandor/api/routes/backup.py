"""Backup of the whole cluster as a stream."""

from starlette.types import Receive, Send

from mandor.api.gate import Gate
from mandor.api.http.fair_queue import Lane
from mandor.api.operation import Call, Operation, Stream
from mandor.store.dump import dump

CONTENT_TYPE = "application/gzip"


async def backup(call: Call[None, None]) -> Stream:
    """Stream a backup, which contains the hashes of all tokens: it requires the verb `backup` on the cluster."""
    if call.caller.role != "component":
        call.caller.require("backup", "cluster", what="make a backup")
    parts = call.parts
    parts.streams.check(call.caller.identity)
    await parts.store.commit(parts.auditor.record(call.caller, "backup", "the whole cluster", call.address))

    async def run(receive: Receive, send: Send) -> None:
        async def work() -> None:
            headers = [
                (b"content-type", CONTENT_TYPE.encode()),
                (b"content-disposition", b'attachment; filename="mandor.backup"'),
            ]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async for piece in dump(parts.store):
                if piece:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})

        # A backup without its last line is rejected as incomplete, so an interrupted stream does no harm.
        await parts.streams.run(receive, work, call.caller)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return Stream(run)


OPERATIONS = [
    Operation(
        method="GET",
        path="/v1/backup",
        name="backup",
        summary="Stream a backup of all objects at one revision",
        tag="store",
        gate=Gate(frozenset({"component"}), ("backup",), "cluster"),
        handler=backup,
        result=str,
        gives=CONTENT_TYPE,
        refuses=("too_many",),
        lane=Lane.BULK,
        cost=4,
    ),
]
