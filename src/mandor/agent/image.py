"""Loads an image file that is uploaded in a session into every suitable engine of this node."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import msgspec
from msgspec import Struct

from mandor.agent.link import Duplex
from mandor.engines.base import Engine
from mandor.errors import EngineDown, MandorError, NotFound, Unavailable, Unsupported
from mandor.model.image import ImageFile
from mandor.model.node import Capabilities
from mandor.model.record import SessionSpec

log = logging.getLogger(__name__)

STDIN = 0
AHEAD = 4
"""Largest number of chunks that wait for an engine; then the upload pauses."""
LOADS_MOST = 2
"""Largest number of images loaded at the same time; further uploads wait."""
FINISH_SECONDS = 3600.0
"""Timeout in seconds of an engine after the last byte."""
REPORT_SECONDS = 10.0


class Loaded(Struct, frozen=True, omit_defaults=True):
    """Result of the upload for one engine."""

    engine: str
    new: bool = False
    """Whether the image is new; False without an error: the engine had it already."""
    error: dict[str, str | None] | None = None
    """`code`, `detail` and `hint` of the error."""


class EngineUpload:
    """The upload to one engine; it ends early if the engine has the image already, or fails."""

    def __init__(self, name: str, engine: Engine, image: ImageFile) -> None:
        self._name, self._engine, self._image = name, engine, image
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue(AHEAD)
        self._broken: MandorError | None = None
        self.settled = asyncio.Event()
        self.result = Loaded(name)

    async def run(self) -> None:
        """Load the image; after that, discard further chunks until cancelled, so that the upload does not stall."""
        try:
            self.result = Loaded(self._name, await self._engine.load_image(self._image, self._content()))
        except MandorError as error:
            self.result = _failed(self._name, self._broken or error)
        except Exception as error:  # A third-party engine may raise anything; others go on.
            log.exception("loading an image raised an exception in engine %s", self._name)
            self.result = _failed(self._name, self._broken or MandorError(f"{type(error).__name__}: {error}"))
        self.settled.set()
        while True:
            await self._pieces.get()

    async def offer(self, piece: bytes) -> None:
        await self._pieces.put(piece)

    async def end(self, broken: MandorError | None = None) -> None:
        """End the upload; `broken`: the error that interrupted it."""
        self._broken = broken
        await self._pieces.put(b"")

    async def _content(self) -> AsyncIterator[bytes]:
        while piece := await self._pieces.get():
            yield piece
        if self._broken is not None:
            raise self._broken


class ImageLoader:
    """`capabilities`: returns the capabilities of the engines; `loaded`: called after an image was loaded."""

    def __init__(
        self,
        engines: Mapping[str, Engine],
        capabilities: Callable[[], Mapping[str, Capabilities]],
        loaded: Callable[[], Awaitable[None]],
    ) -> None:
        self._engines, self._capabilities, self._loaded = engines, capabilities, loaded
        self._loads = asyncio.Semaphore(LOADS_MOST)

    async def serve(self, spec: SessionSpec, line: Duplex) -> bytes:
        """Load the image of the session; return the final message for the client."""
        assert spec.image is not None
        names = self._suitable(spec.image, spec.engine)
        async with self._loads:
            results = await _load(
                [EngineUpload(name, self._engines[name], spec.image) for name in names], spec.image, line
            )
        if any(each.new for each in results):
            await self._report()
        return msgspec.json.encode({"engines": results})

    def _suitable(self, image: ImageFile, wanted: str) -> list[str]:
        known = self._capabilities()
        if wanted and wanted not in known:
            raise NotFound(f"this node has no engine {wanted}", hint=f"it has {', '.join(known) or 'none'}")
        able = [name for name, each in known.items() if image.kind in each.loads and wanted in {"", name}]
        if not able:
            subject = f"the engine {wanted}" if wanted else "no engine of this node"
            verb = "does not load" if wanted else "loads"
            raise Unsupported(f"{subject} {verb} image files of the kind `{image.kind}`", kind=image.kind)
        up = [name for name in able if known[name].up]
        if not up:
            raise EngineDown(f"{', '.join(able)}: {known[able[0]].message or 'not up'}")
        return up

    async def _report(self) -> None:
        """Update the node's status before the client gets its answer; on failure the next regular update does it."""
        try:
            async with asyncio.timeout(REPORT_SECONDS):
                await self._loaded()
        except (MandorError, TimeoutError) as error:
            log.warning("cannot report the new image yet: %s", str(error) or "no answer")


async def _load(shares: list[EngineUpload], image: ImageFile, line: Duplex) -> list[Loaded]:
    tasks = [asyncio.ensure_future(share.run()) for share in shares]
    handing = asyncio.ensure_future(_hand_out(shares, image, line))
    settling = asyncio.ensure_future(_all_settled(shares))
    try:
        # Engines that have the image already settle before the first chunk.
        await asyncio.wait({handing, settling}, return_when=asyncio.FIRST_COMPLETED)
        if not settling.done():
            handing.result()
            async with asyncio.timeout(FINISH_SECONDS):
                await settling
    except TimeoutError as error:
        raise Unavailable(f"the engine did not load the image within {FINISH_SECONDS:.0f} s") from error
    finally:
        for task in (*tasks, handing, settling):
            task.cancel()
        await asyncio.gather(*tasks, handing, settling, return_exceptions=True)
    return [share.result for share in shares]


async def _hand_out(shares: list[EngineUpload], image: ImageFile, line: Duplex) -> None:
    count = 0
    while (frame := await line.receive()) is not None:
        if not frame or frame[0] != STDIN:
            continue
        if len(frame) == 1:
            break
        count += len(frame) - 1
        for share in shares:
            await share.offer(frame[1:])
    broken = None
    if count != image.size:
        broken = Unavailable(f"the upload ended early: received {count} of {image.size} bytes", hint="load it again")
    for share in shares:
        await share.end(broken)


async def _all_settled(shares: list[EngineUpload]) -> None:
    for share in shares:
        await share.settled.wait()


def _failed(name: str, error: MandorError) -> Loaded:
    return Loaded(name, error={"code": error.code, "detail": error.message, "hint": error.hint})
