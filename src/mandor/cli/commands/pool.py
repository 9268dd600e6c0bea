"""`mandor pool`: machines of node pools with `autoscale`."""

import sys
from typing import TYPE_CHECKING

import click

from mandor.cli.commands.get import get_one
from mandor.cli.kinds import find_kind
from mandor.cli.options import complete_names, connected

if TYPE_CHECKING:
    from mandor.client.sync import Client


@click.group("pool")
def pool_command() -> None:
    """Remove the records of ordered machines that do not exist."""


@pool_command.command("forget")
@click.argument("pool", metavar="POOL", shell_complete=complete_names("node-pools"))
@click.argument("machines", metavar="[MACHINE]...", nargs=-1)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@connected
def forget(client: "Client", pool: str, machines: tuple[str, ...], yes: bool) -> int:
    """Remove the records of machines that do not exist any more.

    Use it when a provisioner cannot be reached any more, so that the pool can be corrected or deleted. Without a
    MACHINE these are all machines of the pool that have no node. The provisioner is not called: machines that do exist
    must be deleted there.
    """
    item = get_one(client, find_kind("node-pool"), pool, None)
    known = ((item.get("status") or {}).get("scaling") or {}).get("machines", [])
    nodes = {each["meta"]["name"] for each in client.list("nodes")[0]}
    chosen = list(machines) or [each["id"] for each in known if each["id"] not in nodes]
    if not chosen:
        click.echo(f"the pool {pool} has no machines without a node", err=True)
        return 0
    for each in known:
        if each["id"] in chosen:
            click.echo(f"{each['id']}  {each.get('phase', 'Ordered')}  {each.get('why', '')}", err=True)
    question = f"remove the records of {len(chosen)} machines of the pool {pool}"
    if not yes and not (sys.stdin.isatty() and click.confirm(f"{question}?")):
        click.echo(f"nothing was changed; use --yes to {question}", err=True)
        return 1
    client.post(f"/v1/node-pools/{pool}/forget", {"machines": chosen})
    click.echo(f"removed the records of {len(chosen)} machines; delete those that still exist at the provisioner")
    return 0
