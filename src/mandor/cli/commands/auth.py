"""`mandor auth`: the caller's identity and permissions."""

from typing import TYPE_CHECKING

import click

from mandor.cli.kinds import find_kind
from mandor.cli.options import connected, namespace_option, output_option
from mandor.cli.output import show_data
from mandor.cli.roles import rule_text

if TYPE_CHECKING:
    from mandor.client.sync import Client


@click.group("auth")
def auth_command() -> None:
    """Show your identity and permissions."""


@auth_command.command("whoami")
@output_option("text", "json", "yaml")
@connected
def whoami(client: "Client", output: str) -> None:
    """Show your identity, role and rules."""
    you = client.read("/v1/whoami")
    if output != "text":
        show_data(you, output)
        return
    click.echo(f"{you['identity']}, role {you['role'] or '-'}, namespaces {', '.join(you['namespaces']) or '-'}")
    for rule in you["rules"]:
        click.echo(f"  {rule_text(rule)}")


@auth_command.command("can-i")
@click.argument("verb")
@click.argument("kind")
@click.argument("name", default="")
@namespace_option
@connected
@click.pass_context
def can_i(context: click.Context, client: "Client", verb: str, kind: str, name: str, namespace: str) -> None:
    """Check whether you may use VERB on objects of KIND; the exit status is 1 if not.

    \b
    mandor auth can-i delete workloads -n team-a
    mandor auth can-i exec instance shop-0
    """
    found = find_kind(kind)
    query = {"verb": verb, "kind": found.name, "namespace": namespace, "name": name}
    answer = client.read("/v1/can-i", {key: value for key, value in query.items() if value})
    click.echo("yes" if answer["allowed"] else "no")
    click.echo(answer["reason"], err=True)
    if not answer["allowed"]:
        context.exit(1)
