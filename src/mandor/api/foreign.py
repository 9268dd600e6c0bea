"""Files that come with a call: manifests, or those of other tools, with a report of what became of their keys."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from msgspec import Struct

from mandor.errors import Invalid, TooLarge
from mandor.importers.base import Options, Source
from mandor.importers.mixed import lost_keys, read_mixed
from mandor.importers.registry import detect
from mandor.importers.report import Fate, Report
from mandor.model.manifest import Document, load_files

MANIFEST = "manifest"
FOREIGN_MOST = 256 * 1024
"""Reading other tools' languages takes its time."""


class ImportNote(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key that is not in the manifest as it was in the file."""

    file: str
    line: int
    path: str
    fate: Fate
    text: str
    hint: str = ""


class ImportReport(Struct, frozen=True, kw_only=True):
    mapped: int
    """Keys that found their place, those that were guessed among them."""
    dropped: int
    notes: tuple[ImportNote, ...]


@dataclass(frozen=True, slots=True)
class Read:
    documents: list[Document]
    imported: ImportReport | None = None
    """None: they were all manifests."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How files are to be read."""

    namespace: str
    engines: Collection[str] | None
    format: str = ""
    """Empty: as manifests; what is none is looked at."""
    strict: bool = False
    """Nothing of another tool's file may be lost."""

    def read(self, files: Sequence[tuple[str, str | bytes]]) -> Read:
        if self.format in {"", MANIFEST}:
            try:
                return Read(load_files(files, namespace=self.namespace, engines=self.engines))
            except TooLarge:
                raise
            except Invalid:
                if self.format or not any(detect(each) for each in _sources(files)):
                    raise
        return self._imported(_sources(files))

    def _imported(self, files: Sequence[Source]) -> Read:
        size = sum(len(each.text) for each in files)
        if size > FOREIGN_MOST:
            message = f"files of other tools have {size} characters; at most {FOREIGN_MOST} are allowed"
            raise TooLarge(message, hint="`mandor import` makes manifests of them", most=FOREIGN_MOST)
        # Neither the variables of this process nor its files are the caller's business.
        mixed = read_mixed(files, Options(), self.format or None)
        if self.strict and mixed.report.losses:
            raise lost_keys(mixed.report)
        return Read(mixed.load(namespace=self.namespace, engines=self.engines), _told(mixed.report))


def _sources(files: Sequence[tuple[str, str | bytes]]) -> list[Source]:
    return [Source(name, text if isinstance(text, str) else text_in(text, name)) for name, text in files]


def text_in(data: bytes, name: str = "") -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Invalid("the manifest is not text in UTF-8", file=name, line=line) from None


def _told(report: Report) -> ImportReport:
    return ImportReport(
        mapped=report.mapped,
        dropped=report.dropped,
        notes=tuple(
            ImportNote(file=each.file, line=each.line, path=each.path, fate=each.fate, text=each.text, hint=each.hint)
            for each in report.notes
        ),
    )
