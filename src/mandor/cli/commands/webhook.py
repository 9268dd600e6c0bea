"""`mandor webhook`: tests receivers of events, and shows their deliveries."""

from typing import TYPE_CHECKING

import click

from mandor.cli import receivers
from mandor.cli.commands.get import get_one
from mandor.cli.kinds import Kind, find_kind
from mandor.cli.options import complete_names, connected, output_option
from mandor.cli.output import show_data, show_table
from mandor.errors import Unavailable

if TYPE_CHECKING:
    from mandor.client.sync import Client

bus_option = click.option("--bus", is_flag=True, help="NAME is an event bus.")
HEAD = ("WHEN", "OUTCOME", "EVENT", "ABOUT", "DURATION", "RESPONSE", "ID")


@click.group("webhook")
def webhook_command() -> None:
    """Test receivers of events, and show their deliveries.

    Receivers are created by manifests (`kind: webhook`, `kind: event-bus`); `mandor get webhooks` lists them.
    """


@webhook_command.command("test")
@click.argument("name", shell_complete=complete_names("webhooks"))
@bus_option
@output_option("text", "json", "yaml")
@connected
def test(client: "Client", name: str, bus: bool, output: str) -> None:
    """Send a test message and show the response.

    The exit status is 1 if the receiver does not accept it.
    """
    answer = client.post(f"/v1/{_kind(bus).plural}/{name}/test", {})
    if output != "text":
        show_data(answer, output)
    elif answer["delivered"]:
        click.echo(f"accepted after {answer['milliseconds']} ms: {answer['says']}")
    if not answer["delivered"]:
        raise Unavailable(f"not accepted: {answer['says']}", hint=f"see `mandor describe {_kind(bus).name} {name}`")


@webhook_command.command("log")
@click.argument("name", shell_complete=complete_names("webhooks"))
@bus_option
@output_option()
@connected
def show_log(client: "Client", name: str, bus: bool, output: str) -> None:
    """Show the last deliveries, the newest first."""
    item = get_one(client, _kind(bus), name, None)
    if output in {"json", "yaml"}:
        show_data({"items": list(item.get("status", {}).get("log", ()))}, output)
        return
    show_table(HEAD, receivers.log_rows(item))


def _kind(bus: bool) -> Kind:
    return find_kind("event-bus" if bus else "webhook")
