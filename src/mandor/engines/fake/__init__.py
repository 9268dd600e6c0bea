"""The fake engine: runs nothing, and fails, hangs, ends and slows down on request."""

from mandor.engines.fake.engine import FakeEngine
from mandor.engines.fake.options import FakeOptions
from mandor.engines.fake.state import FakeState, FileState, MemoryState

__all__ = ["FakeEngine", "FakeOptions", "FakeState", "FileState", "MemoryState"]
