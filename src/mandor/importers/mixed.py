"""Reads files of any format together: manifests as they are, files of other tools converted to manifests."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from mandor.errors import Invalid, MandorError
from mandor.importers.base import FOLDER_MOST, Imported, Options, Source
from mandor.importers.registry import detect, import_files
from mandor.importers.report import NO_REPORT, Report
from mandor.lib.yaml12 import Map, dump
from mandor.model.manifest import DEFAULT_NAMESPACE, Document, load_files

TEXT_MOST = 1 << 20
NOTHING_IMPORTED = Imported((), NO_REPORT)


class MadeText(NamedTuple):
    """One manifest as text, and its place in the foreign file."""

    text: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Mixed:
    """Manifests, and the report of the converted files."""

    own: tuple[Source, ...]
    imported: Imported = NOTHING_IMPORTED

    @property
    def report(self) -> Report:
        return self.imported.report

    @property
    def texts(self) -> list[MadeText]:
        return [MadeText(dump(each.manifest), each.file, each.line) for each in self.imported.made]

    def load(
        self,
        *,
        own: Iterable[tuple[str, str | Map]] | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        engines: Collection[str] | None = None,
    ) -> list[Document]:
        """Return all objects, as `load_mixed` does; `own`: manifests to use instead of its own."""
        return load_mixed(self.own if own is None else own, self.texts, namespace=namespace, engines=engines)


def load_mixed(
    own: Iterable[tuple[str, str | Map]],
    foreign: Sequence[MadeText],
    *,
    namespace: str = DEFAULT_NAMESPACE,
    engines: Collection[str] | None = None,
) -> list[Document]:
    """Return all objects; an object of a converted file, and each error in it, refers to its line in that file."""
    made = {f"{each.file} ({number})": each for number, each in enumerate(foreign, start=1)}
    texts: list[tuple[str, str | Map]] = [*own, *((name, each.text) for name, each in made.items())]
    try:
        documents = load_files(texts, namespace=namespace, engines=engines)
    except MandorError as error:
        _put_back(error, made)
        raise
    return [_put_back_document(each, made) for each in documents]


def read_mixed(files: Sequence[Source], options: Options, format_name: str | None = None) -> Mixed:
    """Read the files; `format_name`: the format of all of them; None: detected for each file."""
    foreign = [each for each in files if format_name or detect(each)]
    imported = import_files(foreign, options, format_name) if foreign else NOTHING_IMPORTED
    return Mixed(tuple(each for each in files if each not in foreign), imported)


def _put_back(error: MandorError, made: dict[str, MadeText]) -> None:
    for facts in (error.facts, *(each for each in error.facts.get("errors", ()) if isinstance(each, dict))):  # type: ignore[attr-defined]
        place = made.get(str(facts.get("file")))
        if place is not None:
            facts |= {"file": place.file, "line": place.line}


def _put_back_document(document: Document, made: dict[str, MadeText]) -> Document:
    place = made.get(document.file)
    return document if place is None else replace(document, file=place.file, line=place.line, source=None)


def lost_keys(report: Report) -> Invalid:
    """Return the error for keys that were not mapped, or None."""
    errors = [
        {"file": each.file, "line": each.line, "path": each.path, "hint": each.hint or None}
        | {"message": f"{each.path}: {each.fate}: {each.text}"}
        for each in report.losses
    ]
    first = report.losses[0]
    message = f"{len(report.losses)} keys would be lost or guessed"
    return Invalid(message, file=first.file, line=first.line, path=first.path, errors=errors)


def text_of(path: str) -> str | None:
    """Return the text of a file that another file names; None: missing, or not text."""
    try:
        with Path(path).expanduser().open("rb") as file:
            data = file.read(TEXT_MOST + 1)
        return data.decode("utf-8") if len(data) <= TEXT_MOST else None
    except (OSError, UnicodeDecodeError, ValueError):
        return None


def mode_of(path: str) -> int | None:
    """Return type and permissions of a file or folder that another file names; None: missing."""
    try:
        return Path(path).expanduser().stat().st_mode
    except (OSError, ValueError):
        return None


def files_below(path: str) -> list[str] | None:
    """Return the files of a folder that a file names; None: not a folder, or too many files."""
    folder, found = Path(path).expanduser(), list[str]()
    if not folder.is_dir():
        return None if folder.exists() else []
    try:
        for each in folder.rglob("*"):
            if not each.is_dir():
                found.append(each.relative_to(folder).as_posix())
            if len(found) > FOLDER_MOST:
                return None
    except OSError:
        return None
    return sorted(found)
