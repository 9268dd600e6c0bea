"""Loading of images from files: the caller's bytes are streamed to a node's agent and not stored on the server."""

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
                f"the image has {self.size} bytes; at most {most} are allowed",
                hint="the limit is the server's setting `image_most`",
                most=most,
            )
        if not self.size or self.metadata_bytes >= self.size:
            raise Invalid("`size` must be the number of bytes of the file, and `metadata_bytes` smaller than it")
        return ImageFile(
            kind=self.kind, size=self.size, id=self.id, names=self.names, metadata_bytes=self.metadata_bytes
        )


_LOAD = Query(LoadQuery)


async def load_socket(parts: ApiParts, scope: Scope, receive: Receive, send: Send) -> None:
    """Receive the file as STDIN frames, an empty one at its end; answer with one END frame that contains JSON."""
    websocket = WebSocket(scope, receive, send)
    try:
        caller = await identify(parts, scope, dict(scope["headers"]))
        # Every namespace can run tasks from the image on this node.
        caller.require("load", "node", name=scope["path_params"]["name"], what="load images")
        parts.streams.check(caller.identity)
        query: LoadQuery = _LOAD.read(scope["query_string"])
        image = query.image(parts.settings.image_bytes_most)
        node = await _find(parts, scope["path_params"]["name"])
        await parts.store.check_available()
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
    """Raises when more bytes arrive than were announced."""

    def __init__(self, most: int) -> None:
        self._left = most

    def check(self, frame: bytes) -> None:
        if frame[:1] == bytes([STDIN]):
            self._left -= len(frame) - 1
        if self._left < 0:
            raise Invalid("the file has more bytes than announced", hint="the file may have changed during the upload")


async def _find(parts: ApiParts, name: str) -> Node:
    key = Key(Node.kind, "", name)
    found = await parts.store.get(key)
    if not isinstance(found, Node):
        raise missing(key)
    if found.status.phase is NodePhase.DOWN:
        raise Unavailable(
            f"the node {name} is down: {found.status.reason or 'no heartbeats are received'}",
            hint=f"`mandor describe node {name}` shows the details",
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
