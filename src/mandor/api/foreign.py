"""Files of a request: manifests, or files of other tools with a report of their conversion."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

from msgspec import Struct

from mandor.api.conversion import convert
from mandor.errors import Invalid, TooLarge
from mandor.importers.base import Source
from mandor.importers.child import Answer
from mandor.importers.mixed import load_mixed
from mandor.importers.registry import may_be_foreign
from mandor.importers.report import Fate
from mandor.model.manifest import Document, load_files

MANIFEST = "manifest"


class ImportNote(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key of a file that was changed, guessed or dropped by the conversion."""

    file: str
    line: int
    path: str
    fate: Fate
    text: str
    hint: str = ""


class ImportReport(Struct, frozen=True, kw_only=True):
    mapped: int
    """Number of keys that were converted, including guesses."""
    dropped: int
    notes: tuple[ImportNote, ...]


@dataclass(frozen=True, slots=True)
class Read:
    documents: list[Document]
    imported: ImportReport | None = None
    """None: all files are manifests."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Options for reading files."""

    namespace: str
    engines: Collection[str] | None
    format: str = ""
    """Name of the format; empty: manifests, or detected."""
    strict: bool = False
    """Refuse files of which a key would be dropped."""
    turn: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    """Waits for a slot among the concurrent conversions."""

    async def read(self, files: Sequence[tuple[str, str | bytes]]) -> Read:
        refused: Invalid | None = None
        if self.format in {"", MANIFEST}:
            try:
                # In a thread: parsing a mebibyte takes half a second.
                return Read(await asyncio.to_thread(self._load, files))
            except TooLarge:
                raise
            except Invalid as error:
                if self.format or not any(may_be_foreign(each.text) for each in _sources(files)):
                    raise
                refused = error
        return await self._converted(_sources(files), refused)

    def _load(self, files: Sequence[tuple[str, str | bytes]]) -> list[Document]:
        return load_files(files, namespace=self.namespace, engines=self.engines)

    async def _converted(self, files: Sequence[Source], refused: Invalid | None) -> Read:
        """Convert the files in a child process.

        `refused`: the error of reading them as manifests; raised if no file is of another tool.
        """
        async with self.turn():
            found = await convert(files, self.format, strict=self.strict)
        if not found.made and refused is not None and len(found.own) == len(files):
            raise refused
        own = [files[place] for place in found.own]
        load = partial(load_mixed, own, found.made, namespace=self.namespace, engines=self.engines)
        return Read(await asyncio.to_thread(load), _report_of(found))


def _sources(files: Sequence[tuple[str, str | bytes]]) -> list[Source]:
    return [Source(name, text if isinstance(text, str) else text_in(text, name)) for name, text in files]


def text_in(data: bytes, name: str = "") -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Invalid("the manifest is not text in UTF-8", file=name, line=line) from None


def _report_of(found: Answer) -> ImportReport:
    return ImportReport(
        mapped=found.mapped,
        dropped=found.dropped,
        notes=tuple(
            ImportNote(file=each.file, line=each.line, path=each.path, fate=each.fate, text=each.text, hint=each.hint)
            for each in found.notes
        ),
    )
