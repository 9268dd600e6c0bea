"""Loads images from files into containerd with its transfer service, on the same socket; the CRI has no call for it.

The archive is sent over a separate stream with flow control; the transfer request names that stream.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio

from mandor.engines.cri.client import CriClient, Refused
from mandor.errors import Unsupported
from mandor.lib.wire import Fields, make_messages

NAMESPACE = "k8s.io"
"""The containerd namespace of the CRI."""
PIECE = 32 << 10
"""Limit of bytes in one message of a stream."""
LABEL = "io.mandor.loaded"
HINT = f"on the node: `ctr --namespace {NAMESPACE} images import FILE`"

_MESSAGES: dict[str, Fields] = {
    "Empty": {},
    "Any": {1: ("type_url", "string"), 2: ("value", "bytes")},
    "StreamInit": {1: ("id", "string")},
    "Data": {1: ("data", "bytes")},
    "WindowUpdate": {1: ("update", "int32")},
    "TransferRequest": {1: ("source", "Any"), 2: ("destination", "Any")},
    "ImageImportStream": {1: ("stream", "string")},
    "ImageStore": {1: ("name", "string"), 6: ("extra_references", "*ImageReference")},
    "ImageReference": {1: ("name", "string"), 2: ("is_prefix", "bool"), 3: ("allow_overwrite", "bool")},
    "Image": {1: ("name", "string"), 2: ("labels", "map"), 3: ("target", "Empty"), 7: ("created_at", "Empty")},
    "FieldMask": {1: ("paths", "*string")},
    "UpdateImageRequest": {1: ("image", "Image"), 2: ("update_mask", "FieldMask")},
}
_messages = make_messages("mandor.containerd", _MESSAGES)
METADATA = (("containerd-namespace", NAMESPACE),)
_PACKAGES = {"StreamInit": "containerd.services.streaming.v1"}


def packed(kind: str, **fields: Any) -> Any:
    package = _PACKAGES.get(kind, "containerd.types.transfer")
    return _messages["Any"](type_url=f"{package}.{kind}", value=_messages[kind](**fields).SerializeToString())


async def import_image(
    client: CriClient, names: Sequence[str], content: AsyncIterator[bytes], *, several: bool
) -> None:
    """Load an archive. `names`: full references; `several`: of several images, which have these names in the
    archive."""
    stream = secrets.token_hex(8)
    try:
        sending = await _open(client, stream)
        feeding = asyncio.ensure_future(_feed(sending, content))
        ordering = asyncio.ensure_future(_order(client, stream, names, several))
        try:
            await asyncio.wait({feeding, ordering}, return_when=asyncio.FIRST_COMPLETED)
            # The first of the two that failed has the reason.
            for done in (each for each in (feeding, ordering) if each.done()):
                done.result()
            await ordering
            await _announce(client, names)
        finally:
            for task in (feeding, ordering):
                task.cancel()
            sending.cancel()
            await asyncio.gather(feeding, ordering, return_exceptions=True)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            raise Unsupported("this CRI runtime cannot load images from files", hint=HINT) from None
        raise client.failed(error) from None


async def _open(client: CriClient, stream: str) -> Any:
    stub: Any = client.open().stream_stream(
        "/containerd.services.streaming.v1.Streaming/Stream",
        request_serializer=_messages["Any"].SerializeToString,
        response_deserializer=_messages["Any"].FromString,
    )
    call = stub(metadata=METADATA)
    await call.write(packed("StreamInit", id=stream))
    if not _is_open(await call.read()):  # An empty message: the stream is registered.
        raise Refused(grpc.StatusCode.UNKNOWN, "containerd closed the stream")
    return call


async def _feed(call: Any, content: AsyncIterator[bytes]) -> None:
    """Send as many bytes as containerd has granted, then wait for the next grant."""
    window = 0
    async for whole in content:
        for start in range(0, len(whole), PIECE):
            piece = whole[start : start + PIECE]
            while window < len(piece):
                window += await _granted(call)
            await call.write(packed("Data", data=piece))
            window -= len(piece)
    await call.done_writing()


def _is_open(answer: Any) -> bool:
    """Return whether the stream is still open."""
    return isinstance(answer, _messages["Any"])


async def _granted(call: Any) -> int:
    told = await call.read()
    if not _is_open(told):
        # It needs no more data: the transfer request has the result.
        await asyncio.Event().wait()
    if not told.type_url.endswith("WindowUpdate"):
        return 0
    return int(_messages["WindowUpdate"].FromString(told.value).update)


async def _order(client: CriClient, stream: str, names: Sequence[str], several: bool) -> None:
    stub = client.open().unary_unary(
        "/containerd.services.transfer.v1.Transfer/Transfer",
        request_serializer=_messages["TransferRequest"].SerializeToString,
        response_deserializer=_messages["Empty"].FromString,
    )
    references = [_messages["ImageReference"](name=name) for name in names[1:]]
    if several:  # The prefix applies to bare tags; full names are kept.
        references = [_messages["ImageReference"](name="loaded", is_prefix=True, allow_overwrite=True)]
    request = _messages["TransferRequest"](
        source=packed("ImageImportStream", stream=stream),
        destination=packed("ImageStore", name="" if several else names[0], extra_references=references),
    )
    await stub(request, metadata=METADATA)


async def _announce(client: CriClient, names: Sequence[str]) -> None:
    """Change a label of the images: unlike a transfer, this sends the event that makes the CRI read the image."""
    stub: Any = client.open().unary_unary(
        "/containerd.services.images.v1.Images/Update",
        request_serializer=_messages["UpdateImageRequest"].SerializeToString,
        response_deserializer=_messages["Empty"].FromString,
    )
    for name in names:
        # containerd requires these fields although they are not in the mask.
        empty = _messages["Empty"]()
        image = _messages["Image"](name=name, labels={LABEL: "true"}, target=empty, created_at=empty)
        mask = _messages["FieldMask"](paths=[f"labels.{LABEL}"])
        await stub(_messages["UpdateImageRequest"](image=image, update_mask=mask), metadata=METADATA)
