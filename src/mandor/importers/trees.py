"""Parses a foreign file into a tree whose values can be changed, and imports such a tree; used by `fates`."""

from dataclasses import replace
from typing import Any, NamedTuple

from mandor.importers.base import Imported, Options, Source
from mandor.importers.fates import Read, Tree
from mandor.importers.kubernetes import KubernetesImporter
from mandor.importers.nomad import read_job, trees_of_jobs
from mandor.importers.part import Ledger, plain
from mandor.importers.registry import find_importer
from mandor.importers.report import Report
from mandor.lib.yaml12 import Parsed, dump, load_all

_KEPT_MOST = 64


class ParsedTree(NamedTuple):
    tree: Tree
    read: Read


def parse_tree(format_name: str, text: str, options: Options) -> ParsedTree:
    """Return the tree: YAML documents by their index, Nomad jobs by their name."""
    if format_name == "nomad":
        return ParsedTree({"job": trees_of_jobs(text, options)}, _read_jobs)
    documents = [plain(each.value) for each in load_all(text)]
    return ParsedTree(
        documents, _read_objects(options) if format_name == "kubernetes" else _yaml_reader(format_name, options)
    )


def _read_jobs(tree: Any) -> Imported:
    ledger = Ledger()
    made = [each for name, job in tree["job"].items() for each in read_job(ledger, job, "a.nomad", name)]
    return Imported(tuple(made), ledger.report())


def _read_objects(options: Options) -> Read:
    """Import each document as a file of its own, so that notes tell them apart; unchanged documents are cached."""
    importer = KubernetesImporter()
    known: dict[int, tuple[Any, list[Parsed]]] = {}

    def parsed(document: Any) -> list[Parsed]:
        if id(document) not in known:
            if len(known) > _KEPT_MOST:
                known.clear()
            known[id(document)] = (document, load_all(dump(document)))
        return known[id(document)][1]

    def read(tree: Any) -> Imported:
        found = importer.read_documents([(str(number), parsed(each)) for number, each in enumerate(tree)], options)
        return Imported(found.made, _by_document(found.report))

    return read


def _yaml_reader(format_name: str, options: Options) -> Read:
    importer = find_importer(format_name)

    def read(tree: Any) -> Imported:
        found = importer.read([Source(str(number), dump(each)) for number, each in enumerate(tree)], options)
        return Imported(found.made, _by_document(found.report))

    return read


def _by_document(report: Report) -> Report:
    def place(file: str, path: str) -> str:
        return f"[{file}].{path}"

    return replace(
        report,
        notes=tuple(replace(note, path=place(note.file, note.path)) for note in report.notes),
        left=frozenset((file, place(file, path)) for file, path in report.left),
        idle=frozenset((file, place(file, path)) for file, path in report.idle),
    )
