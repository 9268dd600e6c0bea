"""Reads a recording: objects and their changes, intervals in which instances ran, their ends and their usage."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mandor.errors import Invalid
from mandor.model.codec import decode
from mandor.model.meta import Key, Object
from mandor.model.phase import Phase
from mandor.model.recording import (
    VERSION,
    AnyLine,
    DeletionLine,
    InstanceLine,
    ObjectLine,
    ProfilesLine,
    RecordingEnd,
    RecordingStart,
    SnapshotEnd,
    SnapshotStart,
    UsageLine,
    key_of,
    read_line,
)
from mandor.sim.history import RunInterval

BYTES_MOST = 1 << 30


@dataclass(frozen=True, slots=True)
class RecordedChange:
    """Change of one object; times are seconds since the start of the recording."""

    at: float
    before: Object | None
    after: Object | None
    hidden: bool = False
    """Whether fields that the recording omits have changed."""


@dataclass(frozen=True, slots=True)
class RecordedEnd:
    """End of an instance that was not ordered."""

    workload: str
    instance: str
    seconds: float
    exit_code: int


@dataclass(slots=True)
class Recorded:
    """A recording; times are seconds since `began_at`, which is wall time."""

    path: Path
    began_at: float = 0.0
    seconds: float = 0.0
    suspect_seconds: float = 20.0
    lost_seconds: float = 60.0
    profiles: str = ""
    first: list[Object] = field(default_factory=list)
    """Objects at the start."""
    changes: list[RecordedChange] = field(default_factory=list)
    stays: list[RunInterval] = field(default_factory=list)
    finishes: list[RecordedEnd] = field(default_factory=list)
    used: list[tuple[float, dict[str, tuple[int, int]]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Notes about missing parts of the recording."""


def read_recorded(path: Path) -> Recorded:
    """The recording, with the part before it where there is one; `Invalid` with a line for what is none."""
    before = path.with_name(path.name + ".1")
    reading = _RecordingReader(Recorded(path))
    for part in (before, path) if _continues(before, path) else (path,):
        for line in _lines(part):
            reading.take(line)
    return reading.done()


def _continues(before: Path, path: Path) -> bool:
    if not before.exists():
        return False
    first, second = (next(_lines(each), None) for each in (before, path))
    return (
        isinstance(first, RecordingStart)
        and isinstance(second, RecordingStart)
        and (first.cluster, first.part + 1) == (second.cluster, second.part)
    )


def _lines(path: Path) -> Iterator[AnyLine]:
    """A torn last line is what a crash leaves behind, and no mistake."""
    try:
        size = path.stat().st_size
        if size > BYTES_MOST:
            raise Invalid(f"{path} has {size} bytes; at most {BYTES_MOST} are read")
        data = path.read_bytes()
    except OSError as error:
        raise Invalid(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error
    whole, newline, _ = data.rpartition(b"\n")
    for number, text in enumerate(whole.split(b"\n") if newline else [], start=1):
        try:
            line = read_line(text)
        except Invalid as error:
            hint = "`mandor server --record FILE` writes one"
            raise Invalid(error.message, hint=hint, file=str(path), line=number) from error
        if number == 1 and not isinstance(line, RecordingStart):
            raise Invalid("a recording begins with `began`", file=str(path), line=1)
        if isinstance(line, RecordingStart) and line.version != VERSION:
            raise Invalid(f"version {line.version} of recordings is not known here", file=str(path), line=number)
        yield line


class _RecordingReader:
    def __init__(self, found: Recorded) -> None:
        self._found = found
        self._began: RecordingStart | None = None
        self._at = 0.0
        self._objects: dict[Key, Object] = {}
        self._running: dict[Key, InstanceLine] = {}
        self._open: dict[Key, tuple[InstanceLine, float]] = {}
        self._mentioned: set[Key] | None = None
        """Objects of the current snapshot; None: no snapshot is being read."""
        self._begun = False

    def take(self, line: AnyLine) -> None:
        if self._began is None:
            self._begin(line)
        self._at = max(self._at, line.at - self._found.began_at)
        match line:
            case ObjectLine():
                self._see(decode(bytes(line.object)), hidden=line.hidden)
            case InstanceLine():
                self._see_instance(line)
            case DeletionLine():
                self._forget(key_of(line))
            case SnapshotStart():
                self._mentioned = set()
                if line.why:
                    self._found.notes.append(f"something is missing: {line.why}")
            case SnapshotEnd():
                self._complete()
            case ProfilesLine():
                self._see_profiles(line)
            case UsageLine():
                self._found.used.append((self._at, line.workloads))
            case RecordingStart() | RecordingEnd():
                pass

    def _begin(self, line: AnyLine) -> None:
        if not isinstance(line, RecordingStart):
            raise Invalid("a recording begins with `began`", file=str(self._found.path), line=1)
        self._began, found = line, self._found
        found.began_at = line.at
        found.suspect_seconds, found.lost_seconds = line.suspect_seconds, line.lost_seconds
        if line.dropped:
            found.notes.append(f"{line.dropped} earlier parts were dropped, for the file is bounded")

    def _see_profiles(self, line: ProfilesLine) -> None:
        if not self._begun:
            self._found.profiles = line.text
        elif line.text != self._found.profiles:
            self._found.notes.append("the scheduler's configuration was changed meanwhile; the first one is replayed")

    def _see(self, value: Object, *, hidden: bool) -> None:
        key = value.key
        if self._mentioned is not None:
            self._mentioned.add(key)
        before = self._objects.get(key)
        self._objects[key] = value
        if not self._begun:
            self._found.first.append(value)
        elif before != value or hidden:
            self._found.changes.append(RecordedChange(self._at, before, value, hidden))

    def _see_instance(self, line: InstanceLine) -> None:
        key = key_of(line)
        if self._mentioned is not None:
            self._mentioned.add(key)
        before = self._running.get(key)
        self._running[key] = line
        serves = line.phase is Phase.RUNNING and line.ready
        known = self._open.get(key)
        if known is not None and (not serves or known[0].node != line.node):
            self._close(key)
        if serves and key not in self._open:
            self._open[key] = (line, self._at)
        if before is not None and before.started_at:
            self._see_end(before, line)

    def _see_end(self, before: InstanceLine, line: InstanceLine) -> None:
        """Record an end that was not ordered, final or followed by a restart."""
        over = line.phase in {Phase.SUCCEEDED, Phase.FAILED} and line.phase is not before.phase
        again = line.restarts > before.restarts and not line.phase.over
        if (over and line.exit_code is not None) or again:
            seconds = max(0.001, line.at - before.started_at)
            self._found.finishes.append(RecordedEnd(line.workload, line.name, seconds, line.exit_code or int(again)))

    def _close(self, key: Key) -> None:
        line, since = self._open.pop(key)
        self._found.stays.append(RunInterval(line.workload, line.name, line.node, since, self._at))

    def _forget(self, key: Key) -> None:
        self._running.pop(key, None)
        if key in self._open:
            self._close(key)
        before = self._objects.pop(key, None)
        if before is not None:
            self._found.changes.append(RecordedChange(self._at, before, None))

    def _complete(self) -> None:
        mentioned, self._mentioned, self._begun = self._mentioned or set(), None, True
        for key in [each for each in (*self._objects, *self._running) if each not in mentioned]:
            self._forget(key)

    def done(self) -> Recorded:
        if self._began is None:
            raise Invalid("there is nothing in this recording", file=str(self._found.path), line=1)
        for key in list(self._open):
            self._close(key)
        self._found.seconds = self._at
        return self._found
