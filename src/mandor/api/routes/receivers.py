"""Test messages to receivers: webhooks and event buses."""

from functools import partial
from time import monotonic

from msgspec import Struct

from mandor.api.access import read
from mandor.api.gate import Gate
from mandor.api.operation import Call, Operation
from mandor.errors import Invalid, Unavailable
from mandor.model.meta import Key
from mandor.model.receiver import EventBus, Webhook


class Answer(Struct, frozen=True, kw_only=True):
    delivered: bool
    says: str
    """Answer of the receiver, or the error."""
    milliseconds: int


async def send_test(call: Call[None, None], kind: type[Webhook] | type[EventBus]) -> Answer:
    call.caller.require("test", kind.kind, name=call.path["name"], what=f"test {kind.plural}")
    receiver = await read(call.parts.store, call.caller, Key(kind.kind, "", call.path["name"]))
    assert isinstance(receiver, Webhook | EventBus)
    await call.parts.store.commit(call.parts.auditor.record(call.caller, "test", str(receiver.key), call.address))
    begun = monotonic()
    try:
        delivered, says = True, await call.parts.try_receiver(receiver)
    except (Invalid, Unavailable) as error:
        delivered, says = False, str(error)
    return Answer(delivered=delivered, says=says, milliseconds=round((monotonic() - begun) * 1000))


OPERATIONS = [
    Operation(
        method="POST",
        path=f"/v1/{kind.plural}/{{name}}/test",
        name=f"test_{kind.kind.replace('-', '_')}",
        summary=f"Send a test message to the {kind.kind}",
        tag="receivers",
        gate=Gate(verbs=("test",), kind=kind.kind),
        handler=partial(send_test, kind=kind),
        result=Answer,
        refuses=("not_found",),
    )
    for kind in (Webhook, EventBus)
]
