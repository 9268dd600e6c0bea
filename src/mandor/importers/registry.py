"""Importers by name, detection of the format of a file, and conversion into valid manifests."""

from collections.abc import Sequence
from importlib import import_module

from mandor.errors import Invalid
from mandor.importers.base import Imported, Importer, Made, Options, Source
from mandor.importers.report import Report
from mandor.lib import registry
from mandor.lib.words import did_you_mean
from mandor.lib.yaml12 import Malformed, dump, load_all
from mandor.model.manifest import load_manifests

GROUP = "mandor.importers"
OWN: dict[str, str] = {
    "compose": "mandor.importers.compose:ComposeImporter",
    "nomad": "mandor.importers.nomad:NomadImporter",
    "kubernetes": "mandor.importers.kubernetes:KubernetesImporter",
}


MARKS = ("services", "include", "apiVersion", "job", "Job", "TaskGroups")
"""Words of which every file that a built-in importer detects has at least one."""


def may_be_foreign(text: str) -> bool:
    """Return whether it is worthwhile to detect the format; fast for any text."""
    return any(mark in text for mark in MARKS) or any(name not in OWN for name in known_importers())


def known_importers() -> list[str]:
    return [*OWN, *(name for name in registry.names(GROUP) if name not in OWN)]


def find_importer(name: str) -> Importer:
    """Return the importer with that name; raise `Invalid` with the known names."""
    try:
        if name in OWN:
            module, _, attribute = OWN[name].partition(":")
            kind = getattr(import_module(module), attribute)
        else:
            kind = registry.load(GROUP, name)
    except LookupError:
        raise Invalid(f"there is no format {name!r}", hint=did_you_mean(name, known_importers())) from None
    found: Importer = kind()
    return found


def detect(file: Source) -> Importer | None:
    """Return the importer of a file; None: the file is a manifest, or of no known format."""
    return next(
        (each for name in known_importers() if (each := find_importer(name)).detect(file.text, file.name)), None
    )


def convert(importer: Importer, files: Sequence[Source], options: Options) -> Imported:
    """Return manifests that `mandor apply` accepts, and the report."""
    imported = importer.read(files, options)
    for made in imported.made:
        _check(made)
    return imported


def import_files(files: Sequence[Source], options: Options, format_name: str | None = None) -> Imported:
    """Import files by their format, files of one format together; raise `Invalid` for a file of no known format."""
    groups: dict[str, list[Source]] = {}
    found: dict[str, Importer] = {}
    for file in files:
        importer = find_importer(format_name) if format_name else detect(file)
        if importer is None:
            _check_yaml(file)
            hint = f"name its format with --format: {', '.join(known_importers())}"
            raise Invalid("the format of this file is unknown", hint=hint, file=file.name, line=1)
        found.setdefault(importer.name, importer)
        groups.setdefault(importer.name, []).append(file)
    total = Imported((), Report())
    for name, group in groups.items():
        total += convert(found[name], group, options)
    return total


def _check_yaml(file: Source) -> None:
    """Raise the syntax error of a file that cannot be parsed, instead of reporting an unknown format."""
    try:
        load_all(file.text)
    except Malformed as error:
        raise Invalid(error.message, hint=error.hint, file=file.name, line=error.line) from None


def _check(made: Made) -> None:
    """Raise an error for an invalid manifest, with the line of the foreign file."""
    try:
        load_manifests(dump(made.manifest))
    except Invalid as error:
        kind, name = made.manifest.get("kind", "workload"), made.manifest.get("name", "")
        raise Invalid(f"{kind} {name}: {error.message}", hint=error.hint, file=made.file, line=made.line) from error
