"""Image uploads over an in-memory connection into fake engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from mandor.agent.image import AHEAD, ImageLoader
from mandor.engines.base import Engine
from mandor.engines.fake import FakeEngine
from mandor.errors import EngineDown, MandorError, NotFound, Unavailable, Unsupported
from mandor.lib.clock import settle
from mandor.model.image import ImageFile
from mandor.model.record import SessionSpec
from tests.unit.agent.test_stream import Line

NAME = "shop/web:1"
CONTENT = b"\0" * 257 + b"ustar" + b"x" * 4000


class Slow(FakeEngine):
    """An engine that takes a chunk only when the test lets it."""

    def __init__(self) -> None:
        super().__init__(images=True)
        self.go = asyncio.Semaphore(0)
        self.taken = 0

    async def load_image(self, image: ImageFile, content: AsyncIterator[bytes]) -> bool:
        await self.go.acquire()
        async for piece in content:
            self.taken += len(piece)
            await self.go.acquire()
        return True


class Broken(FakeEngine):
    def __init__(self, error: Exception) -> None:
        super().__init__(images=True)
        self.error = error

    async def load_image(self, image: ImageFile, content: AsyncIterator[bytes]) -> bool:
        raise self.error


class Node:
    def __init__(self, **engines: Engine) -> None:
        self.engines = engines
        self.line = Line()
        self.reports = 0
        self.unreachable = False

    async def load(self, size: int = len(CONTENT), *, kind: Any = "archive", engine: str = "") -> dict[str, Any]:
        known = {name: await each.probe() for name, each in self.engines.items()}
        image = ImageFile(kind=kind, size=size, names=(NAME,))
        spec = SessionSpec(verb="load", node="n1", server="", secret="", image=image, engine=engine)
        told = await ImageLoader(self.engines, lambda: known, self._loaded).serve(spec, self.line)
        return {each["engine"]: each for each in msgspec.json.decode(told)["engines"]}

    async def _loaded(self) -> None:
        if self.unreachable:
            raise Unavailable("no server answers")
        self.reports += 1

    async def send(self, content: bytes = CONTENT, *, end: bool = True) -> None:
        for start in range(0, len(content), 1000):
            await self.line.incoming.put(b"\0" + content[start : start + 1000])
        await self.line.incoming.put(b"\0" if end else None)


async def test_every_suitable_engine_gets_the_image_and_the_node_reports_it_at_once() -> None:
    node = Node(one=FakeEngine(images=True), two=FakeEngine(images=True), plain=FakeEngine())
    await node.send()
    told = await node.load()
    assert told == {"one": {"engine": "one", "new": True}, "two": {"engine": "two", "new": True}}
    assert node.reports == 1
    for name in ("one", "two"):
        assert await node.engines[name].images() == {NAME: len(CONTENT)}


async def test_only_the_named_engine_gets_the_image() -> None:
    node = Node(one=FakeEngine(images=True), two=FakeEngine(images=True))
    await node.send()
    assert set(await node.load(engine="two")) == {"two"}
    assert await node.engines["one"].images() == {}


async def test_an_image_that_is_present_is_not_sent_again() -> None:
    node = Node(one=FakeEngine(images=True))
    await node.send()
    await node.load()
    told = await node.load()  # Nothing more comes over the line.
    assert told == {"one": {"engine": "one"}}
    assert node.reports == 1


async def test_an_interrupted_upload_loads_no_image() -> None:
    for end in (True, False):
        node = Node(one=FakeEngine(images=True))
        await node.send(CONTENT[:2000], end=end)
        error = (await node.load())["one"]["error"]
        assert error["code"] == "unavailable"
        assert "2000 of" in error["detail"]
        assert await node.engines["one"].images() == {}
        assert node.reports == 0


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (Unavailable("no space left on device", hint="make room"), "unavailable", "no space left"),
        (RuntimeError("a defect"), "internal", "a defect"),
    ],
)
async def test_the_error_of_one_engine_is_returned_and_the_others_get_the_image(
    error: Exception, code: str, words: str
) -> None:
    node = Node(bad=Broken(error), good=FakeEngine(images=True))
    await node.send()
    told = await node.load()
    assert told["bad"]["error"]["code"] == code
    assert words in told["bad"]["error"]["detail"]
    assert told["good"]["new"] is True


async def test_the_upload_waits_for_the_slowest_engine_and_buffers_only_a_few_chunks() -> None:
    slow = Slow()
    node = Node(slow=slow, fast=FakeEngine(images=True))
    await node.send(CONTENT * 20)
    loading = asyncio.create_task(node.load(len(CONTENT) * 20))
    await settle()
    waiting = node.line.incoming.qsize()
    assert waiting >= len(CONTENT) * 20 // 1000 - AHEAD - 2
    for _ in range(10):
        slow.go.release()
    await settle()
    assert node.line.incoming.qsize() == waiting - 10
    for _ in range(1000):
        slow.go.release()
    assert (await loading)["slow"]["new"] is True
    assert slow.taken == len(CONTENT) * 20


async def test_a_node_without_a_suitable_engine_returns_the_reason() -> None:
    cases: list[tuple[Node, dict[str, Any], type[MandorError], str]] = [
        (Node(one=FakeEngine()), {}, Unsupported, "no engine of this node loads"),
        (Node(one=FakeEngine(images=True)), {"kind": "incus"}, Unsupported, "`incus`"),
        (Node(one=FakeEngine(images=True)), {"engine": "docker"}, NotFound, "no engine docker"),
        (Node(one=FakeEngine(images=True), two=FakeEngine()), {"engine": "two"}, Unsupported, "the engine two does"),
    ]
    for node, parts, kind, words in cases:
        with pytest.raises(kind, match=words):
            await node.load(**parts)


async def test_an_engine_that_is_down_is_reported_as_down() -> None:
    engine = FakeEngine(images=True)
    known = {"one": msgspec.structs.replace(await engine.probe(), up=False, message="no answer within 5s")}
    image = ImageFile(kind="archive", size=5)
    spec = SessionSpec(verb="load", node="n1", server="", secret="", image=image)
    with pytest.raises(EngineDown, match="one: no answer"):
        await ImageLoader({"one": engine}, lambda: known, Node()._loaded).serve(spec, Line())


async def test_a_control_plane_that_does_not_answer_does_not_undo_the_load(caplog: pytest.LogCaptureFixture) -> None:
    node = Node(one=FakeEngine(images=True))
    node.unreachable = True
    await node.send()
    assert (await node.load())["one"]["new"] is True
    assert "cannot report the new image yet: no server answers" in caplog.text
