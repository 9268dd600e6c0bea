"""Images from files into containerd: by its transfer service, on the same socket; the CRI has no verb for that.

The archive goes over a stream of its own, at the pace that containerd grants; an order to transfer names that stream.
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
"""Where containerd keeps what the CRI sees."""
PIECE = 32 << 10
"""The most that one message of a stream carries."""
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
    """`names` are whole references; `several`: of as many images, which have them in the archive already."""
    stream = secrets.token_hex(8)
    try:
        sending = await _open(client, stream)
        feeding = asyncio.ensure_future(_feed(sending, content))
        ordering = asyncio.ensure_future(_order(client, stream, names, several))
        try:
            await asyncio.wait({feeding, ordering}, return_when=asyncio.FIRST_COMPLETED)
            # Whoever of the two has failed first knows why.
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
            raise Unsupported("this CRI runtime takes no images from files", hint=HINT) from None
        raise client.failed(error) from None


async def _open(client: CriClient, stream: str) -> Any:
    stub: Any = client.open().stream_stream(
        "/containerd.services.streaming.v1.Streaming/Stream",
        request_serializer=_messages["Any"].SerializeToString,
        response_deserializer=_messages["Any"].FromString,
    )
    call = stub(metadata=METADATA)
    await call.write(packed("StreamInit", id=stream))
    if not _told(await call.read()):  # Nothing in it: it says that the stream is known now.
        raise Refused(grpc.StatusCode.UNKNOWN, "containerd closed the stream")
    return call


async def _feed(call: Any, content: AsyncIterator[bytes]) -> None:
    """As many bytes as containerd has room for, and then its next word."""
    window = 0
    async for whole in content:
        for start in range(0, len(whole), PIECE):
            piece = whole[start : start + PIECE]
            while window < len(piece):
                window += await _granted(call)
            await call.write(packed("Data", data=piece))
            window -= len(piece)
    await call.done_writing()


def _told(answer: Any) -> bool:
    """False: the stream has ended."""
    return isinstance(answer, _messages["Any"])


async def _granted(call: Any) -> int:
    told = await call.read()
    if not _told(told):
        # It wants no more: the order says how it ended.
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
    if several:  # The prefix is for mere tags: with a name of their own they keep that.
        references = [_messages["ImageReference"](name="loaded", is_prefix=True, allow_overwrite=True)]
    request = _messages["TransferRequest"](
        source=packed("ImageImportStream", stream=stream),
        destination=packed("ImageStore", name="" if several else names[0], extra_references=references),
    )
    await stub(request, metadata=METADATA)


async def _announce(client: CriClient, names: Sequence[str]) -> None:
    """The transfer service tells nobody; a change of a label is told, and the CRI looks at the image."""
    stub: Any = client.open().unary_unary(
        "/containerd.services.images.v1.Images/Update",
        request_serializer=_messages["UpdateImageRequest"].SerializeToString,
        response_deserializer=_messages["Empty"].FromString,
    )
    for name in names:
        # Containerd cannot bear it if these are missing, although they are not in the mask.
        empty = _messages["Empty"]()
        image = _messages["Image"](name=name, labels={LABEL: "true"}, target=empty, created_at=empty)
        mask = _messages["FieldMask"](paths=[f"labels.{LABEL}"])
        await stub(_messages["UpdateImageRequest"](image=image, update_mask=mask), metadata=METADATA)
