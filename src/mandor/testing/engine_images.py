"""Engine suite, images from files: announced kinds are loaded, others refused."""

from collections.abc import AsyncIterator, Callable

import pytest

from mandor.engines.base import Engine
from mandor.errors import MandorError, Unavailable, Unsupported
from mandor.model.image import ImageFile
from mandor.testing.engine_watch import EngineWatch

PIECE = 100_000


class EngineImages(EngineWatch):
    async def test_a_kind_of_image_file_that_is_not_announced_is_refused(self, engine: Engine) -> None:
        loads = (await engine.probe()).loads
        assert {image.kind for image, _ in self.image_files()} == set(loads), "give one image file of each kind"
        for kind in ("archive", "incus"):
            if kind not in loads:
                with pytest.raises(Unsupported):
                    await engine.load_image(ImageFile(kind=kind, size=1), _pieces(b"x"))

    @pytest.mark.req("S0-2")
    async def test_an_image_from_a_file_is_listed_and_runs(self, engine: Engine) -> None:
        for image, content in self.image_files():
            try:
                assert await engine.load_image(image, _pieces(content))
                assert set(image.names) <= {_short(name) for name in await engine.images()}
                for name in image.names:
                    assert await self._output(engine, self.prints(["it runs"], image=name)) == ["it runs"]
            finally:
                await self._clear(engine, image)

    async def test_an_existing_image_is_not_loaded_again(self, engine: Engine) -> None:
        for image, content in self.image_files():
            read: list[int] = []
            try:
                assert await engine.load_image(image, _pieces(content))
                assert not await engine.load_image(image, _pieces(content, read.append))
                assert sum(read) <= PIECE
            finally:
                await self._clear(engine, image)

    async def test_an_incomplete_or_invalid_image_file_leaves_no_image(self, engine: Engine) -> None:
        for image, content in self.image_files():
            try:
                with pytest.raises(MandorError):
                    await engine.load_image(image, _breaking(content[: len(content) // 2]))
                with pytest.raises(MandorError):
                    await engine.load_image(image, _pieces(b"this is no image" * 100))
                assert not set(image.names) & {_short(name) for name in await engine.images()}
                assert await engine.load_image(image, _pieces(content)), "and then it can be loaded"
            finally:
                await self._clear(engine, image)

    async def test_an_image_from_a_file_is_never_removed_by_cleaning(self, engine: Engine) -> None:
        for image, content in self.image_files():
            try:
                await engine.load_image(image, _pieces(content))
                assert await engine.clean_image(()) not in image.names
                assert set(image.names) <= {_short(name) for name in await engine.images()}
            finally:
                await self._clear(engine, image)

    @pytest.mark.req("S3-9")
    async def test_a_pulled_image_without_containers_is_removed_by_cleaning(self, engine: Engine) -> None:
        if "clean" not in (await engine.probe()).extras:
            assert await engine.clean_image(()) == ""
            return
        for image, content in self.image_files():
            name = image.names[0]
            try:
                await engine.load_image(image, _pieces(content))
                if not self.fetched_image(engine, name):
                    continue
                unit = self._unit()
                await engine.start(unit, self.sleeps(image=name))
                assert await engine.clean_image(()) == "", "something uses it"
                await engine.stop(unit, grace_seconds=0)
                await engine.remove(unit)
                assert await engine.clean_image((name,)) == "", "somebody will"
                assert await engine.clean_image(()) == name
                assert name not in {_short(known) for known in await engine.images()}
                assert await engine.clean_image(()) == "", "once"
            finally:
                await self._clear(engine, image)

    async def _clear(self, engine: Engine, image: ImageFile) -> None:
        for each in await engine.list():
            await engine.remove(each.unit)
        known = {_short(name) for name in await engine.images()}
        for name in image.names:
            if name in known:
                self.forget_image(name)


async def _pieces(content: bytes, tell: Callable[[int], None] = lambda count: None) -> AsyncIterator[bytes]:
    for start in range(0, len(content), PIECE):
        tell(len(content[start : start + PIECE]))
        yield content[start : start + PIECE]


async def _breaking(content: bytes) -> AsyncIterator[bytes]:
    async for piece in _pieces(content):
        yield piece
    raise Unavailable("the file broke off")


def _short(name: str) -> str:
    """Return the short name of an image, without Docker's own registry."""
    return name.removeprefix("docker.io/").removeprefix("library/")
