"""The spool: lines come out in order or are counted as dropped; its size is limited; a crash loses nothing."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mandor.agent.shipping.line import Line
from mandor.agent.shipping.spool import Batch, Spool

MOST = 4000


def line(number: int, size: int = 0) -> Line:
    return Line(at=float(number), text="x" * size, node="n", stream="stdout")


class SpoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name)
        self.spool = Spool(self.path, MOST)
        self.number = 0
        self.dropped = 0
        self.delivered: list[int] = []
        self.batch: Batch | None = None

    def teardown(self) -> None:
        self.folder.cleanup()

    @rule(sizes=st.lists(st.integers(0, 300), max_size=12))
    def append(self, sizes: list[int]) -> None:
        self.spool.append([line(self.number + index, size) for index, size in enumerate(sizes)])
        self.number += len(sizes)

    @rule(most=st.integers(1, 20))
    def read(self, most: int) -> None:
        self.batch = self.spool.read(most)
        assert (self.batch is None) == (self.spool.waiting == 0)

    @precondition(lambda self: self.batch is not None)
    @rule()
    def done(self) -> None:
        assert self.batch is not None
        self.delivered += [int(each.at) for each in self.batch.lines]
        self.spool.done(self.batch)
        self.batch = None

    @rule(torn=st.binary(max_size=20).filter(lambda data: b"\n" not in data))
    def crash(self, torn: bytes) -> None:
        """The program ends at any point, perhaps in the middle of a line, and begins again."""
        self.dropped += self.spool.dropped
        waiting, self.batch = self.spool.waiting, None
        parts = sorted(self.path.glob("*.lines"))
        if parts and torn:
            with parts[-1].open("ab") as file:
                file.write(torn)
        self.spool = Spool(self.path, MOST)
        assert self.spool.waiting == waiting

    @invariant()
    def every_line_is_delivered_waiting_or_counted(self) -> None:
        assert len(self.delivered) + self.spool.waiting + self.dropped + self.spool.dropped == self.number

    @invariant()
    def lines_come_once_and_in_order(self) -> None:
        assert self.delivered == sorted(set(self.delivered))

    @invariant()
    def the_bound_holds(self) -> None:
        assert sum(each.stat().st_size for each in self.path.glob("*.lines")) <= MOST


TestSpool = pytest.mark.req("S2-40")(SpoolMachine.TestCase)
SpoolMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_a_damaged_line_is_counted_and_the_others_come(tmp_path: Path) -> None:
    spool = Spool(tmp_path, MOST)
    spool.append([line(0), line(1)])
    (part,) = tmp_path.glob("*.lines")
    part.write_bytes(b"no json\n" + part.read_bytes())
    spool = Spool(tmp_path, MOST)
    batch = spool.read(10)
    assert batch is not None
    spool.done(batch)
    assert [each.at for each in batch.lines] == [0.0, 1.0]
    assert (spool.waiting, spool.dropped) == (0, 1)


def test_a_smaller_limit_applies_at_once(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 100_000)
    spool.append([line(number, 100) for number in range(500)])
    spool.resize(20_000)
    assert spool.size <= 20_000
    assert spool.waiting + spool.dropped == 500


def test_a_line_larger_than_a_segment_is_stored(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1000)
    spool.append([line(0, 600), line(1, 600)])
    assert spool.waiting + spool.dropped == 2
    batch = spool.read(10)
    assert batch is not None
    assert batch.lines[-1].at in {0.0, 1.0}
