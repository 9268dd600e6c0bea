"""`mandor top`: a live view of the cluster in the terminal."""

import asyncio
import logging
import sys
from typing import TYPE_CHECKING

import click

from mandor.cli.kinds import Kind, find_kind
from mandor.cli.options import all_namespaces_option, complete_kinds, connected, namespace_option

if TYPE_CHECKING:
    from mandor.client.sync import Client


@click.command("top")
@click.argument("kind", metavar="[KIND]", default="instances", shell_complete=complete_kinds)
@namespace_option
@all_namespaces_option
@connected
def top_command(client: "Client", kind: str, namespace: str, all_namespaces: bool) -> None:
    """Show a live view of the cluster in the terminal.

    Keys are those of k9s: `:` and a view, `/` and a filter, enter, esc, `d` describe, `l` logs, `e` explain,
    `s` shell, ctrl-d delete, `?` help, `q` quit. KIND is the first view.  [default: instances]
    """
    first = find_kind(kind)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("top requires a terminal; use `mandor get -w` without one")
    client.read("/v1")  # connection errors are reported before the screen is switched
    asyncio.run(_show(client, first, None if all_namespaces else namespace))


async def _show(client: "Client", first: Kind, namespace: str | None) -> None:
    from mandor.cli.top.app import Top
    from mandor.client import aio, sync

    # Errors are shown in the footer; log lines would corrupt the screen.
    logging.getLogger("mandor").addHandler(logging.NullHandler())
    servers = [str(server) for server in client.servers]
    asker = sync.Client(servers, token=client.token, ca_file=client.ca_file)
    async with aio.Client(servers, token=client.token, ca_file=client.ca_file) as following:
        await Top(following, asker, namespace, first).run_async()
