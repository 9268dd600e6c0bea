"""Images from files: a caller's bytes are carried to a node's agent as they come, and kept nowhere in between."""

from typing import Annotated

from msgspec import Meta as Note
from msgspec import Struct
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from mandor.api.access import missing
from mandor.api.caller import Caller
from mandor.api.changes import FieldChange
from mandor.api.endpoint import Query
from mandor.api.parts import ApiParts
from mandor.api.routes.sessions import deny, identify
from mandor.api.sessions import STDIN, close, end_with, splice
from mandor.errors import Invalid, MandorError, TooLarge, Unavailable
from mandor.model.image import NAMES_MOST, ImageFile, ImageKind, ImageName
from mandor.model.meta import Key
from mandor.model.node import Node, NodePhase
from mandor.model.record import SessionSpec


class LoadQuery(Struct, frozen=True, forbid_unknown_fields=True):
    kind: ImageKind = "archive"
    size: Annotated[int, Note(ge=0)] = 0
    id: Annotated[str, Note(pattern="^([0-9a-f]{64})?$")] = ""
    names: Annotated[tuple[ImageName, ...], Note(max_length=NAMES_MOST)] = ()
    metadata_bytes: Annotated[int, Note(ge=0)] = 0
    engine: Annotated[str, Note(max_length=63)] = ""

    def image(self, most: int) -> ImageFile:
        if self.size > most:
            raise TooLarge(
                f"the image has {self.size} bytes; at most {most} are taken",
                hint="the server's setting `image_most` says how many",
                most=most,
            )
        if not self.size or self.metadata_bytes >= self.size:
            raise Invalid("`size` says how many bytes come, and `metadata_bytes` how many of them at most come first")
        return ImageFile(
            kind=self.kind, size=self.size, id=self.id, names=self.names, metadata_bytes=self.metadata_bytes
        )


_LOAD = Query(LoadQuery)


async def load_socket(parts: ApiParts, scope: Scope, receive: Receive, send: Send) -> None:
    """The file as frames of standard input, an empty one at its end; the answer is one frame (`END`) with JSON."""
    websocket = WebSocket(scope, receive, send)
    try:
        caller = await identify(parts, scope, dict(scope["headers"]))
        # Whatever runs on the node can be made from it, in every namespace.
        caller.require("load", "node", name=scope["path_params"]["name"], what="load images")
        parts.streams.check(caller.identity)
        query: LoadQuery = _LOAD.read(scope["query_string"])
        image = query.image(parts.settings.image_bytes_most)
        node = await _find(parts, scope["path_params"]["name"])
        await _record(parts, caller, node, image, scope)
    except MandorError as error:
        await deny(websocket, error)
        return
    spec = SessionSpec(verb="load", node=node.meta.name, server="", secret="", image=image, engine=query.engine)
    await websocket.accept()
    try:
        async with parts.sessions.dial(spec, caller) as agent:
            await splice(websocket, agent, parts.settings.session_idle_seconds, check=Counter(image.size).check)
    except MandorError as error:
        await end_with(websocket, error)
    await close(websocket)


class Counter:
    """Lets no more bytes pass than were announced."""

    def __init__(self, most: int) -> None:
        self._left = most

    def check(self, frame: bytes) -> None:
        if frame[:1] == bytes([STDIN]):
            self._left -= len(frame) - 1
        if self._left < 0:
            raise Invalid("more bytes come than were announced", hint="did the file change meanwhile?")


async def _find(parts: ApiParts, name: str) -> Node:
    key = Key(Node.kind, "", name)
    found = await parts.store.get(key)
    if not isinstance(found, Node):
        raise missing(key)
    if found.status.phase is NodePhase.DOWN:
        raise Unavailable(
            f"the node {name} is down: {found.status.reason or 'it is not heard'}",
            hint=f"`mandor describe node {name}` tells more",
            node=name,
        )
    return found


async def _record(parts: ApiParts, caller: Caller, node: Node, image: ImageFile, scope: Scope) -> None:
    parts.write_rates.spend(caller.identity, 1)
    address = (scope.get("client") or ("",))[0]
    facts = {"names": list(image.names), "id": image.id, "size": image.size}
    changes = [FieldChange(path=path, after=value) for path, value in facts.items() if value]
    await parts.store.commit(parts.auditor.record(caller, "load", str(node.key), address, changes))


WEBSOCKETS = {"/v1/nodes/{name}/images": load_socket}
