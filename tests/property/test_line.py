"""A line gives out what a heap would, whatever comes in which order."""

import heapq

from hypothesis import given
from hypothesis import strategies as st

from mandor.lib.line import Line


@given(st.lists(st.one_of(st.none(), st.integers(0, 20)), max_size=60))
def test_a_line_gives_out_what_a_heap_would(steps: list[int | None]) -> None:
    """A number comes in with its ticket; None: the lowest goes out."""
    line: Line[tuple[int, int]] = Line()
    heap: list[tuple[int, int]] = []
    for ticket, rank in enumerate(steps):
        if rank is not None:
            line.push((rank, ticket))
            heapq.heappush(heap, (rank, ticket))
        elif heap:
            assert line.pop() == heapq.heappop(heap)
        assert len(line) == len(heap)
    assert [line.pop() for _ in heap[:]] == sorted(heap)
