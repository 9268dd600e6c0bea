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
from stat import S_IMODE, S_ISREG
from typing import Any, ClassVar, NamedTuple

import msgspec

from mandor.importers.part import Part
from mandor.importers.report import Report
from mandor.model.meta import NAME_MOST

Read = Callable[[str], str | None]
Folder = Callable[[str], Sequence[str] | None]
Mode = Callable[[str], int | None]
FOLDER_MOST = 64
"""Maximum number of files of a folder that are copied into a manifest."""


class Source(NamedTuple):
    """A file with its name and its whole text."""

    name: str
    text: str


def _nothing(path: str) -> str | None:
    return None


def _no_mode(path: str) -> int | None:
    return None


def _unknown(path: str) -> Sequence[str] | None:
    return None


@dataclass(frozen=True, slots=True)
class Options:
    """Inputs that the tool of a file reads from outside the file, such as environment variables."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the user that imports."""
    env_files: tuple[str, ...] = ()
    """Files of variables that replace the default one."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Values of variables that the file declares."""
    variable_files: tuple[str, ...] = ()
    """Files with values of variables that the file declares."""
    profiles: tuple[str, ...] = ()
    """Profiles of a file that are imported besides the default one."""
    unisolated: bool = False
    """Import files although the isolation of networks that they ask for is lost."""
    project: str = ""
    """Project name; empty: taken from the file or its folder."""
    read: Read = _nothing
    """Returns the text of a file that another file names; None: the file is missing or not text."""
    folder: Folder = _unknown
    """Returns the files below a folder that a file names, as relative paths. Empty: the folder is empty, or its tool
    would create it; None: unknown, not a folder, or too large."""
    mode: Mode = _no_mode
    """Returns type and permissions of a file that a file names, as `os.stat` does; None: unknown or missing."""

    def permissions(self, path: str) -> str | None:
        """Return the permissions of a file in octal if a program may be run from it; None: the default fits."""
        found = self.mode(path) or 0
        return f"{S_IMODE(found) & 0o777:04o}" if S_ISREG(found) and found & 0o111 else None


@dataclass(frozen=True, slots=True)
class Made:
    """One manifest, and its place in the foreign file."""

    manifest: dict[str, Any]
    """Plain data, in the form that users write."""
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
    """Value of `--format`."""
    title: ClassVar[str]
    """Name of the format for users."""
    suffixes: ClassVar[tuple[str, ...]] = ()
    """Suffixes of its files besides .yaml, .yml and .json, when a folder is read."""

    @abstractmethod
    def detect(self, text: str, name: str) -> bool:
        """Return whether this is a file of the format; fast, never raises."""

    @abstractmethod
    def read(self, files: Sequence[Source], options: Options) -> Imported:
        """Convert files that belong together."""


def check_isolation(part: Part, key: str, options: Options, why: str, hint: str) -> None:
    """Raise `Invalid` for a setting that isolates networks and has no counterpart, unless the user accepts its loss."""
    if not options.unisolated:
        raise part.wrong(key, why, f"{hint}; --unisolated imports the file without this isolation")


def filled(**entries: Any) -> dict[str, Any]:
    """Return the items whose value is neither None nor empty."""
    return {key: value for key, value in entries.items() if value is not None and value not in ({}, [], ())}


def fitting_name(text: str, *, most: int = NAME_MOST) -> str:
    """Return the closest text that is a valid name."""
    lowered = re.sub(r"[^a-z0-9._-]+", "-", text.lower())[:most]
    return lowered.strip("._-") or "unnamed"


def knows(kind: type[msgspec.Struct], field_name: str) -> bool:
    """Return whether this version's manifest has the key; keys that it lacks are dropped with a note."""
    return any(each.encode_name == field_name for each in msgspec.structs.fields(kind))
