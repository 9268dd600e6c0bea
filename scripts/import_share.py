"""How much of other tools' files finds its place in a manifest: counts the keys of all files below some folders.

    scripts/import_share.py [--together] FORMAT FOLDER…

Each file is imported by itself, or with `--together` all files of a folder at once.
The share is of keys; what is left out most, and files that cannot be read, are told.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from mandor.errors import MandorError
from mandor.importers.base import Importer, Options, Source
from mandor.importers.mixed import files_below, text_of
from mandor.importers.registry import convert, find_importer
from mandor.importers.report import Report

SHOWN = 40


def found(importer: Importer, folders: list[str]) -> Iterator[Source]:
    for folder in folders:
        root = Path(folder)
        for path in [root] if root.is_file() else sorted(each for each in root.rglob("*") if each.is_file()):
            text = text_of(str(path))
            if text is not None and importer.detect(text, path.name):
                yield Source(str(path), text)


def piles(files: list[Source], *, together: bool) -> list[list[Source]]:
    found: dict[object, list[Source]] = {}
    for file in files:
        found.setdefault(Path(file.name).parent if together else file, []).append(file)
    return list(found.values())


def main(format_name: str, folders: list[str], *, together: bool) -> None:
    importer = find_importer(format_name)
    total, failed, files = Report(), [], 0
    fates: Counter[str] = Counter()
    for pile in piles(list(found(importer, folders)), together=together):
        files += len(pile)
        try:
            options = Options(read=text_of, folder=files_below, profiles=("*",), unisolated=True)
            report = convert(importer, pile, options).report
        except MandorError as error:
            failed.append(f"{error.facts.get('file', pile[0].name)}:{error.facts.get('line', '')}: {error}")
            continue
        total += report
        for note in report.notes:
            fates[f"{note.fate}: {re.sub(r'[0-9]+', 'N', note.path.rpartition('.')[2])}: {note.text[:70]}"] += 1
    for line, count in fates.most_common(SHOWN):
        print(f"{count:6} {line}")
    print(*failed, sep="\n")
    guessed = sum(1 for note in total.notes if note.fate == "guessed")
    print(f"{files} files, {len(failed)} not read; {total.total} keys: {total.share:.1%} mapped, {guessed} guesses")


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--together"]
    main(words[0], words[1:], together="--together" in sys.argv)
