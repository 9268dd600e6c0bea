"""The importer interface: a file of another tool in, manifests and an honest report out.

An importer recognises its files (`detect`) and reads some of them together (`read`). It opens each document with
`Ledger.open` and reads it through the `Part` it gets, and through nothing else; so each key is in the manifest or in
the report, and no list of known keys has to be kept. It raises `Invalid`, with file and line, for what makes no sense.

The package's own are in `mandor.importers.registry`; others come by entry point (`mandor.importers`).
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import msgspec

from mandor.importers.report import Report
from mandor.model.meta import NAME_MOST

Read = Callable[[str], str | None]
Folder = Callable[[str], Sequence[str] | None]
FOLDER_MOST = 64
"""So many files of a folder go along at most."""


class Source(NamedTuple):
    """A file: what it is called, and all of its text."""

    name: str
    text: str


def _nothing(path: str) -> str | None:
    return None


def _unknown(path: str) -> Sequence[str] | None:
    return None


@dataclass(frozen=True, slots=True)
class Options:
    """What a file leaves open, and its tool finds around it."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of whoever imports."""
    env_files: tuple[str, ...] = ()
    """Files of variables, instead of the usual one."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Values of variables that the file declares."""
    profiles: tuple[str, ...] = ()
    """Parts of a file that are wanted beyond the usual ones."""
    project: str = ""
    """The name of it all; absent: what the file, or its folder, says."""
    read: Read = _nothing
    """The text of a file that another one names; None: it is not at hand, or no text."""
    folder: Folder = _unknown
    """The files below a folder that a file names, as paths below it; none: it is empty, or would be made; None: it is
    not known, no folder, or too large."""


@dataclass(frozen=True, slots=True)
class Made:
    """One manifest, and where in the foreign file it comes from."""

    manifest: dict[str, Any]
    """Plain data, in the form that people write."""
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Imported:
    made: tuple[Made, ...]
    report: Report

    def __add__(self, other: "Imported") -> "Imported":
        return Imported(self.made + other.made, self.report + other.report)


class Importer(ABC):
    """Reads the files of one tool."""

    name: ClassVar[str]
    """What `--format` calls it."""
    title: ClassVar[str]
    """What people call it."""
    suffixes: ClassVar[tuple[str, ...]] = ()
    """How its files end, when a folder is read, beside .yaml, .yml and .json."""

    @abstractmethod
    def detect(self, text: str, name: str) -> bool:
        """Whether this is one of its files; quick, and never an error."""

    @abstractmethod
    def read(self, files: Sequence[Source], options: Options) -> Imported:
        """All of these files, which belong together."""


def filled(**entries: Any) -> dict[str, Any]:
    """A mapping of those that say something: not None, and not empty."""
    return {key: value for key, value in entries.items() if value is not None and value not in ({}, [], ())}


def fitting_name(text: str, *, most: int = NAME_MOST) -> str:
    """The nearest text that may be a name here."""
    lowered = re.sub(r"[^a-z0-9._-]+", "-", text.lower())[:most]
    return lowered.strip("._-") or "unnamed"


def knows(kind: type[msgspec.Struct], field_name: str) -> bool:
    """Whether this version's manifest has the key: what it has not yet is dropped, with a note that says so."""
    return any(each.encode_name == field_name for each in msgspec.structs.fields(kind))
