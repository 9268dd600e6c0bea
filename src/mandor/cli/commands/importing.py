"""`mandor import`: converts files of other tools to manifests."""

import click

from mandor.cli.importing import Choice, import_options, show_report, warn_of_values
from mandor.cli.output import show_json


@click.command("import")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@import_options
@click.option(
    "-o",
    "--output",
    type=click.Choice(("yaml", "json", "report")),
    default="yaml",
    show_default=True,
    help="Output: the manifests, or the outcome of each key as JSON.",
)
def import_command(files: tuple[str, ...], output: str, choice: Choice) -> None:
    """Convert files of other tools to manifests.

    The manifests are written to stdout. Keys that are not imported, or only approximately, are listed on stderr with
    file and line; --strict makes them an error. Manifests that `mandor apply` would reject are always an error.
    Secrets are printed with their values, with a warning.

    `-o report` writes the outcome of each key instead, as JSON: file, line, key, outcome (imported, changed or not
    imported) and why.
    """
    from mandor.cli.commands.manifest import read_files
    from mandor.importers.base import Source
    from mandor.importers.mixed import Mixed, lost_keys
    from mandor.importers.registry import import_files
    from mandor.lib.yaml12 import dump

    sources = [Source(each["name"], each["text"]) for each in read_files(files)]
    imported = import_files(sources, choice.options(), choice.format)
    if output == "report":
        report = imported.report
        show_json({"mapped": report.mapped, "dropped": report.dropped, "keys": report.entries()})
        if choice.strict and report.losses:
            raise lost_keys(report)
        return
    show_report(imported.report, strict=choice.strict)
    warn_of_values(imported)
    manifests = [each.manifest for each in imported.made]
    if output == "json":
        show_json({"items": manifests})
    else:
        click.echo("---\n".join(dump(each) for each in manifests), nl=False)
    Mixed(
        (), imported
    ).load()  # Errors that `mandor apply` would report are shown with their position in the original file.
