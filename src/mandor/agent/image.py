"""Takes an image that comes over a line into every engine of this node that can have it, at the pace of the slowest."""

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
"""So many pieces may wait for an engine; whoever sends is held up then."""
LOADS_MOST = 2
"""Images that are taken at the same time; others wait with their first byte."""
FINISH_SECONDS = 3600.0
"""Once it has all bytes, an engine has so long to make an image of them."""
REPORT_SECONDS = 10.0


class Loaded(Struct, frozen=True, omit_defaults=True):
    """What became of the image in one engine."""

    engine: str
    new: bool = False
    """False, without an error: it was there already."""
    error: dict[str, str | None] | None = None
    """code, detail and hint"""


class Share:
    """One engine's share of what comes; it ends early if the engine needs no more, or fails."""

    def __init__(self, name: str, engine: Engine, image: ImageFile) -> None:
        self._name, self._engine, self._image = name, engine, image
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue(AHEAD)
        self._broken: MandorError | None = None
        self.settled = asyncio.Event()
        self.result = Loaded(name)

    async def run(self) -> None:
        """Until cancelled: what comes after the engine has settled is thrown away, so that nobody waits for it."""
        try:
            self.result = Loaded(self._name, await self._engine.load_image(self._image, self._content()))
        except MandorError as error:
            self.result = _failed(self._name, self._broken or error)
        except Exception as error:  # An engine from elsewhere may raise anything: it is told, and others go on.
            log.exception("engine %s failed to load an image", self._name)
            self.result = _failed(self._name, self._broken or MandorError(f"{type(error).__name__}: {error}"))
        self.settled.set()
        while True:
            await self._pieces.get()

    async def offer(self, piece: bytes) -> None:
        await self._pieces.put(piece)

    async def end(self, broken: MandorError | None = None) -> None:
        """No more comes; `broken`: it is not all."""
        self._broken = broken
        await self._pieces.put(b"")

    async def _content(self) -> AsyncIterator[bytes]:
        while piece := await self._pieces.get():
            yield piece
        if self._broken is not None:
            raise self._broken


class ImageLoader:
    """`capabilities` says what the engines of this node can do now; `loaded` is called after an image came."""

    def __init__(
        self,
        engines: Mapping[str, Engine],
        capabilities: Callable[[], Mapping[str, Capabilities]],
        loaded: Callable[[], Awaitable[None]],
    ) -> None:
        self._engines, self._capabilities, self._loaded = engines, capabilities, loaded
        self._loads = asyncio.Semaphore(LOADS_MOST)

    async def serve(self, spec: SessionSpec, line: Duplex) -> bytes:
        """Load what the session is about; the last word to its caller."""
        assert spec.image is not None
        names = self._suitable(spec.image, spec.engine)
        async with self._loads:
            results = await _load([Share(name, self._engines[name], spec.image) for name in names], spec.image, line)
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
            verb = "does not take" if wanted else "takes"
            raise Unsupported(f"{subject} {verb} image files of the kind `{image.kind}`", kind=image.kind)
        up = [name for name in able if known[name].up]
        if not up:
            raise EngineDown(f"{', '.join(able)}: {known[able[0]].message or 'not up'}")
        return up

    async def _report(self) -> None:
        """The scheduler shall know before the caller does; if it cannot, it will learn of it later."""
        try:
            async with asyncio.timeout(REPORT_SECONDS):
                await self._loaded()
        except (MandorError, TimeoutError) as error:
            log.warning("the new image is not reported yet: %s", str(error) or "no answer")


async def _load(shares: list[Share], image: ImageFile, line: Duplex) -> list[Loaded]:
    tasks = [asyncio.ensure_future(share.run()) for share in shares]
    handing = asyncio.ensure_future(_hand_out(shares, image, line))
    settling = asyncio.ensure_future(_all_settled(shares))
    try:
        # Engines that have the image already settle before the first piece.
        await asyncio.wait({handing, settling}, return_when=asyncio.FIRST_COMPLETED)
        if not settling.done():
            handing.result()
            async with asyncio.timeout(FINISH_SECONDS):
                await settling
    except TimeoutError as error:
        raise Unavailable(f"no image after {FINISH_SECONDS:.0f} s with all its bytes") from error
    finally:
        for task in (*tasks, handing, settling):
            task.cancel()
        await asyncio.gather(*tasks, handing, settling, return_exceptions=True)
    return [share.result for share in shares]


async def _hand_out(shares: list[Share], image: ImageFile, line: Duplex) -> None:
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
        broken = Unavailable(f"the file broke off: {count} of {image.size} bytes came", hint="load it again")
    for share in shares:
        await share.end(broken)


async def _all_settled(shares: list[Share]) -> None:
    for share in shares:
        await share.settled.wait()


def _failed(name: str, error: MandorError) -> Loaded:
    return Loaded(name, error={"code": error.code, "detail": error.message, "hint": error.hint})
