"""Generated ids are ordered by time and unique, even after a fork."""

import os
import time

import pytest

from mandor.lib.ids import OrderedIds


def test_ids_grow_and_are_never_given_twice() -> None:
    new_id = OrderedIds()
    ids = [new_id() for _ in range(20_000)]
    assert ids == sorted(set(ids))
    assert {len(each) for each in ids} == {24}
    assert all(int(each, 16) >= 0 for each in ids)


def test_a_clock_that_goes_back_repeats_no_id(monkeypatch: pytest.MonkeyPatch) -> None:
    new_id = OrderedIds()
    now = time.time_ns()
    times = [now, now - 10**12, now - 10**12, now + 10**6, now]
    monkeypatch.setattr(time, "time_ns", lambda: times.pop(0))
    ids = [new_id() for _ in range(5)]
    assert ids == sorted(set(ids))


def test_two_processes_that_started_together_share_no_id() -> None:
    one, two = OrderedIds(), OrderedIds()
    assert not {one() for _ in range(5000)} & {two() for _ in range(5000)}


def test_a_forked_process_gives_out_other_ids() -> None:
    new_id = OrderedIds()
    new_id()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, "".join(new_id() for _ in range(100)).encode())
        os._exit(0)
    ours = {new_id() for _ in range(100)}
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    theirs = {text[start : start + 24] for start in range(0, len(text), 24)}
    assert len(theirs) == 100
    assert not ours & theirs
