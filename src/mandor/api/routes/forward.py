"""Forwarded connections: the bytes of a caller are passed to a TCP port of an instance, and back."""

from typing import Annotated

from msgspec import Meta as Note
from msgspec import Struct
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from mandor.api.endpoint import Query
from mandor.api.parts import ApiParts
from mandor.api.routes.queries import Namespace
from mandor.api.routes.sessions import deny, find_instance, identify, record
from mandor.api.sessions import STDIN, close, end_with, splice
from mandor.errors import Conflict, Invalid, MandorError
from mandor.model.manifest import DEFAULT_NAMESPACE
from mandor.model.record import SessionSpec


class ForwardQuery(Struct, frozen=True, forbid_unknown_fields=True):
    port: Annotated[str, Note(pattern="^[a-z0-9-]{1,63}$")]
    namespace: Namespace = DEFAULT_NAMESPACE


async def forward_socket(parts: ApiParts, scope: Scope, receive: Receive, send: Send) -> None:
    websocket = WebSocket(scope, receive, send)
    try:
        caller = await identify(parts, scope, dict(scope["headers"]))
        parts.streams.check(caller.identity)
        query: ForwardQuery = _FORWARD.read(scope["query_string"])
        instance = await find_instance(parts, caller, "forward", scope["path_params"]["name"], query.namespace)
        if instance.phase.over:
            raise Conflict(f"{instance.meta.name} has ended ({instance.phase})")
        address = (scope.get("client") or ("",))[0]
        await record(parts, caller, "forward", instance, address, {"port": query.port})
    except MandorError as error:
        await deny(websocket, error)
        return
    spec = SessionSpec(
        verb="forward",
        instance=instance.meta.name,
        uid=instance.meta.uid,
        node=instance.node,
        server="",
        secret="",
        port=query.port,
    )
    await websocket.accept()
    try:
        async with parts.sessions.dial(spec, caller, query.namespace) as agent:
            await splice(websocket, agent, parts.settings.session_idle_seconds, check=_check)
    except MandorError as error:
        await end_with(websocket, error)
    await close(websocket)


def _check(frame: bytes) -> None:
    if frame[:1] != bytes([STDIN]):
        raise Invalid("a forwarded connection has only frames of channel 0")


_FORWARD = Query(ForwardQuery)

WEBSOCKETS = {"/v1/instances/{name}/forward": forward_socket}
