"""`mandor version` and `mandor schema`."""

from typing import TYPE_CHECKING

import click

from mandor import __version__
from mandor.cli.options import connected, output_option
from mandor.cli.output import show_data, show_json
from mandor.errors import MandorError

if TYPE_CHECKING:
    from mandor.client.sync import Client


@click.command("version")
@output_option("text", "json", "yaml")
@click.option("--client", "only_client", is_flag=True, help="Do not contact a server.")
@connected
def version_command(client: "Client", output: str, only_client: bool) -> None:
    """Show the versions of this program and of the cluster."""
    found: dict[str, object] = {"client": __version__}
    problem = None
    if not only_client:
        try:
            found["server"] = client.read("/v1")
        except MandorError as error:
            problem = error.message
    if output != "text":
        show_data(found, output)
        return
    click.echo(f"mandor {__version__}")
    server = found.get("server")
    if isinstance(server, dict):
        cluster = server["cluster"]
        click.echo(f"server {server['version']}, cluster {cluster['id']}, epoch {cluster.get('epoch', 1)}")
    elif problem:
        click.echo(f"server version unknown: {problem}", err=True)


@click.command("schema")
def schema_command() -> None:
    """Print the JSON Schema of manifests, for editors.

    \b
    In VS Code with the YAML extension, put this at the top of a manifest after `mandor schema > mandor.json`:
      # yaml-language-server: $schema=mandor.json
    """
    from mandor.model.schema import manifest_schema

    show_json(manifest_schema())
