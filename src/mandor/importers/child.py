"""Conversion of foreign files in a process of its own: the server starts this with limits on time and memory.

One question comes as JSON on standard input, and one answer goes to standard output. Neither the variables nor the
files of the server are at hand: `Options()` knows none.
"""

import sys
from typing import Any

import msgspec
from msgspec import Struct

from mandor.errors import MandorError
from mandor.importers.base import Options, Source
from mandor.importers.mixed import MadeText, lost_keys, read_mixed
from mandor.importers.registry import find_importer, known_importers
from mandor.importers.report import Note


class Question(Struct, frozen=True):
    files: list[tuple[str, str]]
    """Name and text."""
    format: str = ""
    """Name of the format; empty: detected for each file."""
    strict: bool = False
    """Makes a dropped key an error."""


class Failure(Struct, frozen=True):
    """An error of the conversion, as the API reports it."""

    code: str
    message: str
    hint: str | None = None
    facts: dict[str, Any] = {}


class Answer(Struct, frozen=True):
    own: list[int] = []
    """Indices of the files that are manifests already."""
    made: list[MadeText] = []
    mapped: int = 0
    dropped: int = 0
    notes: list[Note] = []
    failure: Failure | None = None


def answer(question: Question) -> Answer:
    files = [Source(name, text) for name, text in question.files]
    try:
        mixed = read_mixed(files, Options(), question.format or None)
        if question.strict and mixed.report.losses:
            raise lost_keys(mixed.report)
    except MandorError as error:
        return Answer(failure=Failure(error.code, error.message, error.hint, dict(error.facts)))
    except RecursionError:
        return Answer(failure=Failure("too_large", "the file is nested too deeply"))
    except MemoryError:
        return Answer(failure=Failure("too_large", "converting the file takes too much memory"))
    report = mixed.report
    return Answer(
        own=[place for place, file in enumerate(files) if file in mixed.own],
        made=mixed.texts,
        mapped=report.mapped,
        dropped=report.dropped,
        notes=list(report.notes),
    )


def main() -> None:
    for name in known_importers():
        find_importer(name)  # Loaded before the question is read.
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    sys.stdout.buffer.write(msgspec.json.encode(answer(question)))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
