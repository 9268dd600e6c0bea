"""`mandor import`: the manifests that files of other tools stand for."""

import click

from mandor.cli.importing import Choice, import_options, tell, warn_of_values
from mandor.cli.output import show_json


@click.command("import")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@import_options
@click.option(
    "-o", "--output", type=click.Choice(("yaml", "json")), default="yaml", show_default=True, help="How to print them."
)
def import_command(files: tuple[str, ...], output: str, choice: Choice) -> None:
    """Print the manifests that files of other tools stand for.

    The manifests go to stdout. Every key that has no place in them, or only nearly the same one, is told on stderr,
    with its file and line; --strict makes that a failure. What `mandor apply` would refuse is a failure at any rate.
    Secrets are printed with their values, and it is told.
    """
    from mandor.cli.commands.manifest import read_files
    from mandor.importers.base import Source
    from mandor.importers.mixed import Mixed
    from mandor.importers.registry import import_files
    from mandor.lib.yaml12 import dump

    sources = [Source(each["name"], each["text"]) for each in read_files(files)]
    imported = import_files(sources, choice.options(), choice.format)
    tell(imported.report, strict=choice.strict)
    warn_of_values(imported)
    manifests = [each.manifest for each in imported.made]
    if output == "json":
        show_json({"items": manifests})
    else:
        click.echo("---\n".join(dump(each) for each in manifests), nl=False)
    Mixed((), imported).load()  # What `mandor apply` would refuse is told with its place in the file.
