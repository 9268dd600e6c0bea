"""`mandor stop-held`: allows nodes to stop instances that the cluster does not list."""

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from mandor.cli.commands.node import get_nodes, node_argument
from mandor.cli.options import connected
from mandor.cli.progress import Progress
from mandor.errors import Unavailable

if TYPE_CHECKING:
    from mandor.client.sync import Client

PAUSE_SECONDS = 0.5
WAIT_SECONDS = 180.0


@click.command("stop-held")
@node_argument
@click.option(
    "--current-epoch",
    is_flag=True,
    help="Also stop instances that were ordered in the current epoch, by a newer copy of the store.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@connected
def stop_held_command(client: "Client", names: tuple[str, ...], current_epoch: bool, yes: bool) -> int:
    """Stop instances that nodes hold after a restore.

    A node that runs instances which a restored or replaced store does not list leaves them as they are; `mandor
    doctor` and `mandor describe node` name them. This command lets the nodes stop them, with their usual grace period.
    Instances that another cluster ordered stay held.
    """
    held = {node["meta"]["name"]: _held(node) for node in get_nodes(client, names)}
    for name, text in held.items():
        click.echo(f"node {name} holds {text}" if text else f"node {name} holds no instances", err=True)
    nodes = [name for name, text in held.items() if text]
    if not nodes:
        return 0
    if not yes and not (sys.stdin.isatty() and click.confirm("stop these instances?")):
        click.echo("nothing was changed; use --yes to stop these instances", err=True)
        return 1
    epoch = int(client.read("/v1")["cluster"].get("epoch", 1))
    for name in nodes:
        client.patch("nodes", name, {"spec": {"forget_before_epoch": epoch + current_epoch}})
    try:
        left = _wait(client, nodes)
    finally:
        if current_epoch:  # A later restore must hold instances of this epoch again.
            for name in nodes:
                client.patch("nodes", name, {"spec": {"forget_before_epoch": epoch}})
    for name in nodes:
        click.echo(f"node {name} still holds {left[name]}" if name in left else f"node {name} stopped {held[name]}")
    if left:
        hint = "" if current_epoch else "; --current-epoch includes instances that a newer copy of the store ordered"
        raise Unavailable(f"{len(left)} nodes still hold instances", hint=f"see the events of the nodes{hint}")
    return 0


def _held(node: dict[str, Any]) -> str:
    """Return the number and names of held instances; empty: none."""
    return str((node["status"].get("facts") or {}).get("held", ""))


def _wait(client: "Client", nodes: list[str]) -> dict[str, str]:
    """Wait until the nodes hold nothing; return what is left on each after the time limit."""
    end = time.monotonic() + WAIT_SECONDS
    with Progress("waiting") as progress:
        while True:
            left = {name: text for name in nodes if (text := _held(client.get("nodes", name)))}
            if not left or time.monotonic() > end:
                return left
            progress.text = f"waiting for {', '.join(left)}"
            time.sleep(PAUSE_SECONDS)
