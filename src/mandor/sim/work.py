"""The work of a scenario: manifests that stand in it, or files of any importable format beside it."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mandor.errors import Invalid
from mandor.importers.base import Options, Source
from mandor.importers.mixed import NOTHING_IMPORTED, Mixed, files_below, read_mixed, text_of
from mandor.importers.report import NO_REPORT, Report
from mandor.lib.yaml12 import Map, dump
from mandor.model.manifest import Document
from mandor.model.meta import Key, Object

FILE, FORMAT = "file", "format"
SUFFIXES = frozenset({".yaml", ".yml", ".json", ".hcl", ".nomad"})


@dataclass(frozen=True, slots=True)
class Work:
    documents: tuple[Document, ...] = ()
    report: Report = NO_REPORT
    """Report about keys of imported files that were not mapped."""

    @property
    def objects(self) -> tuple[Object, ...]:
        return tuple(each.object for each in self.documents)


def load_work(entries: Sequence[dict[str, Any]], folder: Path, where: str) -> Work:
    """Every object: manifests in order, then what other tools' files stand for; `Invalid` with file and line for a
    mistake, where an entry knows its lines."""
    if not entries:
        return Work()
    own: list[tuple[str, str | Map]] = []
    imported = NOTHING_IMPORTED
    for entry in entries:
        if FILE not in entry:
            own.append((where, entry if isinstance(entry, Map) else dump(entry)))
            continue
        found = _files_of(entry, folder, where)
        own += found.own
        imported += found.imported
    mixed = Mixed((), imported)
    return Work(tuple(mixed.load(own=own)), mixed.report)


def places(works: Iterable[Work]) -> dict[Key, Document]:
    """Return the document of each object, by key, without objects that several documents define."""
    documents = [each for work in works for each in work.documents]
    count = Counter(each.object.key for each in documents)
    return {each.object.key: each for each in documents if count[each.object.key] == 1}


def _files_of(entry: dict[str, Any], folder: Path, where: str) -> Mixed:
    if not entry.keys() <= {FILE, FORMAT}:
        hint = f"a list item is a manifest, or `{FILE}: FILE`, with `{FORMAT}: NAME` where that cannot be seen"
        line = entry.line if isinstance(entry, Map) else 1
        raise Invalid(f"`{FILE}` stands by itself", hint=hint, file=where, line=line)
    names = entry[FILE]
    paths = [folder / str(name) for name in (names if isinstance(names, list) else [names])]
    options = Options(environment=dict(os.environ), read=text_of, folder=files_below)
    return read_mixed([each for path in paths for each in _files(path)], options, entry.get(FORMAT))


def _files(path: Path) -> Iterator[Source]:
    paths = sorted(each for each in path.iterdir() if each.suffix in SUFFIXES) if path.is_dir() else [path]
    if not paths:
        raise Invalid(f"there is no manifest in {path}")
    for each in paths:
        try:
            yield Source(str(each), each.read_text(encoding="utf-8"))
        except OSError as error:
            raise Invalid(f"cannot read {each}: {(error.strerror or str(error)).lower()}") from error
        except UnicodeDecodeError as error:
            raise Invalid(f"{each} is not text in UTF-8", file=str(each)) from error
