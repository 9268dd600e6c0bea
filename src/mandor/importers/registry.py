"""Importers by name, which of them a file is for, and the one way to use them: what comes out is a valid manifest."""

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
"""Words of which every file that an importer of the package recognises has at least one."""


def may_be_foreign(text: str) -> bool:
    """Whether it is worthwhile to examine a file: quick, whatever the text is."""
    return any(mark in text for mark in MARKS) or any(name not in OWN for name in known_importers())


def known_importers() -> list[str]:
    return [*OWN, *(name for name in registry.names(GROUP) if name not in OWN)]


def find_importer(name: str) -> Importer:
    """The importer of that name; `Invalid` tells the names there are."""
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
    """Whose file it is; None: nobody's, so it is a manifest, or nothing that is known here."""
    return next(
        (each for name in known_importers() if (each := find_importer(name)).detect(file.text, file.name)), None
    )


def convert(importer: Importer, files: Sequence[Source], options: Options) -> Imported:
    """Manifests that `mandor apply` would take, and the report."""
    imported = importer.read(files, options)
    for made in imported.made:
        _check(made)
    return imported


def import_files(files: Sequence[Source], options: Options, format_name: str | None = None) -> Imported:
    """Each file by its format, those of one format together; `Invalid` for a file of no known one."""
    groups: dict[str, list[Source]] = {}
    found: dict[str, Importer] = {}
    for file in files:
        importer = find_importer(format_name) if format_name else detect(file)
        if importer is None:
            _check_yaml(file)
            hint = f"say what it is with --format: {', '.join(known_importers())}"
            raise Invalid("this is no file of a tool that is known here", hint=hint, file=file.name, line=1)
        found.setdefault(importer.name, importer)
        groups.setdefault(importer.name, []).append(file)
    total = Imported((), Report())
    for name, group in groups.items():
        total += convert(found[name], group, options)
    return total


def _check_yaml(file: Source) -> None:
    """A file that nobody can read says more by its first mistake than by its being unknown."""
    try:
        load_all(file.text)
    except Malformed as error:
        raise Invalid(error.message, hint=error.hint, file=file.name, line=error.line) from None


def _check(made: Made) -> None:
    """A mistake in what was made is told where it comes from."""
    try:
        load_manifests(dump(made.manifest))
    except Invalid as error:
        kind, name = made.manifest.get("kind", "workload"), made.manifest.get("name", "")
        raise Invalid(f"{kind} {name}: {error.message}", hint=error.hint, file=made.file, line=made.line) from error
