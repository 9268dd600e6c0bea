"""`mandor debug`: diagnosis of mandor itself."""

from typing import TYPE_CHECKING

import click

from mandor.cli.options import connected, output_option
from mandor.cli.output import show_data, show_table

if TYPE_CHECKING:
    from mandor.client.sync import Client


@click.group("debug")
def debug_command() -> None:
    """Diagnose mandor itself."""


@debug_command.command("table")
@output_option("text", "json", "yaml")
@connected
def table(client: "Client", output: str) -> None:
    """Compare the scheduler's table with the store; the exit status is 1 if they differ.

    Only the server with the leading scheduler can answer; other servers name it.
    """
    found = client.read("/v1/debug/table")
    differences = found["differences"]
    if output != "text":
        show_data(found, output)
    else:
        if differences:
            rows = [(each["about"], each["table"], each["store"]) for each in differences]
            show_table(("ABOUT", "TABLE", "STORE"), rows)
        counts = (
            f"{found['nodes']} nodes, {found['instances']} instances, {found['promised']} of them not committed yet"
        )
        click.echo(f"{counts}: {len(differences) or 'no'} differences", err=True)
    if differences:
        raise SystemExit(1)
