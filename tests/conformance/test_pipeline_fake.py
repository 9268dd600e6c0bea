"""The fake pipeline keeps what every pipeline promises, so it may stand for one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from mandor.baremetal.fake import FakePipeline
from mandor.baremetal.pipeline import Pipeline
from mandor.testing.pipeline import Memory, PipelineSuite


class TestFake(PipelineSuite):
    @pytest.fixture
    def make(self) -> Callable[[], Pipeline]:
        self.made: list[FakePipeline] = []

        def make() -> Pipeline:
            there = self.made[0].there if self.made else {}
            self.made.append(FakePipeline(takes=0.01, there=there))
            return self.made[-1]

        return make

    @pytest.fixture
    def away(self) -> Pipeline:
        return FakePipeline(fails=1, stays=1)

    def there(self, name: str) -> bool:
        return name in self.made[0].there

    async def begun(self, run: Memory) -> None:
        while not self.made[0].calls:
            await asyncio.sleep(0)
