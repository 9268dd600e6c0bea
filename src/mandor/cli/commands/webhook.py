"""`mandor webhook`: receivers of events tried out, and what they were sent."""

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
HEAD = ("WHEN", "OUTCOME", "EVENT", "ABOUT", "TOOK", "SAYS", "ID")


@click.group("webhook")
def webhook_command() -> None:
    """Try receivers of events out, and see what they were sent.

    Receivers are applied like everything else (`kind: webhook`, `kind: event-bus`); `mandor get webhooks` shows them.
    """


@webhook_command.command("test")
@click.argument("name", shell_complete=complete_names("webhooks"))
@bus_option
@output_option("text", "json", "yaml")
@connected
def test(client: "Client", name: str, bus: bool, output: str) -> None:
    """Send one message that says it is a test, at once, and show what was answered.

    The exit status is 1 if it was not taken.
    """
    answer = client.post(f"/v1/{_kind(bus).plural}/{name}/test", {})
    if output != "text":
        show_data(answer, output)
    elif answer["delivered"]:
        click.echo(f"taken after {answer['milliseconds']} ms: {answer['says']}")
    if not answer["delivered"]:
        raise Unavailable(f"not taken: {answer['says']}", hint=f"`mandor describe {_kind(bus).name} {name}` shows more")


@webhook_command.command("log")
@click.argument("name", shell_complete=complete_names("webhooks"))
@bus_option
@output_option()
@connected
def show_log(client: "Client", name: str, bus: bool, output: str) -> None:
    """Show the last messages that were sent, the newest first, and what became of them."""
    item = get_one(client, _kind(bus), name, None)
    if output in {"json", "yaml"}:
        show_data({"items": list(item.get("status", {}).get("log", ()))}, output)
        return
    show_table(HEAD, receivers.log_rows(item))


def _kind(bus: bool) -> Kind:
    return find_kind("event-bus" if bus else "webhook")
