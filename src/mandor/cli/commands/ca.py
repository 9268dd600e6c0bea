"""`mandor ca`: the certificate authority of servers and nodes."""

import time
from typing import TYPE_CHECKING, Any

import click

from mandor.cli.options import connected, output_option, seconds
from mandor.cli.output import show_data

if TYPE_CHECKING:
    from mandor.client.sync import Client


@click.group("ca")
def ca_command() -> None:
    """Show and rotate the cluster's certificate authority."""


@ca_command.command("show")
@output_option("text", "pem", "json", "yaml")
@connected
def show(client: "Client", output: str) -> None:
    """Show the trusted authorities; with `-o pem`, their certificates."""
    _show(client.read("/v1/ca"), output)


@ca_command.command("rotate")
@click.option(
    "--overlap",
    metavar="DURATION",
    help="Time that the old authority stays trusted.  [default: 2 certificate lifetimes]",
)
@output_option("text", "pem", "json", "yaml")
@connected
def rotate(client: "Client", overlap: str | None, output: str) -> None:
    """Create a new authority that issues all further certificates; the old one stays trusted for a while.

    Servers get certificates of the new authority within seconds, agents when they renew theirs. Tokens created from now
    on contain the new fingerprint; older tokens can be used for a first contact until the overlap ends.
    """
    body = {} if overlap is None else {"overlap_seconds": seconds(overlap, "--overlap")}
    _show(client.post("/v1/ca/rotate", body), output)


def _show(found: dict[str, Any], output: str) -> None:
    if output == "pem":
        click.echo("".join(each["certificate"] for each in found["certificates"]), nl=False)
    elif output != "text":
        show_data(found, output)
    else:
        for each in found["certificates"]:
            day = time.strftime("%Y-%m-%d", time.gmtime(each["ends_at"]))
            until = each.get("until")
            left = (
                f"trusted until {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(until))} UTC"
                if until
                else "issues certificates"
            )
            click.echo(f"{each['fingerprint']}  {left}, expires {day}")
