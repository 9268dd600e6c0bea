"""The fake engine: runs nothing, and fails, hangs, dies and slows down on cue."""

from mandor.engines.fake.engine import FakeEngine
from mandor.engines.fake.options import FakeOptions
from mandor.engines.fake.world import FileWorld, MemoryWorld, World

__all__ = ["FakeEngine", "FakeOptions", "FileWorld", "MemoryWorld", "World"]
