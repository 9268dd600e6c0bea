"""Parts of the supervisor: JSON, log files, users and folders."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mandor.engines.process.logs import LogReader
from mandor.engines.shim import light
from mandor.engines.shim.logfile import LINE_BYTES_MAX, LogFile, Stream
from mandor.engines.shim.task_user import Refused, find_task_user

scalars = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(alphabet=st.characters(codec="utf-8"))
values = st.recursive(
    scalars | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@given(value=values)
def test_json_is_read_as_the_full_module_reads_it(value: object) -> None:
    assert light.parse(json.dumps(value)) == value


@given(record=st.dictionaries(texts, scalars | texts))
def test_a_record_is_written_as_json(record: dict[str, str | float | None]) -> None:
    assert json.loads(light.encode(record)) == record


@pytest.mark.parametrize("text", ["", "x", "{", '{"a":}'])
def test_invalid_json_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        light.parse(text)


def test_a_record_is_replaced_atomically(tmp_path: Path) -> None:
    path = str(tmp_path / "record")
    light.replace(path, b"one")
    assert (light.read(str(tmp_path / "none")), Path(path).read_bytes()) == (None, b"one")
    assert os.stat(path).st_mode & 0o777 == 0o600
    with pytest.raises(OSError):
        light.replace(str(tmp_path / "no" / "folder"), b"")
    assert os.listdir(tmp_path) == ["record"]


def expected(data: bytes) -> list[bytes]:
    """Split lines; the last one may lack its end, and long ones are cut."""
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    return [
        line[start : start + LINE_BYTES_MAX] for line in lines for start in range(0, max(1, len(line)), LINE_BYTES_MAX)
    ]


pieces = st.lists(
    st.binary(max_size=60)
    | st.integers(1, 3 * LINE_BYTES_MAX).map(lambda n: b"x" * n)
    | st.just(b"\n")
    | st.just(b"a\nbb\n\nccc"),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@example(written=[b"x" * LINE_BYTES_MAX, b"\n"])
@given(written=pieces)
def test_lines_are_the_same_however_they_arrive(written: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    read, write = os.pipe()
    stream = Stream(read, b"o", LogFile(str(path), bytes_max=1 << 30, files=1))
    for piece in written:
        for start in range(0, len(piece), 4096):
            os.write(write, piece[start : start + 4096])
            while stream.pump():
                pass
    os.close(write)
    while stream.open:
        stream.pump()
    reader = LogReader(path)
    reader.begin(None, None)
    lines: list[bytes] = []
    while more := reader.read():
        lines += [line.text for line in more]
    reader.close()
    assert lines == expected(b"".join(written))


@settings(max_examples=60, deadline=None)
@given(count=st.integers(0, 400), tail=st.integers(0, 450), files=st.integers(1, 4))
def test_the_last_lines_are_found_across_files(
    count: int, tail: int, files: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    log = LogFile(str(path), bytes_max=2000, files=files)
    for number in range(count):
        log.write(b"%d.0 o line %d\n" % (number, number))
    everything = read_all(path, None)
    assert everything == [f"line {n}".encode() for n in range(count - len(everything), count)]
    assert read_all(path, tail) == (everything[-tail:] if tail else [])
    assert len(list(path.parent.iterdir())) <= files
    assert sum(each.stat().st_size for each in path.parent.iterdir()) <= 2000 * files


def read_all(path: Path, tail: int | None) -> list[bytes]:
    reader = LogReader(path)
    reader.begin(tail, None)
    lines: list[bytes] = []
    while more := reader.read():
        lines += [line.text for line in more]
    reader.close()
    return lines


def test_a_reader_continues_after_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = LogFile(str(path), bytes_max=1000, files=3)
    reader = LogReader(path)
    reader.begin(None, None)
    assert reader.read() == []
    seen: list[bytes] = []
    for number in range(300):
        log.write(b"%d.0 e line %d\n" % (number, number))
        if number % 37 == 0:
            while more := reader.read():
                seen += [line.text for line in more]
    while more := reader.read():
        seen += [line.text for line in more]
    reader.close()
    assert seen == [f"line {n}".encode() for n in range(300)]


def test_a_reader_behind_the_oldest_file_continues_with_the_oldest(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = LogFile(str(path), bytes_max=100, files=2)
    log.write(b"0.0 o first\n")
    reader = LogReader(path)
    reader.begin(None, None)
    assert [line.text for line in reader.read()] == [b"first"]
    for number in range(50):
        log.write(b"%d.0 o line %d\n" % (number, number))
    seen = []
    while more := reader.read():
        seen += [line.text for line in more]
    reader.close()
    kept = read_all(path, None)
    assert seen[-len(kept) :] == kept
    assert seen[: -len(kept)] == [
        f"line {n}".encode() for n in range(len(seen) - len(kept))
    ]  # The rest of the open file.
    assert kept[-1] == b"line 49"


def test_a_full_disk_loses_lines_and_the_task_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.symlink_to("/dev/full")
    log = LogFile(str(path), bytes_max=100, files=2)
    for _ in range(50):
        log.write(b"0.0 o line\n")


def test_a_damaged_line_affects_no_other_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"1.0 o good\nrubbish\n\n2.0 x what\nnan? o x\n3.0 e also good\n4.0 o torn")
    reader = LogReader(path)
    reader.begin(None, None)
    assert [line.text for line in reader.read()] == [b"good", b"also good"]
    reader.close()


def test_a_user_is_found_by_name_or_number() -> None:
    root = find_task_user("root") if os.geteuid() == 0 else None
    if root is not None:
        assert (root.uid, root.gid, root.name) == (0, 0, "root")
        unknown = find_task_user("54321:12345")
        assert unknown is not None
        assert (unknown.uid, unknown.gid) == (54321, 12345)
    assert find_task_user(None) is None


@pytest.mark.parametrize("wanted", ["no such user", "root:no such group", "99999999999999999999", "root:4294967295"])
def test_an_unknown_user_is_refused(wanted: str) -> None:
    with pytest.raises(Refused, match="there is no"):
        find_task_user(wanted)
